"""What coordinator and sites agree on: ``study.toml``, its releases, and the text that sites approve."""
