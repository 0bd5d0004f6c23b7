"""Individual results, computed at a site from published maps; they never leave the site."""
