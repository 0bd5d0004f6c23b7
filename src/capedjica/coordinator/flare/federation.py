"""What the coordinator of a sealed study keeps: one folder beside the study.toml."""

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
    """What every version has written down: what was sealed, when, and where its server will be."""

    schema: int = SCHEMA
    title: str
    study: str
    sites: tuple[str, ...]
    host: str
    port: int
    sealed: str


class Seal(Sealed, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of ``sealed.json``."""

    # By which package, for people; the protocol is what counts.
    capedjica: str = __version__
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Federation:
    """The folder of a sealed study's kits."""

    path: Path
    seal: Sealed

    @classmethod
    def beside(cls, study: Study) -> Federation:
        """Return the federation of a study; refuse where there is none, or one of another study."""
        path = study.folder / FOLDER
        seal = read_seal(path)
        if seal is None:
            raise InputError(
                f"'{study.content.title}' is not sealed: {path} does not exist. First: capedjica "
                f"study provision {study.folder / 'study.toml'}"
            )
        if seal.study != study.hash.hex():
            raise InputError(
                f"'{study.content.title}' was changed after it was sealed: its hash is "
                f"{study.hash.hex()[:16]}, sealed was {seal.study[:16]} on {seal.sealed}. A changed study is "
                "a new study, in a folder of its own"
            )
        check_protocol(seal.protocol, f"the seal of '{study.content.title}'")
        return cls(path, seal)

    @property
    def server_kit(self) -> Path:
        """Of the aggregator's server."""
        return self.path / "server"

    @property
    def admin_kit(self) -> Path:
        """Of the coordinator, who alone may hand studies to the server."""
        return self.path / "coordinator"

    @property
    def key_path(self) -> Path:
        """Of the coordinator's key, which signs what sites are told outside of the contract."""
        return self.path / KEY

    @property
    def root_path(self) -> Path:
        """Of the root's key: who has it can make certificates for this study."""
        return self.path / "root"

    def key(self) -> Identity:
        """Read the coordinator's key."""
        return Identity.load(self.key_path)

    @property
    def run_lock(self) -> Path:
        """Held by whoever runs the study, or makes its kits anew."""
        return self.path / ".run.lock"

    @property
    def site_kits(self) -> Path:
        """Where the kits are that sites are to be given."""
        return self.path / "kits"


def read_seal(path: Path) -> Seal | None:
    """Return the seal in the folder of a federation; None where there is none."""
    file = path / "sealed.json"
    try:
        data = file.read_bytes()
        schema = msgspec.json.decode(data, type=Sealed).schema
        if schema != SCHEMA:
            raise ValueError(
                f"schema must be {SCHEMA}, got {schema}. A study that was sealed by an earlier version "
                "and has not begun is sealed anew by: capedjica study provision --again"
            )
        return msgspec.json.decode(data, type=Seal)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not the seal of a study: {error}") from None


def sealed_before(study: Study) -> Federation | None:
    """Return the federation of a study that an earlier version sealed; None where none did."""
    path = study.folder / FOLDER
    try:
        found = msgspec.json.decode((path / "sealed.json").read_bytes(), type=Sealed)
    except (OSError, ValueError):
        return None
    return Federation(path, found) if found.schema < SCHEMA and found.study == study.hash.hex() else None


def note_connected(federation: Federation, connected: Mapping[str, bool]) -> None:
    """Write down which sites are connected, for whoever asks from another terminal."""
    with suppress(OSError):
        write_json(federation.path / _CONNECTED, dict(connected))


def read_connected(federation: Federation) -> dict[str, bool]:
    """Return which sites were connected when it was last looked at."""
    try:
        return msgspec.json.decode((federation.path / _CONNECTED).read_bytes(), type=dict[str, bool])
    except (OSError, ValueError):
        return {}
