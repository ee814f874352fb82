"""Real programs, untiered and under torture, each with a check of its own results."""
