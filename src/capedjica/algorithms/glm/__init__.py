"""Private group comparison: design, estimation and inference."""
