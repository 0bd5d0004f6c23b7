"""What is computed: each algorithm as a sequence of private means, over kernels that take one pass."""
