"""Figures that cannot go stale: which code each depends on, and the commit that made it."""
