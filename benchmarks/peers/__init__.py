"""What is measured beside ours: other people's packages, each in an environment of its own, and an oracle."""
