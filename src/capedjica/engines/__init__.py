"""Transport of messages within one process, for trials and estimators."""
