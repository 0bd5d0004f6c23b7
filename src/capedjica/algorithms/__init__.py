"""Algorithms, each expressed as a sequence of private means over single-pass kernels.

An algorithm has two halves: what a site computes from its subjects, and what the aggregator computes from the
means. Both are in the same module, because each is meaningless without the other; the caller determines which
half runs.
"""
