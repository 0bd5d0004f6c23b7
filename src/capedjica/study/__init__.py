"""Studies: planning, running, resuming."""
