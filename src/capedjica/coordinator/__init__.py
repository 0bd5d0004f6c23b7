"""Coordinator: writing and planning a study, running it, and its results and report.

This package does not import the code of a site, and site code does not import this package.
"""
