"""What the aggregator does for a private mean: ask, add up, go on without lost sites."""
