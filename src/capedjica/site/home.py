"""What a site keeps on its own machine: ``site.toml``, its identity and its ledger; none of it is shared."""

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
# This site's own settings. They stay here: the study never sees them.
schema = {schema}
name = {name}

# The private key of this site. Keep it, and keep it to yourself.
identity = "identity.pem"

# Everything that ever leaves is recorded here first.
ledger = "ledger.sqlite"

# The end of the ledger, signed, in a second place: best on another disk, outside the backup of the first,
# so that an older copy of the ledger is noticed.
head = {head}

[data]
# The folder of the scans; or a table with a row per person.
path = {data}
# What is in it. "files": tables of regions (.tsv, .csv, .1D, .npy, .mat), one per person, with a row per time
# point. "nifti": 4-D images, one or more per person. "bids": derivatives as fMRIPrep writes them. "abide":
# nilearn's copy of ABIDE. "table": one table (.tsv, .csv) with a row per person, named in its participant_id.
# "auto": what it looks like.
kind = {data_kind}
# Which of its files, for "files", "nifti" and "table".
pattern = "*"
# Which task, which template space and which people, for "bids"; all of them when not given.
# task = "rest"
# space = "MNI152NLin2009cAsym"
# participants = ["01", "02"]
# Which of its sites this one is, for "abide".
{abide_site}

[policy]
# The most that may ever be spent on one subject of this site: by all studies together, and by any one.
total_epsilon = {total_epsilon!r}
study_epsilon = {study_epsilon!r}
delta = {delta!r}

# Take part where the aggregator is trusted with more than the guarantee (mechanism "pooled" or "none") or
# noise is seeded? Each such release is charged with infinity. Or where no site is assumed to side with the
# aggregator (n_colluding = 0), so that nobody is protected from a curious site?{unprotected_note}
allow_unprotected = {allow_unprotected}

# Approve every study within these limits without asking (`capedjica site approve`), with the scans as they
# are when it runs?{approve_note}
auto_approve = {auto_approve}

# Keys that are trusted no more, by their fingerprints of 13 groups: a study in which one of them has a part
# is refused.
# revoked = ["abcd efgh ijkl mnop qrst uvwx yz23 4567 abcd efgh ijkl mnop qrst"]

[carrier]
# The program that has the network runs apart from all of the above: as a user of its own if this site is
# started by root, and confined by the system in any case. A prepared account, and a folder that it can reach:
# user = "capedjica-carrier"
# folder = "/var/lib/capedjica-carrier"
"""
_FINGERPRINT: Final = "[a-z2-7]{52}"
_EXPECTED: Final = "expected a site's folder or its site.toml; to make a site: capedjica site init NAME"
_NOBODY_REAL: Final = " Nobody real is in these data."


class PolicyTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The table ``[policy]`` of a ``site.toml``."""

    total_epsilon: float
    study_epsilon: float
    delta: float
    allow_unprotected: bool = False
    auto_approve: bool = False
    revoked: tuple[str, ...] = ()


class DataTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The table ``[data]`` of a ``site.toml``."""

    path: str
    pattern: str = "*"
    kind: DataKind = "auto"
    task: str | None = None
    space: str | None = None
    participants: tuple[str, ...] = ()
    abide_site: str | None = None


class CarrierTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The table ``[carrier]`` of a ``site.toml``."""

    user: str | None = None
    folder: str = "carrier"


class SiteFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of a ``site.toml``."""

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
    """A site's settings and where its files are."""

    folder: Path
    settings: SiteFile

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SiteHome:
        """Read a ``site.toml``, given itself or its folder."""
        file = Path(path) / "site.toml" if Path(path).is_dir() else Path(path)
        settings = read_toml(file, SiteFile, expected=_EXPECTED)
        if settings.schema != SCHEMA:
            raise InputError(f"{file}: schema must be {SCHEMA}, got {settings.schema}")
        for entry in settings.policy.revoked:
            if not re.fullmatch(_FINGERPRINT, _joined(entry)):
                raise InputError(
                    f"{file}: policy.revoked names fingerprints, 13 groups of four letters and digits, got "
                    f"{entry[:80]!r}"
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
        """Make a site: its folder, identity, card and commented ``site.toml``; never over existing files.

        Nobody real is in the data of a simulated site, so it approves studies by itself, also unprotected
        ones, and keeps the second copy of its ledger's head beside the first.
        """
        home = Path(folder)
        identity = Identity.generate()
        identity.public(name)  # refuses a bad name before anything is written
        if Cap(study_epsilon, delta).mu2 > Cap(total_epsilon, delta).mu2:
            raise InputError(
                f"the limit of one study, epsilon {study_epsilon:g}, is above that of all together, "
                f"{total_epsilon:g}; expected at most that"
            )
        if (home / "site.toml").exists():
            raise InputError(f"{home / 'site.toml'} exists already and is not overwritten")
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
        """Where the site's key is."""
        return self.folder / Path(self.settings.identity).expanduser()

    @property
    def next_identity_path(self) -> Path:
        """Where the key is that is about to take over."""
        path = self.identity_path.resolve()
        return path.with_name(f"{path.stem}-next{path.suffix}")

    def identity(self) -> Identity:
        """Read the site's key."""
        return Identity.load(self.identity_path)

    def revokes(self, key: PublicIdentity) -> bool:
        """Whether the site trusts a key no more."""
        return _joined(key.fingerprint) in map(_joined, self.settings.policy.revoked)

    def card(self) -> PublicIdentity:
        """Return what the peers may know of this site."""
        return self.identity().public(self.settings.name)

    def write_card(self, identity: Identity, n_enrolled: int | None = None) -> str:
        """Write the card of a key of this site, whole or not at all, and return it."""
        card = identity.card(self.settings.name, n_enrolled)
        with writing(self.card_path):
            write_whole(self.card_path, f"{card}\n".encode())
        return card

    @property
    def card_path(self) -> Path:
        """Where the card is, a file to be handed to the coordinator."""
        return self.folder / f"{self.settings.name}.card"

    @property
    def policy(self) -> Policy:
        """What the ledger allows."""
        table = self.settings.policy
        return Policy(
            total=Cap(table.total_epsilon, table.delta),
            per_study=Cap(table.study_epsilon, table.delta),
            allow_non_private=table.allow_unprotected,
        )

    @property
    def data_path(self) -> Path:
        """Where the scans are."""
        return self.folder / Path(self.settings.data.path).expanduser()

    @property
    def approved_path(self) -> Path:
        """Where copies of the approved studies are."""
        return self.folder / "approved"

    def note_over(self, study: bytes, when: str) -> None:
        """Note that a study, given by its hash, has finished; on a full disk that is not known."""
        with suppress(OSError):
            write_whole(self.approved_path / f"{study.hex()[:16]}.over", f"{when}\n".encode())

    def is_over(self, study: str) -> bool:
        """Whether a study, given by its hash, has finished, as far as this site was told."""
        name = study[:16]
        # The second as sites noted it before, of studies with a kit only.
        noted = (self.approved_path / f"{name}.over", self.folder / "studies" / name / "over.txt")
        return any(path.exists() for path in noted)

    @property
    def carrier_path(self) -> Path:
        """Where the programs that have the network work; they see nothing else of the site."""
        return self.folder / Path(self.settings.carrier.folder).expanduser()

    @property
    def cache_path(self) -> Path:
        """Where series that were extracted from scans are kept."""
        return self.folder / "cache"

    @property
    def results_path(self) -> Path:
        """Where results about single people are, which never leave."""
        return self.folder / "results"

    @property
    def ledger_path(self) -> Path:
        """Where the ledger is."""
        return self.folder / self.settings.ledger

    @property
    def head_path(self) -> Path:
        """Where the end of the ledger is kept a second time."""
        return self.folder / Path(self.settings.head).expanduser()

    def totals(self) -> Totals | None:
        """Return what was ever spent; None where there is no ledger yet, and none is made."""
        if not self.has_ledger:
            return None
        with self.open_ledger() as ledger:
            return ledger.totals()

    def open_ledger(self, *, must_exist: bool = False, rebuild_head: bool = False) -> Ledger:
        """Open the site's ledger, or start it; a head that is lost is replaced only when asked for."""
        if must_exist and not self.has_ledger:
            raise InputError(
                f"site {self.settings.name} has no ledger yet ({self.ledger_path}): nothing ever left"
            )
        try:
            return self.open_ledger_as(self.identity(), rebuild_head=rebuild_head)
        except WrongKeyError:
            if not self.next_identity_path.exists():
                raise
            raise WrongKeyError(
                f"the change of the key of site {self.settings.name} was interrupted; to finish it: "
                f"capedjica site rotate-key {self.folder}"
            ) from None

    def open_ledger_as(self, identity: Identity, *, rebuild_head: bool = False) -> Ledger:
        """Open the site's ledger with a key of the site, or start it."""
        head = self.head_path
        try:
            head.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{head.parent} cannot be made: {error.strerror}") from None
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
        """Whether a ledger was begun, also one that is missing now."""
        return self.ledger_path.exists() or self.head_path.exists()


def _joined(fingerprint: str) -> str:
    """Return a fingerprint without the spaces between its groups."""
    return "".join(fingerprint.split()).lower()
