"""Small tools that know nothing of studies: settings files, locks, logs, text for people, files that last."""
