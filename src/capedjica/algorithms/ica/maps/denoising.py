r"""Denoising of maps by empirical Bayes, using the known noise and the smoothness of maps.

Let a be a map in the K coefficients of a public basis, ordered from the smoothest to the finest, m its prior
mean (0, or the part along a template's map), and :math:`q_k` the variance of its noise, estimated by drawing
the known noise of the releases. If the coefficients of :math:`a - m` have variances :math:`p_k` that change
little from one to the next, the best estimate of each is

.. math:: m_k + \Bigl(1 - \frac{q_k}{p_k + q_k}\Bigr)\, (a_k - m_k),                                     (1)

with :math:`p_k + q_k` the mean of :math:`(a_k - m_k)^2` over neighbours, and :math:`q_k` likewise. If
features have no spatial positions, as in a table of regions, neighbours are uninformative, and without a
template there is no prior: maps are unchanged. With a template, all coefficients share one variance, and the
difference from the template is shrunk as a whole.

The result of equation (1) is shrunk towards the prior. Use the raw map for inference: tests and standard
errors account for its noise. If the prior is a template, a denoised map resembles it for that reason alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from capedjica.tools.arrays import FloatArray

# Fraction of the coefficients of a basis, on each side, over which variances are averaged.
NEIGHBOURS: Final = 1 / 8
# Minimum fraction kept of any coefficient: the noise is estimated from few draws.
LEAST_KEPT: Final = 0.05


def prior_words(template: str) -> str:
    """Return what denoised maps are shrunk towards, in words."""
    return "smooth maps and the template" if template else "smooth maps"


def denoised_words(template: str) -> str:
    """Return a note on the use of raw and denoised maps."""
    caution = (
        " They resemble the template for that reason too: the resemblance is not evidence for its networks."
        if template
        else ""
    )
    return (
        "Raw maps are for inference. Denoised maps (maps_denoised in the results) are for viewing only: they "
        f"are shrunk towards {prior_words(template)}.{caution}"
    )


def denoised(
    mixing: FloatArray,
    draws: Iterable[FloatArray],
    basis: FloatArray | None,
    template: FloatArray | None = None,
) -> FloatArray:
    """Return denoised maps (D, R) by equation (1).

    Parameters
    ----------
    mixing : array (D, R)
        The raw maps.
    draws : iterable of arrays (D, R)
        The maps that might have resulted with different noise; with a basis, their coefficients (K, R).
    basis : array (K, D), optional
        Orthonormal rows, the smoothest first.
    template : array (D, R), optional
        The prior's maps, in the same order.
    """
    inside = mixing if basis is None else basis @ mixing
    noise = _noise(inside, draws)
    known = None if template is None else (template if basis is None else basis @ template)
    expected = np.zeros_like(inside) if known is None else known * _fit(inside, known)
    apart = inside - expected
    energy, noise = (_averaged(values, basis) for values in (apart**2, noise))
    kept = np.clip(1 - noise / np.maximum(energy, np.finfo(float).tiny), LEAST_KEPT, 1.0)
    maps: FloatArray = expected + kept * apart
    return maps if basis is None else basis.T @ maps


def _noise(inside: FloatArray, draws: Iterable[FloatArray]) -> FloatArray:
    """Return the variance of each coefficient, from draws scaled to fit the maps."""
    squares = [(draw * _fit(inside, draw) - inside) ** 2 for draw in draws]
    return np.asarray(np.mean(squares, axis=0))


def _fit(maps: FloatArray, others: FloatArray) -> FloatArray:
    """Return the factors that bring each of ``others`` closest to its map."""
    squares = np.maximum(np.sum(others**2, axis=0), np.finfo(float).tiny)
    return np.asarray(np.sum(maps * others, axis=0) / squares)


def _averaged(values: FloatArray, basis: FloatArray | None) -> FloatArray:
    """Return means over neighbours; over all numbers of a map if features have no spatial positions."""
    if basis is None:
        return np.broadcast_to(values.mean(axis=0), values.shape)
    return averaged(values, int(len(values) * NEIGHBOURS))


def averaged(values: FloatArray, n_neighbours: int) -> FloatArray:
    """Return means over so many neighbours on each side along the first axis; the ends count repeatedly."""
    beyond = [(n_neighbours, n_neighbours)] + [(0, 0)] * (values.ndim - 1)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(values, beyond, mode="edge"), 2 * n_neighbours + 1, axis=0
    )
    means: FloatArray = windows.mean(axis=-1)
    return means
