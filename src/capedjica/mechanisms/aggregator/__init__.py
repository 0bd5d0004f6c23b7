"""The aggregator's side of private means: requests, summation, and continuing without lost sites."""
