"""Joint ICA: the subject-level method, the paper's method, baselines, and post-processing of maps."""
