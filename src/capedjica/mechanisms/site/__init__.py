"""What a site does for a private mean: clip, round, mask, record, charge; runs at a hospital."""
