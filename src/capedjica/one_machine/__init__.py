"""Trials with all parties on one machine: studies with local sites, simulations, demonstrations."""
