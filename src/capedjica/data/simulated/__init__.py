"""Simulated participants: generated scans with known networks."""
