"""Code that runs at a hospital: site folder, cohort, approvals, participation in runs, individual results.

It neither imports the coordinator's code nor is imported by it.
"""
