r"""djICA, the non-private decentralized joint ICA of Baker et al. 2018: the baseline without noise.

**Sphering.** With m and C the mean and covariance of all time points of all sites, the samples become
:math:`\tilde x = 2 C^{-1/2} (x - m)`, as in EEGLAB and GIFT: their variance is 4, about what the logistic
function of Infomax requires of sources.

**A pass.** Every site permutes its :math:`N_s` points randomly and divides them into blocks of
:math:`B = \lfloor \sqrt{\min_s N_s / 20} \rfloor`. Points that do not fill a block, or exceed the number of
blocks of the smallest site, are skipped in this pass. For each block in turn

.. math:: W \leftarrow W + \rho \sum_s \bigl( B I + \hat Y_s Z_s' \bigr) W, \qquad
          b \leftarrow b + \rho \sum_s \hat Y_s 1,                                                        (1)

with :math:`Z_s = W \tilde X_s + b 1'` and :math:`\hat Y_s = 1 - 2 \sigma(Z_s) = -\tanh(Z_s / 2)`. The sum of
the sites' gradients equals the gradient over their concatenated blocks, and is computed in this way.

**Safeguards** are those of :mod:`capedjica.algorithms.ica.infomax`, applied to the change of W over a whole
pass. W is also monitored after every block, so that a diverging pass ends early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capedjica.algorithms.ica.infomax import MAX_WEIGHT, Infomax, default_learning_rate
from capedjica.errors import InputError
from capedjica.privacy import validate
from capedjica.tools.arrays import FloatArray

Indices = NDArray[np.intp]
Site = Sequence[ArrayLike]

_POINTS_PER_SQUARED_BLOCK: Final = 20
# Eigenvalues of the covariance below this fraction of the largest are rounding errors: rank is below R.
_RANK: Final = 1e-10


@dataclass(frozen=True, eq=False)
class DjicaResult:
    """Result of djICA.

    Attributes
    ----------
    unmixing : ndarray of shape (R, R)
        Unmixing matrix of the samples as given: the W of equation (1) times the sphering matrix.
    n_iter : int
        Number of passes over the data, including those before a restart.
    changes : list of float
        Squared change of W in every pass; infinite for a pass that ended in a restart.
    learning_rate : float
        Final learning rate, as adjusted by the safeguards.
    """

    unmixing: FloatArray
    n_iter: int
    changes: list[float]
    learning_rate: float


def djica(
    sites: Sequence[Site],
    random_state: int | np.random.Generator | None = None,
    max_iter: int = 1000,
    progress: Callable[[FloatArray, int], None] | None = None,
) -> DjicaResult:
    """Estimate one unmixing matrix for all sites, without privacy.

    Parameters
    ----------
    sites : sequence of sequences of array_like of shape (T, R)
        The subjects of every site, reduced to R dimensions. Lengths may differ; every site must have at least
        20 time points in total.
    random_state : int, numpy.random.Generator or None
        Seed for the order of the points.
    max_iter : int
        Maximum number of passes over the data.
    progress : callable, optional
        Called as ``progress(unmixing, n_iter)`` after every pass.

    Returns
    -------
    DjicaResult
    """
    rng = np.random.default_rng(random_state)
    joined = [_join(site, f"site {s}") for s, site in enumerate(sites)]
    samples, sphering = _sphere(joined)
    starts = np.cumsum([0, *map(len, joined)])
    infomax = Infomax(len(sphering), default_learning_rate(len(sphering)))
    changes: list[float] = []
    for _ in range(validate.count("max_iter", max_iter)):
        W, b = _one_pass(samples, _blocks(starts, rng), infomax)
        infomax.move(W - infomax.W, b - infomax.b)
        changes.append(infomax.change)
        if progress is not None:
            progress(infomax.W @ sphering, len(changes))
        if infomax.converged:
            break
    return DjicaResult(infomax.W @ sphering, len(changes), changes, infomax.learning_rate)


def _join(site: Site, name: str) -> FloatArray:
    """Return all time points of a site, (N_s, R)."""
    try:
        samples = np.concatenate([np.asarray(subject, dtype=np.float64) for subject in site])
    except (TypeError, ValueError):
        raise InputError(f"{name} must contain arrays of numbers (time, R), all with the same R") from None
    if samples.ndim != 2 or len(samples) < _POINTS_PER_SQUARED_BLOCK:
        raise InputError(
            f"{name} must have at least {_POINTS_PER_SQUARED_BLOCK} time points (time, R), "
            f"got shape {samples.shape}"
        )
    if not np.isfinite(samples).all():
        raise InputError(f"{name} must contain finite numbers, got NaN or infinity")
    return samples


def _sphere(sites: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return the sphered samples of all sites, concatenated, and the (R, R) sphering matrix."""
    widths = [site.shape[1] for site in sites]
    if len(set(widths)) != 1:
        raise InputError(f"sites must contain samples of one dimension R, got {widths}")
    samples = np.concatenate(sites)
    samples -= samples.mean(axis=0)
    values, vectors = np.linalg.eigh(samples.T @ samples / len(samples))
    if values[0] <= _RANK * values[-1]:
        raise InputError(f"samples must have full rank in their {len(values)} dimensions; reduce them first")
    sphering: FloatArray = 2 * (vectors / np.sqrt(values)) @ vectors.T
    return samples @ sphering, sphering


def _blocks(starts: Indices, rng: np.random.Generator) -> Indices:
    """Return one row for every step of a pass: the concatenated indices of all sites' blocks."""
    sizes = np.diff(starts)
    block = math.isqrt(int(sizes.min()) // _POINTS_PER_SQUARED_BLOCK)
    steps = int(sizes.min()) // block
    drawn = [
        start + rng.permutation(size)[: steps * block].reshape(steps, block)
        for start, size in zip(starts[:-1], sizes, strict=True)
    ]
    return np.concatenate(drawn, axis=1)


def _one_pass(samples: FloatArray, blocks: Indices, infomax: Infomax) -> tuple[FloatArray, FloatArray]:
    """Run equation (1) over all blocks; return the final W and b."""
    W, b, rate = infomax.W, infomax.b, infomax.learning_rate
    identity = blocks.shape[1] * np.eye(len(W))
    for points in blocks:
        z = samples[points] @ W.T + b
        y = -np.tanh(z / 2)
        W, b = W + rate * (identity + y.T @ z) @ W, b + rate * y.sum(axis=0)
        if not np.abs(W).max() <= MAX_WEIGHT:
            break
    return W, b
