"""Results about single people, which are made at their site and never leave it."""
