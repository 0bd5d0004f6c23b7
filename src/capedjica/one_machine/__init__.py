"""All parties on this machine: a study whose sites are folders here, simulations, demonstrations."""
