"""The server's end of FLARE: kits for all parties, the server and its jobs, how far a run is."""
