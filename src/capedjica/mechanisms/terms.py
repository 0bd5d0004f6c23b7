"""The privacy terms of a study, and the builder of its contract, shared by study files and Python.

Decisions made before the contract exists use a formula for the noise of a mean (:func:`mean_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract, MaskName, MechanismName, Stage
from capedjica.privacy import gaussian_mu, validate
from capedjica.securesum.identity import PublicIdentity
from capedjica.securesum.parameters import Roster, suitable_threshold

RESERVE: Final = 0.05
"""Fraction of the budget reserved for lost sites: enough for one rotation that is lost at the very end, at
the cost of 2.5% more noise."""

NO_RESERVE: Final = 0.0
"""Reserve if all sites are in one process, where no site is lost and nothing is repeated."""

DELTA: Final = 1e-5


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The budget of a study, its threat model, and its provisions for lost sites.

    Parameters
    ----------
    epsilon : float or dict from site to float, optional
        Total budget, for all sites or for each; None for ``mechanism="none"``.
    delta, mechanism, masking, reserve, insecure_noise
        See :class:`capedjica.mechanisms.contract.Contract`.
    n_colluding : int or "third"
        S_C; "third" is max(1, ceil(S/3) - 1).
    threshold : int, optional
        Number of sites that must stay to the end; by default two thirds, or more if S_C requires it.
    """

    epsilon: float | Mapping[str, float] | None = None
    delta: float = DELTA
    mechanism: MechanismName = "cape"
    masking: MaskName = "uniform"
    n_colluding: int | str | Literal["third"] = "third"
    threshold: int | None = None
    reserve: float = RESERVE
    insecure_noise: bool = False

    def contract(
        self,
        title: str,
        sites: Sequence[PublicIdentity],
        subjects: Sequence[int],
        stages: Sequence[Stage],
        **more: Any,
    ) -> Contract:
        """Return the contract; ``more`` are its fields that do not depend on the terms."""
        return Contract(
            title=title,
            roster=self.roster(sites),
            subjects=tuple(subjects),
            stages=tuple(stages),
            epsilon=self.budgets([site.name for site in sites]),
            delta=self.delta,
            mechanism=self.mechanism,
            masking=self.masking,
            reserve=self.reserve,
            insecure_noise=self.insecure_noise,
            **more,
        )

    def roster(self, sites: Sequence[PublicIdentity]) -> Roster:
        """Return the roster, with the threshold and the number of sites that may collude."""
        if len(sites) < 2:
            raise InputError(f"a study needs at least two sites, got {len(sites)}")
        colluding = validate.colluding(self.n_colluding, len(sites))
        threshold = self.threshold or suitable_threshold(len(sites), colluding)
        return Roster(tuple(sites), threshold, colluding)

    def budgets(self, names: Sequence[str]) -> tuple[float, ...]:
        """Return the epsilon of each site; none for ``mechanism="none"``."""
        epsilon = self.epsilon
        if self.mechanism == "none":
            if epsilon is not None:
                raise InputError(
                    f"mechanism 'none' gives no privacy: epsilon must not be given, got {epsilon}"
                )
            return ()
        if epsilon is None:
            raise InputError(f"epsilon must be given for mechanism '{self.mechanism}', got None")
        if not isinstance(epsilon, Mapping):
            return (validate.positive("epsilon", epsilon),) * len(names)
        if set(epsilon) != set(names):
            raise InputError(
                f"epsilon must name the sites {', '.join(names)}; got {', '.join(map(str, epsilon))}"
            )
        return tuple(validate.positive(f"epsilon of site {name}", epsilon[name]) for name in names)

    def mean_noise(self, subjects: Sequence[int], share: float = 1.0) -> float:
        """Return the noise on each value of a mean of vectors of norm at most 1, released with ``share``.

        It is public and known before there is a contract, so stages may depend on it. 0 without privacy.
        """
        if not self.epsilon or len(subjects) < 2:  # invalid terms are refused elsewhere
            return 0.0
        least = min(self.epsilon.values()) if isinstance(self.epsilon, Mapping) else self.epsilon
        mu = gaussian_mu(validate.positive("epsilon", least), self.delta) * share**0.5
        colluding = validate.colluding(self.n_colluding, len(subjects))
        return mean_noise(mu, subjects, colluding, self.mechanism, self.masking)


def mean_noise(
    mu: float, subjects: Sequence[int], n_colluding: int, mechanism: MechanismName, mask: MaskName
) -> float:
    r"""Return the noise on each value of a mean of vectors of norm at most 1, released with ``mu``.

    Replacing one of M subjects changes the mean by 2/M, so a trusted curator adds noise of 2/(M mu). Its
    variance is multiplied by S/S_H for cape with uniform masks, by S/(S+1) (1 + S/S_H) with the paper's
    masks, by S for conventional noise, and by (M / max M_s)^2 if only the largest site is used. A release
    plans its noise exactly (:func:`capedjica.mechanisms.release.plan_release`).
    """
    total, sites = sum(subjects), len(subjects)
    honest = max(1, sites - n_colluding)
    factor = {
        "none": 0.0,
        "pooled": 1.0,
        "cape": sites / honest if mask == "uniform" else sites / (sites + 1) * (1 + sites / honest),
        "conventional": float(sites),
        "local": (total / max(subjects)) ** 2,
    }[mechanism]
    return 2 * math.sqrt(factor) / (total * mu)
