"""The sum that nobody sees: secure aggregation in the ring of integers modulo 2^64, and its noise.

``site`` and ``aggregator`` are the two sides, state machines without input or output that never import each
other; all else is what both know.
"""
