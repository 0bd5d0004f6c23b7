"""The BIDS app ``capedjica-bids``: the preprocessed scans of one data set on one machine."""
