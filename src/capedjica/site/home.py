"""The folder of a site: ``site.toml``, identity, ledger and other private files, none of them shared."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from capedjica.data.layouts import DataKind
from capedjica.errors import InputError
from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Ledger, Policy, Totals, WrongKeyError
from capedjica.securesum.identity import Identity, PublicIdentity
from capedjica.tools.atomic_files import write_whole, writing
from capedjica.tools.toml import read_toml, toml_value

SCHEMA: Final = 1
_TEMPLATE: Final = """\
# This site's own settings. This file stays at the site and is not part of any study.
schema = {schema}
name = {name}

# Private key of this site. Back it up and keep it secret.
identity = "identity.pem"

# Ledger: every release is recorded here before it leaves.
ledger = "ledger.sqlite"

# Second copy of the signed head of the ledger, by which an outdated copy of the ledger is detected. Keep it
# on another disk that is not part of the ledger's backup.
head = {head}

[data]
# Folder of the scans, or a table with a row per participant; relative to the folder of this file.
path = {data}
# Content of that path. "files": tables of regions (.tsv, .csv, .1D, .npy, .mat), one per participant, with a
# row per time point. "nifti": 4-D images, one or more per participant. "bids": derivatives in the layout of
# fMRIPrep. "abide": ABIDE as downloaded by nilearn. "table": one table (.tsv, .csv) with a row per
# participant and a column participant_id. "auto": detect it.
kind = {data_kind}
# Pattern of the file names, for "files", "nifti" and "table".
pattern = "*"
# Task, template space and participants, for "bids"; all by default.
# task = "rest"
# space = "MNI152NLin2009cAsym"
# participants = ["01", "02"]
# ABIDE site to use, for "abide".
{abide_site}

[policy]
# Largest epsilon that may ever be spent on one subject of this site: by all studies in total, and by any one.
total_epsilon = {total_epsilon!r}
study_epsilon = {study_epsilon!r}
delta = {delta!r}

# Whether to take part in studies that require trust in the aggregator (mechanism "pooled" or "none") or use
# seeded noise; each such release is charged as infinity. Also whether to take part in studies that assume no
# colluding site (n_colluding = 0), which protect no participant from a curious site.{unprotected_note}
allow_unprotected = {allow_unprotected}

# Whether to approve every study within these limits automatically (without `capedjica site approve`), with
# the scans as they are when it runs.{approve_note}
auto_approve = {auto_approve}

# Fingerprints (13 groups) of keys that are no longer trusted. A study that includes one of them is refused.
# revoked = ["abcd efgh ijkl mnop qrst uvwx yz23 4567 abcd efgh ijkl mnop qrst"]

[carrier]
# The carrier, the program with network access, runs isolated from all of the above: as a separate user if
# this site is started by root, and confined by the operating system in any case. To use an existing account,
# and a folder that it can access:
# user = "capedjica-carrier"
# folder = "/var/lib/capedjica-carrier"
"""
_FINGERPRINT: Final = "[a-z2-7]{52}"
_EXPECTED: Final = "expected a site's folder or its site.toml; to create a site: capedjica site init NAME"
_NOBODY_REAL: Final = " The data of this site are simulated."


class PolicyTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The table ``[policy]`` of a ``site.toml``: the site's own limits.

    Attributes
    ----------
    total_epsilon, study_epsilon : float
        Largest epsilon that may ever be spent on one subject of this site: by all studies in total, and by
        any one.
    delta : float
        Delta at which these limits hold.
    allow_unprotected : bool
        Whether to take part in studies that require trust in the aggregator, use seeded noise or assume no
        colluding site; each such release is charged as infinity.
    auto_approve : bool
        Whether to approve every study within these limits automatically.
    revoked : list of str
        Fingerprints (13 groups) of keys that are no longer trusted; a study with one of them is refused.
    """

    total_epsilon: float
    study_epsilon: float
    delta: float
    allow_unprotected: bool = False
    auto_approve: bool = False
    revoked: tuple[str, ...] = ()


class DataTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The table ``[data]`` of a ``site.toml``: the location and layout of the scans.

    Attributes
    ----------
    path : str
        Folder of the scans, or a table with a row per participant.
    pattern : str
        Pattern of the file names, for "files", "nifti" and "table".
    kind : str
        "files": tables of regions, one per participant. "nifti": 4-D images. "bids": derivatives in the
        layout of fMRIPrep. "abide": ABIDE as downloaded by nilearn. "table": one table with a row per
        participant. "auto": detect it.
    task, space : str
        Task and template space, for "bids"; all by default.
    participants : list of str
        Participants to use, for "bids"; all by default.
    abide_site : str
        ABIDE site to use, for "abide".
    """

    path: str
    pattern: str = "*"
    kind: DataKind = "auto"
    task: str | None = None
    space: str | None = None
    participants: tuple[str, ...] = ()
    abide_site: str | None = None


class CarrierTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The table ``[carrier]`` of a ``site.toml``: the program with network access.

    Attributes
    ----------
    user : str
        Existing account under which the carrier runs.
    folder : str
        Folder that this account can access.
    """

    user: str | None = None
    folder: str = "carrier"


class SiteFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of a ``site.toml``, which stays at the site and is not part of any study.

    Attributes
    ----------
    schema : int
        Version of this format.
    name : str
        Name of the site, as on its card.
    identity : str
        File of the site's private key.
    ledger : str
        File of the ledger, in which every release is recorded before it leaves.
    head : str
        Second copy of the signed head of the ledger, by which an outdated copy of the ledger is detected.
    policy : PolicyTable
        The site's own limits.
    data : DataTable
        Location and layout of the scans.
    carrier : CarrierTable
        The program with network access.
    """

    schema: int
    name: str
    identity: str
    ledger: str
    head: str
    policy: PolicyTable
    data: DataTable = DataTable("data")
    carrier: CarrierTable = CarrierTable()


@dataclass(frozen=True)
class SiteHome:
    """A site's settings and the paths of its files."""

    folder: Path
    settings: SiteFile

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SiteHome:
        """Read a ``site.toml``, given its path or that of its folder."""
        file = Path(path) / "site.toml" if Path(path).is_dir() else Path(path)
        settings = read_toml(file, SiteFile, expected=_EXPECTED)
        if settings.schema != SCHEMA:
            raise InputError(f"{file}: schema must be {SCHEMA}, got {settings.schema}")
        for entry in settings.policy.revoked:
            if not re.fullmatch(_FINGERPRINT, _joined(entry)):
                raise InputError(
                    f"{file}: policy.revoked must list fingerprints of 13 groups of four letters and digits, "
                    f"got {entry[:80]!r}"
                )
        return cls(file.parent, settings)

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        name: str,
        total_epsilon: float,
        study_epsilon: float,
        delta: float,
        *,
        data: str = "data",
        data_kind: DataKind = "auto",
        abide_site: str | None = None,
        simulated: bool = False,
    ) -> SiteHome:
        """Create a site's folder, identity, card and commented ``site.toml``; never overwrite files.

        A simulated site automatically approves studies, including unprotected ones, and keeps the second
        copy of its ledger's head next to the first.
        """
        home = Path(folder)
        identity = Identity.generate()
        identity.public(name)  # refuses an invalid name before anything is written
        if Cap(study_epsilon, delta).mu2 > Cap(total_epsilon, delta).mu2:
            raise InputError(
                f"study_epsilon must be at most total_epsilon, {total_epsilon:g}; got {study_epsilon:g}"
            )
        if (home / "site.toml").exists():
            raise InputError(
                f"{home / 'site.toml'} already exists and is not overwritten; choose another --folder"
            )
        head = Path("ledger.head")
        if not simulated:
            state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
            head = state / "capedjica" / f"{name}-{identity.public_key.hex()[:16]}.head"
        text = _TEMPLATE.format(
            schema=SCHEMA,
            name=toml_value(name),
            head=toml_value(head.as_posix()),
            data=toml_value(data),
            data_kind=toml_value(data_kind),
            abide_site=f"abide_site = {toml_value(abide_site)}" if abide_site else '# abide_site = "NYU"',
            unprotected_note=_NOBODY_REAL if simulated else "",
            approve_note=_NOBODY_REAL if simulated else "",
            allow_unprotected=str(simulated).lower(),
            auto_approve=str(simulated).lower(),
            total_epsilon=float(total_epsilon),
            study_epsilon=float(study_epsilon),
            delta=float(delta),
        )
        with writing(home):
            home.mkdir(parents=True, exist_ok=True)
            identity.save(home / "identity.pem")
            write_whole(home / f"{name}.card", f"{identity.public(name).card}\n".encode())
            write_whole(home / "site.toml", text.encode(), new=True)
        return cls.load(home)

    @property
    def identity_path(self) -> Path:
        """Path of the site's private key."""
        return self.folder / Path(self.settings.identity).expanduser()

    @property
    def next_identity_path(self) -> Path:
        """Path of the new key during a key rotation."""
        path = self.identity_path.resolve()
        return path.with_name(f"{path.stem}-next{path.suffix}")

    def identity(self) -> Identity:
        """Read the site's private key."""
        return Identity.load(self.identity_path)

    def revokes(self, key: PublicIdentity) -> bool:
        """Return whether the site has revoked a key."""
        return _joined(key.fingerprint) in map(_joined, self.settings.policy.revoked)

    def card(self) -> PublicIdentity:
        """Return the public identity of this site."""
        return self.identity().public(self.settings.name)

    def write_card(self, identity: Identity, n_enrolled: int | None = None) -> str:
        """Write the card for a key of this site atomically, and return it."""
        card = identity.card(self.settings.name, n_enrolled)
        with writing(self.card_path):
            write_whole(self.card_path, f"{card}\n".encode())
        return card

    @property
    def card_path(self) -> Path:
        """Path of the card, the file to send to the coordinator."""
        return self.folder / f"{self.settings.name}.card"

    @property
    def policy(self) -> Policy:
        """Policy that the ledger enforces."""
        table = self.settings.policy
        return Policy(
            total=Cap(table.total_epsilon, table.delta),
            per_study=Cap(table.study_epsilon, table.delta),
            allow_non_private=table.allow_unprotected,
        )

    @property
    def data_path(self) -> Path:
        """Path of the scans."""
        return self.folder / Path(self.settings.data.path).expanduser()

    @property
    def approved_path(self) -> Path:
        """Folder of the copies of approved studies."""
        return self.folder / "approved"

    def note_over(self, study: bytes, when: str) -> None:
        """Record that a study, given by its hash, has finished; nothing is recorded if the disk is full."""
        with suppress(OSError):
            write_whole(self.approved_path / f"{study.hex()[:16]}.over", f"{when}\n".encode())

    def is_over(self, study: str) -> bool:
        """Return whether this site was notified that a study, given by its hash, has finished."""
        name = study[:16]
        # The second path was used by earlier versions, for studies with a kit.
        noted = (self.approved_path / f"{name}.over", self.folder / "studies" / name / "over.txt")
        return any(path.exists() for path in noted)

    @property
    def carrier_path(self) -> Path:
        """Folder of the carriers, the only part of the site that they can access."""
        return self.folder / Path(self.settings.carrier.folder).expanduser()

    @property
    def cache_path(self) -> Path:
        """Folder of the time series extracted from scans."""
        return self.folder / "cache"

    @property
    def results_path(self) -> Path:
        """Folder of the individual results, which never leave the site."""
        return self.folder / "results"

    @property
    def ledger_path(self) -> Path:
        """Path of the ledger."""
        return self.folder / self.settings.ledger

    @property
    def head_path(self) -> Path:
        """Path of the second copy of the ledger's head."""
        return self.folder / Path(self.settings.head).expanduser()

    def totals(self) -> Totals | None:
        """Return the total spent, or None without a ledger; no ledger is created."""
        if not self.has_ledger:
            return None
        with self.open_ledger() as ledger:
            return ledger.totals()

    def open_ledger(self, *, must_exist: bool = False, rebuild_head: bool = False) -> Ledger:
        """Open or create the site's ledger; rebuild a lost head only if ``rebuild_head``."""
        if must_exist and not self.has_ledger:
            raise InputError(
                f"site {self.settings.name} has no ledger yet ({self.ledger_path}): nothing has ever left it"
            )
        try:
            return self.open_ledger_as(self.identity(), rebuild_head=rebuild_head)
        except WrongKeyError:
            if not self.next_identity_path.exists():
                raise
            raise WrongKeyError(
                f"the key rotation of site {self.settings.name} was interrupted; to complete it: "
                f"capedjica site rotate-key {self.folder}"
            ) from None

    def open_ledger_as(self, identity: Identity, *, rebuild_head: bool = False) -> Ledger:
        """Open or create the site's ledger with the given key of the site."""
        head = self.head_path
        try:
            head.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            words = f"{head.parent}, the folder of the ledger's head, cannot be created: {error.strerror}"
            raise InputError(f"{words}; set head in {self.folder / 'site.toml'}") from None
        return Ledger.open(
            self.ledger_path,
            storage_key=identity.derive_key("ledger"),
            sign=identity.sign,
            verify=identity.public(self.settings.name).verify,
            policy=self.policy,
            head_path=head,
            rebuild_head=rebuild_head,
        )

    @property
    def has_ledger(self) -> bool:
        """Whether a ledger was ever created, even if it is missing now."""
        return self.ledger_path.exists() or self.head_path.exists()


def _joined(fingerprint: str) -> str:
    """Return a fingerprint without the spaces between its groups."""
    return "".join(fingerprint.split()).lower()
