"""Aggregator and sites with a clock in hand."""
