"""How good private group comparisons are."""
