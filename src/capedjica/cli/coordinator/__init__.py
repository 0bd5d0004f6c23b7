"""Commands of the coordinator: write, plan, seal and run a study, and show its status and report."""
