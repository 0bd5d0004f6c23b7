"""What a study will release, cost and find, before anything is computed."""
