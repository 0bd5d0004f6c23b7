"""``private_mean``: the primitive itself, for any vectors."""

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
    """A mean with noise on it, and what it cost.

    Attributes
    ----------
    value : array
        The mean of the clipped vectors, plus noise.
    noise : float
        Standard deviation of the noise on each number.
    privacy : PrivacyStatement
        The guarantee.
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
    """Mean over all subjects of all sites, each subject's vector clipped to the norm ``clip``.

    Runs the whole protocol in this process, with the bytes that sites would exchange.

    Parameters
    ----------
    X : list of sites, or dict from name to site
        A site is a sequence of subjects or an array (subjects, ...); a subject is an array of numbers, all of
        one shape. A subject with NaN or infinity contributes zero.
    clip : float
        Longest vector a subject may contribute; longer ones are shortened.
    epsilon : float or dict from name to float, optional
        Privacy budget, for all sites or for each; not for ``mechanism="none"``.
    delta : float
        The delta of the guarantee.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        How the mean is made private.
    n_colluding : int or "third"
        Sites that may side with the aggregator.
    masking : {"uniform", "paper"}
        Kind of masks that hide a site's numbers.
    weights : dict or sequence, optional
        Weights of the sites, adding up to 1; by default their share of the subjects.
    insecure_noise_seed : int, optional
        Reproducible noise for experiments: the result is marked as not private.
    budget : PrivacyBudget, optional
        What this call is charged to, together with others. Without one epsilon stands for this call alone,
        and what several calls on the same people cost adds up (:mod:`capedjica.privacy.budget`).
    mask
        The old name of ``masking``.

    Returns
    -------
    PrivateMean
        ``.value``, ``.noise`` and ``.privacy``.

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
            raise InputError(f"site {name}, subject {number}: not an array of numbers") from None
        if values.shape != shape:
            raise InputError(
                f"site {name}, subject {number} has shape {values.shape}; site {first}, subject 0 has {shape}"
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
                f"weights must name the sites {', '.join(names)}; got {', '.join(map(str, weights))}"
            )
        return weights
    if len(weights) != len(names):
        raise InputError(
            f"weights must hold one number for each of the {len(names)} sites, got {len(weights)}"
        )
    return dict(zip(names, weights, strict=True))
