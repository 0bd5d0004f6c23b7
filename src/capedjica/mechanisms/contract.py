"""What every party of a study agreed on before anything is computed, and from which all else follows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import msgspec

from capedjica.errors import InputError
from capedjica.privacy import gaussian_mu, validate
from capedjica.privacy.adversary import Adversary, adversary
from capedjica.privacy.charges import Cap
from capedjica.privacy.neighbour import Neighbour, ProtectedUnit
from capedjica.privacy.reserved_delta import RESERVED_DELTA
from capedjica.privacy.wording import Guarantee
from capedjica.securesum.parameters import Roster
from capedjica.tools.arrays import Scan

MechanismName = Literal["cape", "conventional", "local", "pooled", "none"]
MaskName = Literal["uniform", "paper"]
MECHANISMS: Final[tuple[str, ...]] = get_args(MechanismName)
MASKS: Final[tuple[str, ...]] = get_args(MaskName)
# By which sites add no noise to their sums: a trusted aggregator does, or nobody.
SITES_ADD_NO_NOISE: Final = ("pooled", "none")
# What a site computes of its subjects for a release: one row per subject, a few subjects at a time.
Vectors = Scan
# What does it: ``statistics(stage, published, state)`` yields the subjects' vectors.
Statistics = Callable[[int, bytes, bytes], Iterable[Vectors]]

# Norms in this range, and their squares, are far from where double precision ends.
CLIP_RANGE: Final = (1e-140, 1e140)


@dataclass(frozen=True)
class Query:
    r"""What is asked of every subject: a vector v with \|v\| <= clip.

    Parameters
    ----------
    label : str
        In plain words, for people and ledgers: "gradient of W".
    size : int
        Number of coordinates.
    clip : float
        C, the largest norm, within `CLIP_RANGE`; longer vectors are shortened to it.
    spread : float
        How far two subjects' vectors can be apart, in units of C: 2, or sqrt(2) if all v are positive
        semidefinite matrices. One subject moves a sum over subjects by at most spread C.
    """

    label: str
    size: int
    clip: float
    spread: float = 2.0

    def __post_init__(self) -> None:
        if not self.label:
            raise InputError("a query needs a label")
        validate.count(f"size of '{self.label}'", self.size)
        validate.positive(f"clip of '{self.label}'", self.clip)
        if not CLIP_RANGE[0] <= self.clip <= CLIP_RANGE[1]:
            raise InputError(
                f"clip of '{self.label}' must lie between {CLIP_RANGE[0]:g} and {CLIP_RANGE[1]:g}, "
                f"got {self.clip:g}"
            )
        if not 1 <= self.spread <= 2:
            raise InputError(f"spread of '{self.label}' must lie between 1 and 2, got {self.spread}")


@dataclass(frozen=True)
class Stage:
    """A query that is put ``count`` times and may use ``share`` of the budget (of mu^2) in all."""

    query: Query
    count: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        validate.count(f"count of '{self.query.label}'", self.count)
        validate.positive(f"share of '{self.query.label}'", self.share)


class _HashedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query as hashes have it: these words in this order, whatever becomes of the class."""

    label: str
    size: int
    clip: float
    spread: float


class _HashedStage(msgspec.Struct, frozen=True, kw_only=True):
    query: _HashedQuery
    count: int
    share: float


@dataclass(frozen=True)
class Contract:
    """The public values of a study.

    Parameters
    ----------
    title : str
        For people.
    roster : Roster
        The sites in order with their pinned keys, threshold and S_C.
    subjects : tuple of int
        M_s, enrolled at each site, in the order of the roster; the units (time points) of the site where
        those are protected.
    stages : tuple of Stage
        Everything that may be asked, in the order in which it will be; shares add up to at most 1.
    epsilon : tuple of float
        Total budget of each site, for all stages together; () for ``mechanism="none"``.
    delta : float
        Of each site's total guarantee.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        How a mean is made private.
    masking : {"uniform", "paper"}
        Masks as wide as the ring, or the paper's Gaussian ones.
    weights : tuple of float, optional
        Weights of the sites; by default their share of the subjects.
    local_site : str, optional
        The site that works alone under ``mechanism="local"``; by default the largest.
    reserve : float
        Part of the budget (of mu^2) held back for releases that must be made again after a site was lost.
    insecure_noise : bool
        Whether noise comes from a seed. Part of the contract, so that no site takes part unknowingly.
    agreement : bytes
        Hash of a description that says more than this, such as a ``study.toml``, so that it is agreed on too.
    neighbour : {"subject", "sample"}
        What is protected: all the data of a subject, or a single time point.
    units_per_subject : int
        The most units that one subject holds: 1, or the number of time points of the longest subject. Lengths
        are fixed and public.
    """

    title: str
    roster: Roster
    subjects: tuple[int, ...]
    stages: tuple[Stage, ...]
    epsilon: tuple[float, ...]
    delta: float
    mechanism: MechanismName = "cape"
    masking: MaskName = "uniform"
    weights: tuple[float, ...] = ()
    local_site: str = ""
    reserve: float = 0.0
    insecure_noise: bool = False
    agreement: bytes = b""
    neighbour: Neighbour = "subject"
    units_per_subject: int = 1

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            validate.choice("mechanism", self.mechanism, MECHANISMS)
        if self.masking not in MASKS:
            raise InputError(f"masking must be 'uniform' or 'paper', got {self.masking!r}")
        ProtectedUnit(self.neighbour, self.units_per_subject)
        self._check_sites()
        self._check_stages()
        self._check_budget()

    def _check_sites(self) -> None:
        names = self.roster.names
        if len(self.subjects) != len(names):
            raise InputError(
                f"subjects must hold one number for each of {len(names)} sites, got {len(self.subjects)}"
            )
        for name, size in zip(names, self.subjects, strict=True):
            if size == 0:
                raise InputError(f"site {name} has no subjects")
            validate.count(f"subjects of site {name}", size)
        if self.weights:
            if len(self.weights) != len(names):
                raise InputError(f"weights must hold one number for each of {len(names)} sites")
            validate.weights(self.weights)
            validate.positive_per_site("weights", self.weights, len(names))
        if self.local_site and self.local_site not in names:
            raise InputError(f"local_site must be one of {', '.join(names)}; got {self.local_site!r}")

    def _check_stages(self) -> None:
        if not self.stages:
            raise InputError("a contract needs at least one stage")
        if not 0 <= self.reserve < 1:
            raise InputError(f"reserve must be at least 0 and below 1, got {self.reserve}")
        total = math.fsum(stage.share for stage in self.stages)
        if total > 1 + 1e-9:
            raise InputError(f"the shares of the stages must add up to at most 1, got {total:.9g}")

    def _check_budget(self) -> None:
        validate.probability("delta", self.delta)
        if self.mechanism == "none":
            if self.epsilon:
                raise InputError("mechanism 'none' gives no privacy, so epsilon must not be given")
            return
        if len(self.epsilon) != len(self.subjects):
            raise InputError(f"epsilon must hold one number for each of {len(self.subjects)} sites")
        for epsilon in self.epsilon:
            validate.positive("epsilon", epsilon)

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of everything above, in an encoding whose words are not those of this class.

        What came later is left out while it has its default, so that what was agreed on before there was such
        a thing keeps its hash. Words are part of what is hashed, so no two contracts share one.
        """
        stages = [
            _HashedStage(
                query=_HashedQuery(
                    label=stage.query.label,
                    size=stage.query.size,
                    clip=stage.query.clip,
                    spread=stage.query.spread,
                ),
                count=stage.count,
                share=stage.share,
            )
            for stage in self.stages
        ]
        plain: dict[str, object] = {
            "title": self.title,
            "roster": self.roster.hash,
            "subjects": self.subjects,
            "stages": stages,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mechanism": self.mechanism,
            "mask": self.masking,
            "weights": self.weights,
            "local_site": self.local_site,
            "reserve": self.reserve,
            "insecure_noise": self.insecure_noise,
            "agreement": self.agreement,
        }
        if self.neighbour != "subject":
            plain["neighbour"] = self.neighbour
        if self.units_per_subject != 1:
            plain["units_per_subject"] = self.units_per_subject
        content = msgspec.msgpack.encode(plain, order="deterministic")
        return hashlib.sha256(b"capedjica/contract/1" + content).digest()

    @cached_property
    def enrolled(self) -> Mapping[str, int]:
        """M_s by the name of the site."""
        return dict(zip(self.roster.names, self.subjects, strict=True))

    @cached_property
    def total_mu(self) -> Mapping[str, float]:
        """The mu that each site's budget stands for; infinite without privacy.

        It leaves ``RESERVED_DELTA`` of delta for what the grid and the stream add.
        """
        if self.mechanism == "none":
            return dict.fromkeys(self.roster.names, math.inf)
        return {
            name: gaussian_mu(epsilon, self._spendable_delta)
            for name, epsilon in zip(self.roster.names, self.epsilon, strict=True)
        }

    def cap(self, site: str) -> Cap:
        """Return what a site's ledger may spend on this study: ``total_mu``, and not a bit more.

        A study without privacy has no budget; its releases are charged with infinity, beside any cap.
        """
        epsilon = self.epsilon[self.roster.names.index(site)] if self.epsilon else 1.0
        return Cap(epsilon, self._spendable_delta)

    def planned_share(self, stage: Stage) -> float:
        """Return the part of the budget (of mu^2) that is planned for one release of a stage."""
        return stage.share / stage.count * (1 - self.reserve)

    @property
    def _spendable_delta(self) -> float:
        # defence: reserved-delta
        return self.delta * (1 - RESERVED_DELTA)

    @cached_property
    def alone(self) -> str:
        """The site that works alone under ``mechanism="local"``."""
        return self.local_site or max(self.roster.names, key=lambda name: self.enrolled[name])

    @cached_property
    def participants(self) -> Mapping[str, int]:
        """M_s of the sites that take part: all, or under ``mechanism="local"`` the one that works alone."""
        return {self.alone: self.enrolled[self.alone]} if self.mechanism == "local" else self.enrolled

    @property
    def unit(self) -> ProtectedUnit:
        """What is protected."""
        return ProtectedUnit(self.neighbour, self.units_per_subject)

    @property
    def adversary(self) -> Adversary:
        """Against whom the guarantee holds, and against whom it does not."""
        roster = self.roster
        return adversary(
            self.mechanism, len(roster.names), roster.n_colluding, self.alone, not self.insecure_noise
        )

    def guarantee(self, site: str | None = None) -> Guarantee:
        """Return what is guaranteed, in words too: at a site, or at the one that may give most."""
        most = max(self.total_mu.values())
        budgets = dict(zip(self.roster.names, self.epsilon, strict=True)) if self.epsilon else self.total_mu
        return Guarantee(
            nominal_epsilon=max(budgets.values()) if site is None else budgets[site],
            delta=self.delta,
            nominal_mu=most if site is None else self.total_mu[site],
            mechanism=self.mechanism,
            n_sites=len(self.roster.names),
            n_colluding=self.roster.n_colluding,
            unit=self.unit,
            secure=not self.insecure_noise,
            alone=self.alone,
            other_mu=None if site is None else most,
        )

    @property
    def private(self) -> bool:
        """Whether anybody is protected: not without noise, and not with noise from a seed."""
        return self.mechanism != "none" and not self.insecure_noise

    @property
    def protects(self) -> bool:
        """Whether even the aggregator learns no more than the guarantee: not for pooled, none and seeds."""
        return self.private and self.adversary.aggregator
