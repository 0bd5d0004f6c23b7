"""The maps of a joint ICA: networks, how many the noise lets through, their stability, less noise."""
