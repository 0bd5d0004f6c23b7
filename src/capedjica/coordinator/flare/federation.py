"""What the coordinator of a sealed study keeps: one folder beside the study.toml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from capedjica.errors import InputError
from capedjica.study.study_file import Study
from capedjica.tools.version import __version__

SCHEMA: Final = 1
# The name in the certificate of the coordinator, who alone may give the server commands.
COORDINATOR: Final = "coordinator@capedjica.org"
AGGREGATOR_CLASS: Final = "capedjica.coordinator.flare.party.AggregatorParty"
FOLDER: Final = "federation"


class Seal(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of ``sealed.json``: what was sealed, when, and where its server will be."""

    schema: int = SCHEMA
    capedjica: str = __version__
    title: str
    study: str
    sites: tuple[str, ...]
    host: str
    port: int
    sealed: str


@dataclass(frozen=True)
class Federation:
    """The folder of a sealed study's kits."""

    path: Path
    seal: Seal

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
        if seal.capedjica != __version__:
            raise InputError(
                f"'{study.content.title}' was sealed by capedjica {seal.capedjica}, this is {__version__}: "
                "all parties must run the same version"
            )
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
        seal = msgspec.json.decode(file.read_bytes(), type=Seal)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not the seal of a study: {error}") from None
    if seal.schema != SCHEMA:
        raise InputError(f"{file}: schema must be {SCHEMA}, got {seal.schema}")
    return seal
