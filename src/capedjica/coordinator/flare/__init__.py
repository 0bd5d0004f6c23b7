"""Coordinator's side of NVIDIA FLARE: kits for all parties, the server, its jobs and progress."""
