"""Participation of a site in a study: admission, approval and revocation."""
