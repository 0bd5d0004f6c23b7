"""A study between machines that are far apart: network namespaces joined by a relay that delays and drops."""
