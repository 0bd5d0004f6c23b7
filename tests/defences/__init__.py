"""Every defence of the threat model taken away, one at a time, to see that its test notices."""
