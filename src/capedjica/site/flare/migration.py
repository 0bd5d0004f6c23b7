"""A site from before the network was kept apart: its kits are put aside, and its ledger goes on counting."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from capedjica.errors import InputError
from capedjica.site.approval.admission import has_begun
from capedjica.site.flare.kits import PUT_ASIDE, kits_from_before
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.tools.text import printable

_KEYS = ("startup", "local")


def migrate(home: SiteHome) -> Iterator[str]:
    """Put old kits aside, without their keys of the network; yield in words what becomes of each study."""
    found = kits_from_before(home)
    if not found:
        yield f"Site {home.settings.name} has no kits from before: there is nothing to do."
    for kit in found:
        yield _migrated(home, kit)


def _migrated(home: SiteHome, kit: Path) -> str:
    study = Study.load(kit / "study")
    begun = has_begun(home, study)
    aside = home.folder / PUT_ASIDE / kit.name
    try:
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        for part in _KEYS:
            # The key of the network would be the carrier's now, and that kit connects to nobody any more.
            shutil.rmtree(kit / part, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)
        kit.rename(aside)
    except OSError as error:
        raise InputError(f"{kit} cannot be put aside: {error.strerror}") from None
    title = f"'{printable(study.content.title)}' ({study.hash.hex()[:16]})"
    if begun:
        return (
            f"{title} was begun by an earlier version and cannot go on: it needs a new study. What was spent "
            f"on it stays in the ledger. Its kit is in {aside}."
        )
    return (
        f"{title} has not begun: let the coordinator make a new kit (capedjica study provision --again) and "
        f"approve it. The earlier one is in {aside}."
    )
