"""Exclusive access to a site that takes part in no run, for changes such as a key rotation."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from capedjica.errors import InputError
from capedjica.site.home import SiteHome
from capedjica.tools.locks import locked


@contextmanager
def resting(home: SiteHome) -> Iterator[None]:
    """Lock a site against all studies it approved; refuse while it takes part in a run."""
    name = home.settings.name
    connected = connected_studies(home)
    if connected:
        raise InputError(
            f"site {name} is connected to the server of '{connected[0]}'; first run: capedjica site stop "
            f"{home.folder}"
        )
    studies = {path.stem for path in home.approved_path.glob("*.toml")}
    with ExitStack() as held:
        for study in sorted(studies):
            busy = f"site {name} is taking part in a run; wait until it ends, or stop it"
            held.enter_context(locked(home.approved_path / f".{study}.lock", busy))
        yield


def connected_studies(home: SiteHome) -> list[str]:
    """Return the titles of the studies to whose servers a site is connected."""
    if importlib.util.find_spec("psutil") is None:  # without it, nothing can have been started
        return []
    from capedjica.flare import processes
    from capedjica.site.flare import kits

    running = [kit for kit in kits.installed(home) if processes.running(kit.path) is not None]
    return [kit.study().content.title for kit in running]


def is_resting(home: SiteHome) -> bool:
    """Return whether a site currently takes part in no run."""
    try:
        with resting(home):
            return True
    except InputError:
        return False
