"""The agent, a site's own process during a study: keys, ledger, scans, masks, two sockets, no network."""
