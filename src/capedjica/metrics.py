"""Metrics that compare an estimate with the ground truth: gain index, map correlation, energy, angles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray

# Columns count as orthonormal when V'V is this close to I: float32 bases of all sizes used here pass.
_ORTHONORMAL = 1e-4


class Matching(NamedTuple):
    """One-to-one matching of estimated to true components.

    Attributes
    ----------
    permutation : ndarray of int, shape (R,)
        True component k is matched by the estimated component ``permutation[k]``.
    signs : ndarray of float, shape (R,)
        +1 or -1, so that ``signs[k] * estimated[permutation[k]]`` correlates positively with ``true[k]``.
    correlations : ndarray of float, shape (R,)
        Correlations of the matched pairs, between 0 and 1.
    """

    permutation: NDArray[np.intp]
    signs: FloatArray
    correlations: FloatArray


def _finite(name: str, values: ArrayLike) -> FloatArray:
    """Return a float64 array without NaN or infinity, with at least two dimensions and one element."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of real numbers") from None
    if array.ndim < 2 or array.size == 0:
        raise InputError(f"{name} must be a matrix, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite, got NaN or infinity")
    return array


def _matrix(name: str, values: ArrayLike) -> FloatArray:
    """Return a finite float64 matrix."""
    array = _finite(name, values)
    if array.ndim != 2:
        raise InputError(f"{name} must be a matrix, got shape {array.shape}")
    return array


def normalized_gain_index(P: ArrayLike) -> float:
    r"""Return the normalized gain index of P = W A: 0 when the sources are recovered, 1 at worst.

    .. math:: q = \frac{1}{2 R (R - 1)} \Bigl[
                  \sum_i \Bigl( \sum_j \frac{|p_{ij}|}{\max_k |p_{ik}|} - 1 \Bigr)
                + \sum_j \Bigl( \sum_i \frac{|p_{ij}|}{\max_k |p_{kj}|} - 1 \Bigr) \Bigr]

    (Baker et al. 2018; the Amari index of Nordhausen, Ollila and Oja 2011, scaled to [0, 1]). It is 0 if and
    only if P is a permutation of a scaled identity, with any scale and sign per row. It is invariant to
    permutations and sign changes of rows and columns and to a common scale, and is the same for P and its
    transpose. Away from 0 it depends on the relative scale of the rows, which is fixed by assuming sources of
    unit variance. The paper considers an estimate usable up to 0.1.

    Parameters
    ----------
    P : array_like of shape (R, R)
        Product of the estimated unmixing matrix and the true mixing matrix; no row or column may be zero.

    Examples
    --------
    >>> normalized_gain_index([[0.0, -2.0], [5.0, 0.0]])
    0.0
    >>> normalized_gain_index([[1.0, 1.0], [1.0, 1.0]])
    1.0
    """
    gain = np.abs(_matrix("P", P))
    size = len(gain)
    if gain.shape != (size, size):
        raise InputError(f"P must be square, got shape {gain.shape}")
    rows, columns = gain.max(axis=1, keepdims=True), gain.max(axis=0, keepdims=True)
    if not (rows.all() and columns.all()):
        raise InputError("P must not contain a row or a column of zeros")
    excess = np.sum(gain / rows) + np.sum(gain / columns) - 2 * size
    return float(excess / (2 * size * (size - 1))) if size > 1 else 0.0


def _centred_unit_rows(name: str, components: ArrayLike) -> FloatArray:
    """Return one centred row of unit norm per component; a component may have any shape."""
    array = _finite(name, components)
    rows = array.reshape(len(array), -1)
    rows = rows - rows.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    constant = np.flatnonzero(norms[:, 0] <= 1e-12 * np.abs(array).reshape(len(array), -1).max(axis=1))
    if constant.size:
        raise InputError(f"{name} must not contain a constant component; component {constant[0]} is constant")
    return np.asarray(rows / norms)


def match_components(estimated: ArrayLike, true: ArrayLike) -> Matching:
    """Match estimated to true components one to one, maximizing the sum of absolute correlations.

    Parameters
    ----------
    estimated, true : array_like of shape (R, ...)
        One component per entry of the first axis, given as vectors (R, D) or maps (R, height, width).

    Returns
    -------
    Matching
        The permutation, signs and correlations of the matched pairs.
    """
    first, second = _centred_unit_rows("estimated", estimated), _centred_unit_rows("true", true)
    if first.shape != second.shape:
        raise InputError(
            f"estimated must have the same shape as true, {np.shape(true)}; got {np.shape(estimated)}"
        )
    correlations = second @ first.T
    _, permutation = scipy.optimize.linear_sum_assignment(np.abs(correlations), maximize=True)
    matched = correlations[np.arange(len(second)), permutation]
    return Matching(permutation, np.where(matched < 0, -1.0, 1.0), np.minimum(np.abs(matched), 1.0))


def matched_map_correlation(estimated_maps: ArrayLike, true_maps: ArrayLike) -> float:
    """Return the mean absolute correlation of matched maps (`match_components`); 1 is perfect recovery."""
    return float(match_components(estimated_maps, true_maps).correlations.mean())


def captured_energy(V: ArrayLike, C: ArrayLike, *, relative: bool = False) -> float:
    r"""Return the energy of C within the span of V, :math:`\operatorname{tr}(V' C V)`.

    Parameters
    ----------
    V : array_like of shape (D, R)
        Orthonormal columns.
    C : array_like of shape (D, D)
        Symmetric positive semidefinite matrix of second moments.
    relative : bool, default=False
        Divide by the largest energy that any R orthonormal columns capture, which is the sum of the R largest
        eigenvalues of C; the best value is then 1.
    """
    basis, moments = _matrix("V", V), _matrix("C", C)
    size, rank = basis.shape
    if moments.shape != (size, size) or rank > size:
        raise InputError(f"V must be (D, R), R <= D, and C (D, D); got {basis.shape} and {moments.shape}")
    if not np.allclose(moments, moments.T, rtol=0, atol=1e-6 * np.abs(moments).max()):
        raise InputError("C must be symmetric")
    if np.abs(basis.T @ basis - np.eye(rank)).max() > _ORTHONORMAL:
        raise InputError("V must have orthonormal columns")
    energy = float(np.sum(basis * (moments @ basis)))
    if not relative:
        return energy
    best = float(scipy.linalg.eigvalsh(moments, subset_by_index=(size - rank, size - 1)).sum())
    if best <= 0:
        raise InputError(f"C must have energy to capture; its {rank} largest eigenvalues sum to {best:g}")
    return energy / best


def subspace_angles(A: ArrayLike, B: ArrayLike) -> FloatArray:
    """Return the principal angles between the column spaces of A and B, in radians, largest first.

    Parameters
    ----------
    A : array_like of shape (D, R)
    B : array_like of shape (D, Q)

    Returns
    -------
    ndarray of shape (min(R, Q),)
    """
    first, second = _matrix("A", A), _matrix("B", B)
    if len(first) != len(second):
        raise InputError(
            f"A and B must have the same number of rows, got shapes {first.shape} and {second.shape}"
        )
    return np.asarray(scipy.linalg.subspace_angles(first, second))
