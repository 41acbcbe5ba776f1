"""The rewrite rules, by subject. Each is one small function whose docstring is the equation."""
