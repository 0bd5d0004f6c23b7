"""What is computed: each algorithm as a sequence of private means, over kernels that take one pass.

An algorithm has two halves, what a site computes of its subjects and what the aggregator makes of the means.
They stand in one module, because each is wrong without the other; who calls it decides which half runs.
"""
