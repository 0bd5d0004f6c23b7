"""What runs at a hospital: its folder, its people, its approvals, its part in a run, its own results.

Nothing here imports the coordinator's code, nor is it imported by it.
"""
