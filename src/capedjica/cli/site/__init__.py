"""Commands of a hospital's data manager: ``capedjica site`` and ``capedjica ledger``."""
