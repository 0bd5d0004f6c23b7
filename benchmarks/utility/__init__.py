"""How good are the networks at a given epsilon? ``python -m benchmarks.utility NAME``."""
