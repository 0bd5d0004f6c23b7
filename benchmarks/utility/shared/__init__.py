"""Shared by the benchmarks of utility: problems, runs, tables and figures."""
