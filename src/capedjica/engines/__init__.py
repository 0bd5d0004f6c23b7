"""Messages carried within one process, for trials and estimators; between machines: ``capedjica.flare``."""
