"""The hand-over types of the five stages: Graph, Space, Plan, Program, and what they are made of."""
