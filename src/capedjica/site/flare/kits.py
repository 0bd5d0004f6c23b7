"""What a site received from the coordinator: a study and the means to reach its server."""

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
from capedjica.flare.kit import STARTUP, connection, is_host
from capedjica.site.flare.settings import write_settings
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.tools.text import printable
from capedjica.tools.version import __version__

# A kit holds certificates, settings and an atlas.
_MOST_FILES: Final = 200
_MOST_BYTES: Final = 512 << 20
_PACKINGS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FILES: Final = {"kit.json", *(f"startup/{name}" for name in STARTUP)}


class Label(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of a ``kit.json``: whose kit this is, of which study, made by which version."""

    site: str
    study: str
    capedjica: str


@dataclass(frozen=True)
class Kit:
    """A kit in its folder."""

    path: Path
    label: Label

    @classmethod
    def load(cls, path: Path) -> Kit:
        """Read what a kit says of itself."""
        return cls(path, _read_label((path / "kit.json"), path))

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
        """Return where the aggregator is, as ``host:port``; refuse a kit that tells FLARE anything more."""
        file = self.path / "startup" / "fed_client.json"
        try:
            given = msgspec.json.decode(file.read_bytes())
            host, _, port = given["servers"][0]["service"]["target"].rpartition(":")
            sound = given == connection(self.label.site, self.label.study, host, int(port)) and is_host(host)
        except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
            sound = False
        # defence: a-kit-says-where-the-server-is
        if not sound:
            raise InputError(f"{file} does not say where the server is, and nothing else: it cannot be used")
        return f"{host}:{int(port)}"

    def check_version(self, name: Path | None = None) -> None:
        """Refuse a kit that another version made, also one that was received before an upgrade."""
        # defence: version-of-a-kit
        if self.label.capedjica != __version__:
            raise InputError(
                f"{name or self.path} was made by capedjica {printable(self.label.capedjica)}, this is "
                f"{__version__}: all parties must run the same version, from a study's first day to its last"
            )


def installed(home: SiteHome) -> list[Kit]:
    """Return the kits of a site, the latest first."""
    folders = [path.parent for path in kits_folder(home).glob("*/kit.json")]
    return [Kit.load(path) for path in sorted(folders, key=lambda path: -path.stat().st_mtime)]


def kits_folder(home: SiteHome) -> Path:
    """Return where a site keeps its kits."""
    return home.folder / "kits"


def find_kit(home: SiteHome, study: str | None = None) -> Kit:
    """Return the kit of a study, given by the beginning of its hash, or the latest."""
    kits = [kit for kit in installed(home) if kit.label.study.startswith(study or "")]
    if not kits:
        which = "" if study is None else f" of study {study[:16]}"
        raise InputError(
            f"site {home.settings.name} has no kit{which}; first: capedjica site approve KIT.zip "
            f"--site {home.folder}"
        )
    return kits[0]


def forget(home: SiteHome, study: str) -> Kit:
    """Remove the kit of a study, given by the beginning of its hash; the approval and the ledger stay."""
    kits = [kit for kit in installed(home) if study and kit.label.study.startswith(study)]
    if len(kits) != 1:
        raise InputError(
            f"site {home.settings.name} has {len(kits) or 'no'} kits of a study whose hash begins with "
            f"{printable(study[:64])!r}; one is to be named"
        )
    _check_unused(home, kits[0].path)
    try:
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
    sealed again, since its certificates end, comes in another kit, which replaces the first.
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
    place = _place(home, kit)
    if place.exists():
        if _files(place) == _files(kit.path):
            return
        shutil.rmtree(place)
    write_settings(kit.path, home.folder)
    kit.path.rename(place)


def _place(home: SiteHome, kit: Kit) -> Path:
    return kits_folder(home) / kit.label.study[:16]


def _files(kit: Path) -> dict[str, bytes]:
    """Return what a site needs of a kit to connect; the study is the same where its hash is."""
    return {path.name: path.read_bytes() for path in (kit / "startup").iterdir()}


def check_kit(home: SiteHome, kit: Kit, path: Path) -> None:
    """Refuse a kit that is not for this site, or cannot be used."""
    if kit.label.site != home.settings.name:
        raise InputError(
            f"{path} is the kit of site {printable(kit.label.site)}; this is site {home.settings.name}"
        )
    kit.check_version(path)
    check_certificates(kit.path)
    kit.server()
    kit.study()
    _check_earlier(home, kit)


def _check_earlier(home: SiteHome, kit: Kit) -> None:
    """Refuse to replace a kit that is in use."""
    place = _place(home, kit)
    if not place.exists() or _files(place) == _files(kit.path):
        return
    _check_unused(home, place)


def _check_unused(home: SiteHome, kit: Path) -> None:
    # Approving a study without a kit needs none of what runs kits.
    from capedjica.flare import processes

    if processes.running(kit) is not None:
        raise InputError(
            f"site {home.settings.name} is connected by its kit of this study; first: capedjica site stop "
            f"{home.folder}"
        )


def _read_label(file: Path, path: Path) -> Label:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Label)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a kit: {error}") from None
