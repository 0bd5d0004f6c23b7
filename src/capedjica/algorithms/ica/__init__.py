"""Joint ICA: the paper's method, the one of this package, the baselines, and what becomes of their maps."""
