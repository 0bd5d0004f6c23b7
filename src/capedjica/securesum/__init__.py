"""The sum that nobody sees: secure aggregation in the ring of integers modulo 2^64, and its noise."""
