"""Two worktrees of this project measured in turns."""
