"""Kits that a site received from the coordinator: a study and the credentials to reach its server.

A kit is stored in two places. The study and the identity of the coordinator belong to the agent; the network
key, the certificates and FLARE's working folder belong to the carrier.
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

# A kit contains certificates, settings and an atlas.
_MOST_FILES: Final = 200
_MOST_BYTES: Final = 512 << 20
_PACKINGS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FILES: Final = {"kit.json", *(f"startup/{name}" for name in STARTUP)}
# In the agent's part: the time at which the coordinator ended the study.
OVER: Final = "over.txt"
# Folder of kits from before the carrier was separate.
_BEFORE: Final = "kits"
# Folder to which `capedjica site migrate` moves them.
PUT_ASIDE: Final = "kits-before"


@dataclass(frozen=True)
class Kit:
    """A kit: the folder of the agent's part, and its label."""

    path: Path
    label: Label

    @classmethod
    def load(cls, path: Path) -> Kit:
        """Read a kit and its label."""
        file = path / "kit.json"
        try:
            label = msgspec.json.decode(file.read_bytes(), type=Label)
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not a kit of this version: {error}") from None
        label.key  # noqa: B018 (refuses an invalid key)
        return cls(path, label)

    @property
    def workspace(self) -> Path:
        """Working folder of the carrier."""
        return carrier_folder(SiteHome.load(self.path.parents[1]), self.path.name)

    def study(self) -> Study:
        """Return the study; refuse one that does not match the kit's label."""
        study = Study.load(self.path / "study")
        # defence: a-kit-holds-the-study-it-names
        if study.hash.hex() != self.label.study:
            raise InputError(
                f"{self.path} contains study {study.hash.hex()[:16]}, but its label names "
                f"{self.label.study[:16]}; ask the coordinator for a new kit"
            )
        return study

    @property
    def title(self) -> str:
        """Title of the study; empty if the study cannot be read."""
        try:
            return self.study().content.title
        except InputError:
            return ""

    def server(self) -> str:
        """Return the address of the server, as ``host:port``."""
        if not is_host(self.label.host) or not 1 <= self.label.port <= 65535:
            raise InputError(
                f"{self.path} has no valid server address (host:port); ask the coordinator for a new kit"
            )
        return f"{self.label.host}:{self.label.port}"


def carrier_folder(home: SiteHome, study: str) -> Path:
    """Return the working folder of the carrier of a study."""
    return home.carrier_path / study[:16]


def installed(home: SiteHome, study: str = "") -> list[Kit]:
    """Return the kits of a site, latest first, of studies with this title or beginning of their hash."""
    folders = [path.parent for path in kits_folder(home).glob("*/kit.json")]
    kits = [Kit.load(path) for path in sorted(folders, key=lambda path: -path.stat().st_mtime)]
    return [kit for kit in kits if kit.label.study.startswith(study) or kit.title == study]


def kits_folder(home: SiteHome) -> Path:
    """Return the folder of the agent's part of a site's kits."""
    return home.folder / "studies"


def find_kit(home: SiteHome, study: str | None = None) -> Kit:
    """Return the kit of a study, given by its title or a prefix of its hash, or the latest kit."""
    kits = installed(home, study or "")
    if not kits:
        which = "" if study is None else f" of study {printable(study[:64])}"
        early = " (to move old kits: capedjica site migrate)" if kits_from_before(home) else ""
        raise InputError(
            f"site {home.settings.name} has no kit{which}{early}; first run: capedjica site approve KIT.zip "
            f"{home.folder}"
        )
    return kits[0]


def kits_from_before(home: SiteHome) -> list[Path]:
    """Return the folders of kits from before the carrier was a separate program."""
    return sorted(path.parent for path in (home.folder / _BEFORE).glob("*/kit.json"))


def forget(home: SiteHome, study: str) -> Kit:
    """Remove the kit of a study, given by its title or a prefix of its hash; approval and ledger stay."""
    kits = installed(home, study) if study else []
    if len(kits) != 1:
        raise InputError(
            f"site {home.settings.name} has {len(kits) or 'no'} kits of studies whose title is, or whose "
            f"hash starts with, {printable(study[:64])!r}; expected exactly one. Its kits: {_listed(home)}"
        )
    _check_unused(home, kits[0].path)
    try:
        shutil.rmtree(kits[0].workspace, ignore_errors=True)
        shutil.rmtree(kits[0].path)
    except OSError as error:
        raise InputError(f"{kits[0].path} cannot be removed: {error.strerror}") from None
    return kits[0]


def _listed(home: SiteHome) -> str:
    kits = [f"{printable(kit.title)!r} ({kit.label.study[:16]})" for kit in installed(home)]
    return ", ".join(kits) or "none"


def open_kit(path: Path, into: Path) -> Kit:
    """Validate and unpack a received kit into a folder that must not exist."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, path)
            into.mkdir(mode=0o700)
            archive.extractall(into)
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        shutil.rmtree(into, ignore_errors=True)
        why = getattr(error, "strerror", None)
        words = f"{why}; expected a kit (NAME.zip)" if why else error
        raise InputError(f"{path} cannot be unpacked: {words}") from None
    for folder, _, files in os.walk(into):
        for name in files:
            (Path(folder) / name).chmod(0o600)
    return Kit.load(into)


def coordinator_of(study: Study) -> str:
    """Return the fingerprint of the coordinator's key in the unpacked kit of a study."""
    return Kit.load(study.folder.parent).label.key.fingerprint


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    members = archive.infolist()
    missing = _FILES - set(archive.namelist())
    if missing:
        raise InputError(f"{path} is not a kit: it lacks {min(missing)}")
    if len(members) > _MOST_FILES or sum(member.file_size for member in members) > _MOST_BYTES:
        raise InputError(
            f"{path} is not a kit: expected at most {_MOST_FILES} files and {_MOST_BYTES >> 20} MiB"
        )
    for member in members:
        parts = PurePosixPath(member.filename).parts
        kind = stat.S_IFMT(member.external_attr >> 16)
        public = parts[:1] == ("study",) and ".." not in parts and "\\" not in member.filename
        # defence: a-kit-brings-no-settings
        beside = member.filename not in _FILES and not public
        if beside or kind not in (0, stat.S_IFREG, stat.S_IFDIR) or member.compress_type not in _PACKINGS:
            raise InputError(f"{path} is not a kit: it contains {printable(member.filename)!r}")


@contextmanager
def received(home: SiteHome, path: Path) -> Iterator[tuple[Study, Callable[[], None]]]:
    """Yield the study of a kit or study.toml, and a function that installs the kit.

    A kit that is not installed leaves nothing behind; installing the same kit again changes nothing. A study
    that was sealed again because its certificates expire comes in a new kit, which replaces the first if the
    same coordinator signed it.
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
    """Install a kit; a new kit for the same study replaces the earlier one."""
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
    """Return whether exactly this kit is installed; equal hashes imply equal studies."""
    try:
        kept = Kit.load(_place(home, kit))
        return kept.label == kit.label and startup_files(kept.workspace) == startup_files(kit.path)
    except InputError:
        return False


def check_kit(home: SiteHome, kit: Kit, path: Path) -> None:
    """Raise InputError for a kit that is not for this site or is unusable."""
    if kit.label.site != home.settings.name:
        raise InputError(
            f"{path} is the kit of site {printable(kit.label.site)}, but this is site {home.settings.name}"
        )
    check_protocol(kit.label.protocol, str(path))
    # defence: kits-are-signed
    if not kit.label.is_signed(startup_files(kit.path)):
        raise InputError(
            f"{path} is not signed by the coordinator it names, so it was modified; ask for it again"
        )
    check_certificates(kit.path)
    kit.server()
    _check_begun_before(home, kit)
    _check_earlier(home, kit)


def _check_begun_before(home: SiteHome, kit: Kit) -> None:
    """Raise InputError for a study started with an old kit, which cannot be resumed."""
    study, name = kit.study(), kit.label.study[:16]
    earlier = [home.folder / folder / name for folder in (_BEFORE, PUT_ASIDE)]
    if any((path / "kit.json").exists() for path in earlier) and has_begun(home, study):
        raise InputError(
            f"site {home.settings.name} started '{printable(study.content.title)}' with an earlier version, "
            "and it cannot continue: the coordinator must create a new study. What was spent on it stays in "
            "the ledger"
        )


def _check_earlier(home: SiteHome, kit: Kit) -> None:
    """Refuse to replace a kit that is in use, signed by another coordinator, or of an ended study."""
    place = _place(home, kit)
    if not place.exists() or _is_kept(home, kit):
        return
    if (place / OVER).exists():
        raise InputError(f"the coordinator has ended this study ({place / OVER}); it needs no new kit")
    earlier = Kit.load(place).label
    # defence: the-coordinators-key-is-pinned
    if earlier.coordinator != kit.label.coordinator:
        raise InputError(
            f"the kit is signed by a different coordinator than the kit that site {home.settings.name} "
            f"approved: got fingerprint {kit.label.key.fingerprint}, expected {earlier.key.fingerprint}"
        )
    _check_unused(home, place)


def _check_unused(home: SiteHome, kit: Path) -> None:
    # Imported here: approving a study without a kit must not require the modules that run kits.
    from capedjica.flare import processes
    from capedjica.site.agent.owner_commands import standing

    if processes.running(kit) is not None or standing(Kit.load(kit)) is not None:
        raise InputError(
            f"site {home.settings.name} is connected to the server of this study; first run: "
            f"capedjica site stop {home.folder}"
        )
