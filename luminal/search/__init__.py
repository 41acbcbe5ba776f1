"""Search: which plan, which schedule. Measures through functions it is given."""
