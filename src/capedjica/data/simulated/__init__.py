"""Data of nobody: scans made by formulas, whose networks are known."""
