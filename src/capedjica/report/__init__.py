"""Results out: figures that a person can look at."""
