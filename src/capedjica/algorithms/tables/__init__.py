"""Analyses of tables with one person per row: densities, clusters, labels."""
