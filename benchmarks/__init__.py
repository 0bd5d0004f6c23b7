"""Speed against peers and against the machine's limit: ``python -m benchmarks [section ...]``."""
