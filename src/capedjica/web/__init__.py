"""Local web pages for a data manager and for the coordinator, on top of the command line."""
