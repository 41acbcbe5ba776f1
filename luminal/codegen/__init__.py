"""Code generation: a Plan with schedules in, native source out. Knows no frontend and no search."""
