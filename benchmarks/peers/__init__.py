"""Programs that measure other people's packages, each run in an environment of its own."""
