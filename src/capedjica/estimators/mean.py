"""``private_mean``: a differentially private mean of vectors across sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from capedjica.algorithms.tables.mean import MeanOfRows
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.errors import InputError
from capedjica.estimators.base import DEPRECATED, renamed
from capedjica.estimators.inputs import Sites, name_sites
from capedjica.mechanisms.contract import MaskName, MechanismName
from capedjica.privacy import validate
from capedjica.privacy.budget import PrivacyBudget
from capedjica.privacy.statement import PrivacyStatement
from capedjica.tools.arrays import FloatArray


@dataclass(frozen=True)
class PrivateMean:
    """A private mean and its cost.

    Attributes
    ----------
    value : array
        Mean of the clipped vectors, plus noise.
    noise : float
        Standard deviation of the noise on each coordinate.
    privacy : PrivacyStatement
        The privacy guarantee.
    """

    value: FloatArray
    noise: float
    privacy: PrivacyStatement


def private_mean(
    X: Sites,
    clip: float,
    epsilon: float | Mapping[str, float] | None = None,
    delta: float = 1e-5,
    mechanism: MechanismName = "cape",
    *,
    n_colluding: int | str = "third",
    masking: MaskName = "uniform",
    weights: Mapping[str, float] | Sequence[float] | None = None,
    insecure_noise_seed: int | None = None,
    budget: PrivacyBudget | None = None,
    mask: Any = DEPRECATED,
) -> PrivateMean:
    """Compute a private mean over the subjects of all sites, with each vector clipped to the norm ``clip``.

    The complete protocol runs in this process, with the same messages that sites would exchange.

    Parameters
    ----------
    X : list of sites, or dict from name to site
        A site is a sequence of subjects or an array (subjects, ...). A subject is an array of numbers; all
        have the same shape. A subject with NaN or infinity contributes zero.
    clip : float
        Largest norm of a subject's vector; longer vectors are scaled down to it.
    epsilon : float or dict from name to float, optional
        Privacy budget, for all sites or for each; required unless ``mechanism="none"``.
    delta : float, default=1e-5
        Delta of the guarantee.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}, default="cape"
        Mechanism that makes the mean private.
    n_colluding : int or "third", default="third"
        Largest number of sites that may collude with the aggregator.
    masking : {"uniform", "paper"}, default="uniform"
        Kind of masks that hide the sums of a site.
    weights : dict or sequence, optional
        Weights of the sites, which add up to 1; by default proportional to their numbers of subjects.
    insecure_noise_seed : int, optional
        Seed for reproducible noise in experiments; the result is then marked as not private.
    budget : PrivacyBudget, optional
        Budget shared with other calls, to which this call is charged. Without one, epsilon covers this call
        alone, and the costs of several calls on the same subjects add up (:mod:`capedjica.privacy.budget`).
    mask
        Deprecated name of ``masking``.

    Returns
    -------
    PrivateMean
        The result, with attributes ``value``, ``noise`` and ``privacy``.

    Examples
    --------
    >>> import numpy as np
    >>> from capedjica import private_mean
    >>> hospitals = {"north": np.ones((40, 3)), "south": np.ones((25, 3)), "west": np.ones((60, 3))}
    >>> result = private_mean(hospitals, clip=2.0, epsilon=5.0, n_colluding=1)
    >>> result.value.shape
    (3,)
    """
    sites, shape = _stack_sites(X)
    analysis = MeanOfRows(int(np.prod(shape)), validate.positive("clip", clip))
    terms = in_process(
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        masking=renamed("mask", mask, "masking", masking, "uniform"),
        n_colluding=n_colluding,
    )
    study = EmbeddedStudy.of(
        "private mean",
        analysis,
        sites,
        terms,
        weights=_named_weights(weights, list(sites)),
        insecure_noise_seed=insecure_noise_seed,
        budget=budget,
    )
    found = analysis.estimate(study)
    return PrivateMean(found.value.reshape(shape), found.noise, study.privacy)


def _stack_sites(X: Sites) -> tuple[dict[str, FloatArray], tuple[int, ...]]:
    """Return one array (subjects, numbers) per site, and the shape of one subject."""
    named = name_sites(X)
    first_name, first = next(iter(named.items()))
    shape = np.shape(first[0])
    return {name: _stack(name, site, shape, first_name) for name, site in named.items()}, shape


def _stack(name: str, site: Sequence[ArrayLike], shape: tuple[int, ...], first: str) -> FloatArray:
    rows = np.empty((len(site), int(np.prod(shape))))
    for number, subject in enumerate(site):
        try:
            values = np.asarray(subject, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"X: site {name}, subject {number} is not an array of numbers") from None
        if values.shape != shape:
            raise InputError(
                f"X: site {name}, subject {number} has shape {values.shape}, but site {first}, subject 0 has "
                f"{shape}; all subjects must have the same shape"
            )
        rows[number] = values.reshape(-1)
    return rows


def _named_weights(
    weights: Mapping[str, float] | Sequence[float] | None, names: list[str]
) -> Mapping[str, float] | None:
    if weights is None:
        return None
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise InputError(
                f"weights must name the same sites as X, {', '.join(names)}; got "
                f"{', '.join(map(str, weights))}"
            )
        return weights
    if len(weights) != len(names):
        raise InputError(
            f"weights must contain one number for each of the {len(names)} sites, got {len(weights)}"
        )
    return dict(zip(names, weights, strict=True))
