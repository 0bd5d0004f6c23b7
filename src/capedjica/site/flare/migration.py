"""Migration of a site from before the carrier was separate: old kits are archived, the ledger is kept."""

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
    """Archive old kits without their network keys; yield a sentence about each study."""
    found = kits_from_before(home)
    if not found:
        yield f"Site {home.settings.name} has no old kits: nothing to do."
    for kit in found:
        yield _migrated(home, kit)


def _migrated(home: SiteHome, kit: Path) -> str:
    study = Study.load(kit / "study")
    begun = has_begun(home, study)
    aside = home.folder / PUT_ASIDE / kit.name
    try:
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        for part in _KEYS:
            # Network keys now belong to the carrier, and an old kit can no longer connect.
            shutil.rmtree(kit / part, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)
        kit.rename(aside)
    except OSError as error:
        raise InputError(f"{kit} cannot be moved to {aside}: {error.strerror}") from None
    title = f"'{printable(study.content.title)}' ({study.hash.hex()[:16]})"
    if begun:
        return (
            f"{title} was started by an earlier version and cannot continue: the coordinator must create a "
            f"new study. What was spent on it stays in the ledger. Its kit is in {aside}."
        )
    return (
        f"{title} has not started: ask the coordinator for a new kit (capedjica study provision --again) and "
        f"approve it. The old kit is in {aside}."
    )
