"""The contract of a study: the public terms that all parties approve before anything is computed."""

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
# Mechanisms under which the sites add no noise: a trusted curator does, or no one.
SITES_ADD_NO_NOISE: Final = ("pooled", "none")
# The vectors that a site computes for a release: one row per subject, a few subjects at a time.
Vectors = Scan
# The function that computes them: ``statistics(stage, published, state)`` yields the subjects' vectors.
Statistics = Callable[[int, bytes, bytes], Iterable[Vectors]]

# Norms in this range, and their squares, are far from the limits of double precision.
CLIP_RANGE: Final = (1e-140, 1e140)


@dataclass(frozen=True)
class CrossMoment:
    r"""Parameters of a query for a site's cross-moment of scores and vectors, centred within the site.

    Subject i has a score t_i, :math:`|t_i| \le w`, a fixed factor k_i, :math:`|k_i| \le k_s`, and a vector
    y_i, :math:`\|y_i\| \le C`. Subjects without a valid row are excluded; n remain. The query asks for

    .. math:: A_s = \sum_i (k_i - \kappa_s)\, y_i + \sum_i (t_i - \bar t_s)\, y_i , \qquad
              \kappa_s = \min(r, \max(-r, \bar k_s)) ,                                                 (1)

    with means over the n. Any component common to all vectors of a site cancels, provided that
    :math:`|\bar k_s| \le r`: the factors of a complete site add up to zero, and those of a site with missing
    rows do so after subtracting :math:`\kappa_s`.

    **Sensitivity.** Replace subject i, keeping k_i. With a and b the means of t and y over the n - 1
    others, the second sum is that of the others plus :math:`\tfrac{n-1}{n}(t_i - a)(y_i - b)`, so it changes
    by (n-1)/n times

    .. math:: (t-a)(y-b) - (t'-a)(y'-b) = (t-a)\,y - (t'-a)\,y' - (t-t')\,b ,

    whose norm is at most :math:`C (|t-a| + |t'-a| + |t-t'|)`. The pairwise distances of three numbers in an
    interval of length 2w add up to twice the distance of the outermost two, hence to at most 4w. The first
    sum changes by :math:`(k_i - \kappa_s)(y - y')`, at most 2 C (k_s + r).

    If one of the two rows is invalid, the second sum changes by :math:`\tfrac{n-1}{n}(t-a)(y-b)`, at most
    4 w C. The first changes by :math:`(k_i - \kappa_s)\,y`, and by the movement of :math:`\kappa_s` times the
    sum of the other vectors, which is at most (n-1) C. Let c be the mean of the others' factors, so that
    :math:`\bar k_s = c + (k_i - c)/n`. If :math:`|c| \le r`, :math:`\kappa_s` moves by at most
    :math:`|k_i - c|/n \le (k_s + r)/n`. If c > r, it moves from r only if :math:`\bar k_s < r`, and then by
    less than :math:`r - (\tfrac{n-1}{n} r + k_i/n) \le (k_s + r)/n`; c < -r is alike. So the first sum
    changes by at most 2 C (k_s + r).

    In total, for every n,

    .. math:: \|A_s - A_s'\| \le 2 C (k_s + r + 2 w) .                                                  (2)

    Without fixed factors the bound is attained, up to (n-1)/n, by t = w, t' = -w, a = -w and y = y' = -b.

    Parameters
    ----------
    score : float
        w; 0 if there are only fixed factors.
    fixed : tuple of (str, float)
        k_s of every site by name; empty for 0. The guarantee then covers replacing a subject by one with the
        same factor: the data it is computed from (group membership) are public.
    imbalance : float
        r, the largest mean of a site's fixed factors that is corrected; 0 if no row should be missing.
    """

    score: float
    fixed: tuple[tuple[str, float], ...] = ()
    imbalance: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("score", self.score), ("imbalance", self.imbalance)):
            if math.isinf(validate.nonnegative(name, value)):
                raise InputError(f"{name} must be finite, got {value}")
        for site, largest in self.fixed:
            validate.positive(f"fixed factor of site {site}", largest)
        if not self.score and not self.fixed:
            raise InputError("a cross-moment needs scores or fixed factors; score is 0 and fixed is empty")

    def largest_fixed(self, site: str | None = None) -> float:
        """Return k_s of a site (0 if the site is not named), or the largest of all sites."""
        factors = dict(self.fixed)
        return max(factors.values(), default=0.0) if site is None else factors.get(site, 0.0)


@dataclass(frozen=True)
class Query:
    r"""A query to every subject: a vector v with \|v\| <= clip.

    Parameters
    ----------
    label : str
        Short description for users and ledgers, such as "gradient of W".
    size : int
        Number of coordinates.
    clip : float
        C, the largest norm, within `CLIP_RANGE`; longer vectors are clipped to it.
    spread : float
        Largest distance between two subjects' vectors, in units of C: 2, or sqrt(2) if all v are positive
        semidefinite matrices. One subject changes a sum over subjects by at most spread C.
    cross : CrossMoment, optional
        If given, the query asks for the cross-moment of the vectors with scores instead of their sum. Sites
        then provide rows (k, t, v), and ``spread`` is not used.
    """

    label: str
    size: int
    clip: float
    spread: float = 2.0
    cross: CrossMoment | None = None

    def __post_init__(self) -> None:
        if not self.label:
            raise InputError("a query needs a label; got an empty one")
        validate.count(f"size of '{self.label}'", self.size)
        validate.positive(f"clip of '{self.label}'", self.clip)
        if not CLIP_RANGE[0] <= self.clip <= CLIP_RANGE[1]:
            raise InputError(
                f"clip of '{self.label}' must lie between {CLIP_RANGE[0]:g} and {CLIP_RANGE[1]:g}, "
                f"got {self.clip:g}"
            )
        if not 1 <= self.spread <= 2:
            raise InputError(f"spread of '{self.label}' must lie between 1 and 2, got {self.spread}")

    @property
    def row_size(self) -> int:
        """Number of values computed for each subject: for a cross-moment, two more than are released."""
        return self.size if self.cross is None else self.size + 2

    def sensitivity(self, site: str | None = None) -> float:
        """Return the sensitivity of a site's sum to one subject, or the largest over all sites."""
        if self.cross is None:
            return self.spread * self.clip
        factors = self.cross.largest_fixed(site) + self.cross.imbalance
        return 2 * self.clip * (factors + 2 * self.cross.score)

    def largest(self, site: str | None = None) -> float:
        r"""Return an upper bound on the norm of a site's sum, divided by its number of subjects.

        For a cross-moment it is C (k_s + r + w): deviations from the mean of numbers in an interval of length
        2w have a mean absolute value of at most w.
        """
        if self.cross is None:
            return self.clip
        return self.clip * (self.cross.largest_fixed(site) + self.cross.imbalance + self.cross.score)


@dataclass(frozen=True)
class Stage:
    """A query that is asked ``count`` times and may use ``share`` of the budget (of mu^2) in total."""

    query: Query
    count: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        validate.count(f"count of '{self.query.label}'", self.count)
        validate.positive(f"share of '{self.query.label}'", self.share)


class _HashedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The hashed form of a query: fixed field names and order, independent of the class `Query`."""

    label: str
    size: int
    clip: float
    spread: float


class _HashedCrossMoment(_HashedQuery, frozen=True, kw_only=True):
    score: float
    fixed: tuple[tuple[str, float], ...]
    imbalance: float


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
        Title of the study.
    roster : Roster
        The sites in order with their pinned keys, the threshold and S_C.
    subjects : tuple of int
        M_s, the number enrolled at each site, in roster order; the number of time points of each site if
        ``neighbour="sample"``.
    stages : tuple of Stage
        All queries that may be asked, in order; their shares add up to at most 1.
    epsilon : tuple of float
        Total budget of each site, for all stages; () for ``mechanism="none"``.
    delta : float
        The delta of each site's total guarantee.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        The privacy mechanism.
    masking : {"uniform", "paper"}
        Masks uniform on the ring, or the paper's Gaussian masks.
    weights : tuple of float, optional
        Weights of the sites; by default their share of the subjects.
    local_site : str, optional
        The only site used by ``mechanism="local"``; by default the largest.
    reserve : float
        Fraction of the budget (of mu^2) reserved for releases that must be repeated after a site was lost.
    insecure_noise : bool
        Whether noise comes from a seed. Part of the contract, so that no site takes part unknowingly.
    agreement : bytes
        Hash of a more detailed description, such as a ``study.toml``, which thereby is also approved.
    neighbour : {"subject", "sample"}
        The unit of privacy: all data of a subject, or a single time point.
    units_per_subject : int
        Largest number of units that one subject holds: 1, or the number of time points of the longest
        subject. The lengths are fixed and public.
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
                f"subjects must contain one number for each of {len(names)} sites, got {len(self.subjects)}"
            )
        for name, size in zip(names, self.subjects, strict=True):
            if size == 0:
                raise InputError(f"site {name} has no subjects; every site needs at least one")
            validate.count(f"subjects of site {name}", size)
        if self.weights:
            if len(self.weights) != len(names):
                raise InputError(
                    f"weights must contain one number for each of {len(names)} sites, got {len(self.weights)}"
                )
            validate.weights(self.weights)
            validate.positive_per_site("weights", self.weights, len(names))
        if self.local_site and self.local_site not in names:
            raise InputError(f"local_site must be one of {', '.join(names)}; got {self.local_site!r}")

    def _check_stages(self) -> None:
        if not self.stages:
            raise InputError("a contract needs at least one stage, got none")
        if not 0 <= self.reserve < 1:
            raise InputError(f"reserve must be at least 0 and below 1, got {self.reserve}")
        total = math.fsum(stage.share for stage in self.stages)
        if total > 1 + 1e-9:
            raise InputError(f"the shares of the stages must add up to at most 1, got {total:.9g}")
        for stage in self.stages:
            self._check_cross_moment(stage.query)

    def _check_cross_moment(self, query: Query) -> None:
        """Refuse fixed factors of unknown sites, and a site whose sensitivity is 0."""
        if query.cross is None:
            return
        names = [site for site, _ in query.cross.fixed]
        if strangers := set(names) - set(self.roster.names):
            raise InputError(
                f"'{query.label}' has factors for {', '.join(sorted(strangers))}, which is not in the roster"
            )
        if len(set(names)) < len(names):
            raise InputError(f"'{query.label}' has factors for the same site twice")
        if still := [name for name in self.roster.names if not query.sensitivity(name)]:
            raise InputError(f"'{query.label}' has no factors for site {still[0]}")
        if self.neighbour != "subject":
            raise InputError(f"'{query.label}' needs neighbour 'subject', got {self.neighbour!r}")

    def _check_budget(self) -> None:
        validate.probability("delta", self.delta)
        if self.mechanism == "none":
            if self.epsilon:
                raise InputError("mechanism 'none' gives no privacy, so epsilon must not be given")
            return
        if len(self.epsilon) != len(self.subjects):
            raise InputError(
                f"epsilon must contain one number for each of {len(self.subjects)} sites, "
                f"got {len(self.epsilon)}"
            )
        for epsilon in self.epsilon:
            validate.positive("epsilon", epsilon)

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of all fields, in an encoding with its own field names.

        Fields added later are omitted while they have their default value, so that earlier contracts keep
        their hash. Field names are part of the hashed content, so different contracts have different hashes.
        """
        stages = [
            _HashedStage(query=_hashed(stage.query), count=stage.count, share=stage.share)
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
        """M_s by site name."""
        return dict(zip(self.roster.names, self.subjects, strict=True))

    @cached_property
    def total_mu(self) -> Mapping[str, float]:
        """The mu that corresponds to each site's budget; infinite without privacy.

        The fraction ``RESERVED_DELTA`` of delta is reserved for the contributions of the grid and the stream.
        """
        if self.mechanism == "none":
            return dict.fromkeys(self.roster.names, math.inf)
        return {
            name: gaussian_mu(epsilon, self._spendable_delta)
            for name, epsilon in zip(self.roster.names, self.epsilon, strict=True)
        }

    def cap(self, site: str) -> Cap:
        """Return the cap of a site's ledger for this study, which is exactly ``total_mu``.

        A study without privacy has no budget; its releases are charged an infinite cost, outside any cap.
        """
        epsilon = self.epsilon[self.roster.names.index(site)] if self.epsilon else 1.0
        return Cap(epsilon, self._spendable_delta)

    def planned_share(self, stage: Stage) -> float:
        """Return the fraction of the budget (of mu^2) planned for one release of a stage."""
        return stage.share / stage.count * (1 - self.reserve)

    @property
    def _spendable_delta(self) -> float:
        # defence: reserved-delta
        return self.delta * (1 - RESERVED_DELTA)

    @cached_property
    def alone(self) -> str:
        """The only site used by ``mechanism="local"``."""
        return self.local_site or max(self.roster.names, key=lambda name: self.enrolled[name])

    @cached_property
    def participants(self) -> Mapping[str, int]:
        """M_s of the participating sites: all, or the only site used by ``mechanism="local"``."""
        return {self.alone: self.enrolled[self.alone]} if self.mechanism == "local" else self.enrolled

    @property
    def unit(self) -> ProtectedUnit:
        """The unit of privacy."""
        return ProtectedUnit(self.neighbour, self.units_per_subject)

    @property
    def adversary(self) -> Adversary:
        """The adversaries that the guarantee covers and those that it does not."""
        roster = self.roster
        return adversary(
            self.mechanism, len(roster.names), roster.n_colluding, self.alone, not self.insecure_noise
        )

    def guarantee(self, site: str | None = None) -> Guarantee:
        """Return the guarantee, with its text, for a site or for the site with the largest budget."""
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
        """Whether there is a guarantee: False without noise and with noise from a seed."""
        return self.mechanism != "none" and not self.insecure_noise

    @property
    def protects(self) -> bool:
        """Whether the guarantee holds against the aggregator: False for pooled, none and seeded noise."""
        return self.private and self.adversary.aggregator


def _hashed(query: Query) -> _HashedQuery:
    plain = _HashedQuery(label=query.label, size=query.size, clip=query.clip, spread=query.spread)
    if query.cross is None:
        return plain
    cross = query.cross
    return _HashedCrossMoment(
        **msgspec.structs.asdict(plain), score=cross.score, fixed=cross.fixed, imbalance=cross.imbalance
    )
