"""FLARE's server or its job as a program: ``python -m capedjica.coordinator.flare.program MODULE ARGUMENTS``.

Beyond the limits of all parties (:mod:`capedjica.flare.program`) it takes from each site what that says for
itself (:mod:`capedjica.coordinator.flare.origins`).
"""

from __future__ import annotations

from capedjica.coordinator.flare import origins
from capedjica.flare import program


def prepare() -> None:
    """Put limits into force, before a module of FLARE is run in this process."""
    program.limit()
    # defence: in-the-servers-name-real-processes
    origins.install()


def main() -> None:
    """Run a module of FLARE with the rest of the arguments."""
    prepare()
    program.run()


if __name__ == "__main__":
    main()
