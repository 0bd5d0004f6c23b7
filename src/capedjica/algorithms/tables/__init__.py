"""Analyses of tables with one subject per row: means, histograms, clustering, classification."""
