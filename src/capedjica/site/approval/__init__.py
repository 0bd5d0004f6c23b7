"""Whether a site takes part in a study: its terms, its approval, and the end of an approval."""
