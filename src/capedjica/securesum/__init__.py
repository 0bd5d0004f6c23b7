"""Secure aggregation in the ring of integers modulo 2^64, and the noise of the private path.

``site`` and ``aggregator`` are the two sides of the protocol, state machines without I/O that never import
each other. The other modules are shared by both sides.
"""
