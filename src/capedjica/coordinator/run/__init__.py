"""Runs of a study: aggregation, journal, resumption, results, reports and comparison."""
