"""What runs at the coordinator: writing and planning a study, driving its run, its results and their report.

Nothing here imports the code of a site, nor is it imported by it.
"""
