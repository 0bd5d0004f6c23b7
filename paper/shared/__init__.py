"""What the experiments share: runs that are kept, their scores, the formulas that only the paper needs."""
