"""Who takes part at a site: the roll of its people, whom it enrolled, and the scans that it approved."""
