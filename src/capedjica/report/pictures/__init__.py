"""Figures of a report: charts, brain slices and the brain viewer."""
