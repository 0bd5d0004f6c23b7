"""A site's own process during a study: keys, ledger, scans and masks, two sockets, and no network."""
