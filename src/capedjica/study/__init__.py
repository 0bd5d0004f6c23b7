"""The agreement between coordinator and sites: ``study.toml``, its releases and the approval text."""
