"""General-purpose utilities: settings files, locks, logs, text output, atomic writes and confinement."""
