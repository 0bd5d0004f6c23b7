"""Commands of a consortium's coordinator: a study written, planned, sealed, run, looked at."""
