"""Commands to try everything out: demonstrations and simulated consortia."""
