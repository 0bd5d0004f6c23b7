"""Commands for trials: demonstrations, simulated studies, and all sites on one machine."""
