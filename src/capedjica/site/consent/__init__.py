"""Consent of the participants of a site and its withdrawal."""
