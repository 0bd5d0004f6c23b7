"""What a site received from the coordinator: a study, and the means to reach its server.

A kit is kept in two places. The study, and who made the kit, are the agent's; the key and the certificates of
the network, with the folder in which FLARE works, are the carrier's.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from capedjica.errors import InputError
from capedjica.flare.certificates import check_certificates
from capedjica.flare.kit import STARTUP, Label, check_protocol, is_host, startup_files
from capedjica.site.approval.admission import has_begun
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.tools.text import printable

# A kit holds certificates, settings and an atlas.
_MOST_FILES: Final = 200
_MOST_BYTES: Final = 512 << 20
_PACKINGS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FILES: Final = {"kit.json", *(f"startup/{name}" for name in STARTUP)}
# In the agent's part: when the coordinator ended the study.
OVER: Final = "over.txt"
# Kits as they were before the network was kept apart.
_BEFORE: Final = "kits"
# Where `capedjica site migrate` puts them.
PUT_ASIDE: Final = "kits-before"


@dataclass(frozen=True)
class Kit:
    """A kit: the agent's part in its folder, and what it says of itself."""

    path: Path
    label: Label

    @classmethod
    def load(cls, path: Path) -> Kit:
        """Read what a kit says of itself."""
        file = path / "kit.json"
        try:
            label = msgspec.json.decode(file.read_bytes(), type=Label)
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not a kit of this version: {error}") from None
        label.key  # noqa: B018 (refuses what is no key)
        return cls(path, label)

    @property
    def workspace(self) -> Path:
        """Where the carrier works."""
        return carrier_folder(SiteHome.load(self.path.parents[1]), self.path.name)

    def study(self) -> Study:
        """Return the study; refuse one that is not what the kit was made for."""
        study = Study.load(self.path / "study")
        # defence: a-kit-holds-the-study-it-names
        if study.hash.hex() != self.label.study:
            raise InputError(
                f"{self.path} holds another study than it says: {study.hash.hex()[:16]}, not "
                f"{self.label.study[:16]}"
            )
        return study

    def server(self) -> str:
        """Return where the aggregator is, as ``host:port``."""
        if not is_host(self.label.host) or not 1 <= self.label.port <= 65535:
            raise InputError(f"{self.path} does not say where the server is: it cannot be used")
        return f"{self.label.host}:{self.label.port}"


def carrier_folder(home: SiteHome, study: str) -> Path:
    """Return where the carrier of a study works."""
    return home.carrier_path / study[:16]


def installed(home: SiteHome, study: str = "") -> list[Kit]:
    """Return the kits of a site, the latest first, of studies whose hash begins so."""
    folders = [path.parent for path in kits_folder(home).glob("*/kit.json")]
    kits = [Kit.load(path) for path in sorted(folders, key=lambda path: -path.stat().st_mtime)]
    return [kit for kit in kits if kit.label.study.startswith(study)]


def kits_folder(home: SiteHome) -> Path:
    """Return where a site keeps the agent's part of its kits."""
    return home.folder / "studies"


def find_kit(home: SiteHome, study: str | None = None) -> Kit:
    """Return the kit of a study, given by the beginning of its hash, or the latest."""
    kits = installed(home, study or "")
    if not kits:
        which = "" if study is None else f" of study {study[:16]}"
        early = " (kits from before: capedjica site migrate)" if kits_from_before(home) else ""
        raise InputError(
            f"site {home.settings.name} has no kit{which}{early}; first: capedjica site approve KIT.zip "
            f"--site {home.folder}"
        )
    return kits[0]


def kits_from_before(home: SiteHome) -> list[Path]:
    """Return the folders of kits in which the network and the site's own program were one."""
    return sorted(path.parent for path in (home.folder / _BEFORE).glob("*/kit.json"))


def forget(home: SiteHome, study: str) -> Kit:
    """Remove the kit of a study, given by the beginning of its hash; the approval and the ledger stay."""
    kits = installed(home, study) if study else []
    if len(kits) != 1:
        raise InputError(
            f"site {home.settings.name} has {len(kits) or 'no'} kits of a study whose hash begins with "
            f"{printable(study[:64])!r}; one is to be named"
        )
    _check_unused(home, kits[0].path)
    try:
        shutil.rmtree(kits[0].workspace, ignore_errors=True)
        shutil.rmtree(kits[0].path)
    except OSError as error:
        raise InputError(f"{kits[0].path} cannot be removed: {error.strerror}") from None
    return kits[0]


def open_kit(path: Path, into: Path) -> Kit:
    """Unpack a kit that was received, strictly; into a folder that must not exist."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, path)
            into.mkdir(mode=0o700)
            archive.extractall(into)
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        shutil.rmtree(into, ignore_errors=True)
        raise InputError(f"{path} cannot be unpacked: {error}") from None
    for folder, _, files in os.walk(into):
        for name in files:
            (Path(folder) / name).chmod(0o600)
    return Kit.load(into)


def coordinator_of(path: Path) -> str:
    """Return the fingerprint of the coordinator's key in a kit that was received."""
    try:
        with zipfile.ZipFile(path) as archive:
            return msgspec.json.decode(archive.read("kit.json"), type=Label).key.fingerprint
    except (OSError, LookupError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a kit of this version: {error}") from None


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    members = archive.infolist()
    missing = _FILES - set(archive.namelist())
    if missing:
        raise InputError(f"{path} is not a kit: there is no {min(missing)} in it")
    if len(members) > _MOST_FILES or sum(member.file_size for member in members) > _MOST_BYTES:
        raise InputError(f"{path} is not a kit: it is too large")
    for member in members:
        parts = PurePosixPath(member.filename).parts
        kind = stat.S_IFMT(member.external_attr >> 16)
        public = parts[:1] == ("study",) and ".." not in parts and "\\" not in member.filename
        # defence: a-kit-brings-no-settings
        beside = member.filename not in _FILES and not public
        if beside or kind not in (0, stat.S_IFREG, stat.S_IFDIR) or member.compress_type not in _PACKINGS:
            raise InputError(f"{path} is not a kit: it holds {printable(member.filename)!r}")


@contextmanager
def received(home: SiteHome, path: Path) -> Iterator[tuple[Study, Callable[[], None]]]:
    """Yield the study that a site was given, in a kit or by itself, and what keeps the kit.

    A kit that is not kept leaves nothing behind; keeping the same again changes nothing. A study that was
    sealed again, since its certificates end, comes in another kit, which replaces the first if the same
    coordinator signed it.
    """
    if path.suffix != ".zip":
        yield Study.load(path), lambda: None
        return
    kits = kits_folder(home)
    try:
        kits.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".received-", dir=kits, ignore_cleanup_errors=True
        ) as scratch:
            kit = open_kit(path, Path(scratch) / "kit")
            check_kit(home, kit, path)
            yield kit.study(), lambda: _keep(home, kit)
    except OSError as error:
        raise InputError(f"{kits} cannot be written: {error.strerror}") from None


def _keep(home: SiteHome, kit: Kit) -> None:
    """Keep a kit; one made anew for the same study takes the place of the earlier one."""
    from capedjica.site.flare.starting import write_workspace

    place = _place(home, kit)
    if _is_kept(home, kit):
        return
    write_workspace(kit, carrier_folder(home, kit.label.study))
    shutil.rmtree(kit.path / "startup")
    shutil.rmtree(place, ignore_errors=True)
    kit.path.rename(place)


def _place(home: SiteHome, kit: Kit) -> Path:
    return kits_folder(home) / kit.label.study[:16]


def _is_kept(home: SiteHome, kit: Kit) -> bool:
    """Whether this very kit is here; the study is the same where its hash is."""
    try:
        kept = Kit.load(_place(home, kit))
        return kept.label == kit.label and startup_files(kept.workspace) == startup_files(kit.path)
    except InputError:
        return False


def check_kit(home: SiteHome, kit: Kit, path: Path) -> None:
    """Refuse a kit that is not for this site, or cannot be used."""
    if kit.label.site != home.settings.name:
        raise InputError(
            f"{path} is the kit of site {printable(kit.label.site)}; this is site {home.settings.name}"
        )
    check_protocol(kit.label.protocol, str(path))
    # defence: kits-are-signed
    if not kit.label.is_signed(startup_files(kit.path)):
        raise InputError(f"{path} is not signed by the coordinator whom it names: it was changed on its way")
    check_certificates(kit.path)
    kit.server()
    _check_begun_before(home, kit)
    _check_earlier(home, kit)


def _check_begun_before(home: SiteHome, kit: Kit) -> None:
    """Refuse a study that was begun by a kit from before: its releases cannot be gone on with."""
    study, name = kit.study(), kit.label.study[:16]
    earlier = [home.folder / folder / name for folder in (_BEFORE, PUT_ASIDE)]
    if any((path / "kit.json").exists() for path in earlier) and has_begun(home, study):
        raise InputError(
            f"site {home.settings.name} began '{printable(study.content.title)}' by an earlier version, and "
            "it cannot go on: it needs a new study. What was spent on it stays in the ledger"
        )


def _check_earlier(home: SiteHome, kit: Kit) -> None:
    """Refuse to replace a kit that is in use, by one of another coordinator, or of a study that is over."""
    place = _place(home, kit)
    if not place.exists() or _is_kept(home, kit):
        return
    if (place / OVER).exists():
        raise InputError(f"the coordinator has ended this study ({place / OVER}): it needs no new kit")
    earlier = Kit.load(place).label
    # defence: the-coordinators-key-is-pinned
    if earlier.coordinator != kit.label.coordinator:
        raise InputError(
            f"the kit is signed by another coordinator than that of the kit that site {home.settings.name} "
            f"approved: fingerprint {kit.label.key.fingerprint}, pinned is {earlier.key.fingerprint}"
        )
    _check_unused(home, place)


def _check_unused(home: SiteHome, kit: Path) -> None:
    # Approving a study without a kit needs none of what runs kits.
    from capedjica.flare import processes
    from capedjica.site.agent.owner_commands import standing

    if processes.running(kit) is not None or standing(Kit.load(kit)) is not None:
        raise InputError(
            f"site {home.settings.name} is connected by its kit of this study; first: capedjica site stop "
            f"{home.folder}"
        )
