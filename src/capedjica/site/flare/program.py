"""FLARE's client or a site's job as a program: ``python -m capedjica.site.flare.program MODULE ARGUMENTS``.

Beyond the limits of all parties (:mod:`capedjica.flare.program`) it chooses to whom it listens
(:mod:`capedjica.site.flare.guard`).
"""

from __future__ import annotations

from capedjica.flare import program
from capedjica.site.flare import guard


def prepare() -> None:
    """Put limits and the guard into force, before a module of FLARE is run in this process."""
    program.limit()
    # defence: the-guard-at-a-sites-door
    guard.install()


def main() -> None:
    """Run a module of FLARE with the rest of the arguments."""
    prepare()
    program.run()


if __name__ == "__main__":
    main()
