"""The carrier of a site: NVIDIA FLARE's client with a relay, and what the site keeps of it."""
