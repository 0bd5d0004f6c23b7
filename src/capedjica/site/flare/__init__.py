"""The carrier of a site: the NVIDIA FLARE client with a relay, its kits and its processes."""
