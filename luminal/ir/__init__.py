"""The hand-over types of the stages: Graph, Space, Plan, Program, and what they are made of."""
