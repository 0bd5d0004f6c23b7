"""Folder of the coordinator of a sealed study, next to its study.toml."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from capedjica.errors import InputError
from capedjica.flare.kit import PROTOCOL, check_protocol, write_json
from capedjica.securesum.identity import Identity
from capedjica.study.study_file import Study
from capedjica.tools.version import __version__

SCHEMA: Final = 2
FOLDER: Final = "federation"
KEY: Final = "coordinator.pem"
_CONNECTED: Final = "connected.json"


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of ``sealed.json`` in all versions: the study, the time of sealing and the server's address."""

    schema: int = SCHEMA
    title: str
    study: str
    sites: tuple[str, ...]
    host: str
    port: int
    sealed: str


class Seal(Sealed, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of ``sealed.json``."""

    # The package version is for information; the protocol version is checked.
    capedjica: str = __version__
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Federation:
    """The folder of a sealed study's kits."""

    path: Path
    seal: Sealed

    @classmethod
    def beside(cls, study: Study) -> Federation:
        """Return the federation of a study; refuse a study that is not sealed, or was changed since."""
        path = study.folder / FOLDER
        seal = read_seal(path)
        if seal is None:
            raise InputError(
                f"'{study.content.title}' is not sealed: {path} does not exist. Seal it first with: "
                f"capedjica study provision {study.folder / 'study.toml'}"
            )
        if seal.study != study.hash.hex():
            raise InputError(
                f"'{study.content.title}' was changed after it was sealed: its hash is "
                f"{study.hash.hex()[:16]}, expected {seal.study[:16]}, sealed on {seal.sealed}. Undo the "
                "change, or create a new study in its own folder"
            )
        check_protocol(seal.protocol, f"the seal of '{study.content.title}'")
        return cls(path, seal)

    @property
    def server_kit(self) -> Path:
        """Kit of the aggregator's server."""
        return self.path / "server"

    @property
    def admin_kit(self) -> Path:
        """Kit of the coordinator, the only party that may submit jobs to the server."""
        return self.path / "coordinator"

    @property
    def key_path(self) -> Path:
        """Coordinator's key, which signs messages to sites that are not part of the contract."""
        return self.path / KEY

    @property
    def root_path(self) -> Path:
        """Folder of the root's key, which can issue certificates for this study."""
        return self.path / "root"

    def key(self) -> Identity:
        """Read the coordinator's key."""
        return Identity.load(self.key_path)

    @property
    def run_lock(self) -> Path:
        """Lock held while the study is run or its kits are created again."""
        return self.path / ".run.lock"

    @property
    def site_kits(self) -> Path:
        """Folder of the kits to be sent to the sites."""
        return self.path / "kits"


def read_seal(path: Path) -> Seal | None:
    """Return the seal in the folder of a federation; None if there is none."""
    file = path / "sealed.json"
    try:
        data = file.read_bytes()
        schema = msgspec.json.decode(data, type=Sealed).schema
        if schema != SCHEMA:
            raise ValueError(
                f"schema must be {SCHEMA}, got {schema}. If the study was sealed by an earlier version and "
                "not yet started, seal it again with: capedjica study provision --again"
            )
        return msgspec.json.decode(data, type=Seal)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not a valid seal of a study: {error}") from None


def sealed_before(study: Study) -> Federation | None:
    """Return the federation of a study that was sealed by an earlier version; otherwise None."""
    path = study.folder / FOLDER
    try:
        found = msgspec.json.decode((path / "sealed.json").read_bytes(), type=Sealed)
    except (OSError, ValueError):
        return None
    return Federation(path, found) if found.schema < SCHEMA and found.study == study.hash.hex() else None


def note_connected(federation: Federation, connected: Mapping[str, bool]) -> None:
    """Write which sites are connected, for ``capedjica status``."""
    with suppress(OSError):
        write_json(federation.path / _CONNECTED, dict(connected))


def read_connected(federation: Federation) -> dict[str, bool]:
    """Return which sites were connected at the last check."""
    try:
        return msgspec.json.decode((federation.path / _CONNECTED).read_bytes(), type=dict[str, bool])
    except (OSError, ValueError):
        return {}
