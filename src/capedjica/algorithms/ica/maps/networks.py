"""Networks found by joint ICA: maps with a reproducible order, sign and scale, and their stability.

Stability is the predicted correlation of a map with the same map of another run on the same participants with
fresh noise. It is computed from what was published and the known noise alone, so it has no privacy cost
(:mod:`capedjica.algorithms.ica.maps.calibration`). With a template, it is the stability of the *difference*
from the template: the map itself is stable because it is the template's, whatever the data show. It refers
only to the noise: a map can be stable and yet meaningless.

Clips and floors, which bound the influence of one subject, may suppress components whose power is far below
that of others (mixing matrices with condition numbers above 20 or so), which redrawn noise does not show.
Such maps are not *recoverable*, which is also determined from what was published
(:func:`capedjica.algorithms.ica.subject_level.likeness_unclipped`); their stability is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Result, ResultTable
from capedjica.algorithms.ica.maps.calibration import between_runs
from capedjica.algorithms.ica.maps.component_number import ComponentNumber
from capedjica.algorithms.ica.maps.denoising import denoised
from capedjica.algorithms.ica.maps.template_shift import ROUNDING, Movement, movement_table
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.parallel import one_thread
from capedjica.tools.arrays import FloatArray

Draws = Callable[[], Iterator[FloatArray] | None]
# Correlation of a map with itself below which clipping has changed it (docs/development/research-notes.md).
UNCHANGED: Final = 0.98
Unclipped = Callable[[], FloatArray | None]
Prediction = Callable[[FloatArray], FloatArray]


def pseudo_inverse(matrix: FloatArray) -> FloatArray:
    """Return the Moore-Penrose inverse."""
    with one_thread():
        inverse: FloatArray = np.linalg.pinv(matrix).astype(np.float64)
    return inverse


def peak_order(mixing: FloatArray) -> NDArray[np.intp]:
    """Return the order of maps by the features at which they peak."""
    return np.argsort(np.argmax(np.abs(mixing), axis=0), kind="stable")


def stable_maps(mixing: FloatArray) -> FloatArray:
    """Scale each map to a largest absolute value of 1, positive, and sort maps by the feature of the peak."""
    peaks = np.argmax(np.abs(mixing), axis=0)
    heights = mixing[peaks, np.arange(mixing.shape[1])]
    scaled = mixing / np.where(heights == 0, 1.0, heights)
    return np.ascontiguousarray(scaled[:, peak_order(mixing)])


def mixing_of(unmixing: FloatArray, template: Template | None = None) -> FloatArray:
    """Return the (D, R) maps of an (R, D) unmixing matrix, reproducible between runs with the same maps.

    Maps from a template keep its order and signs.
    """
    return _reproducible(pseudo_inverse(unmixing), template)


def _reproducible(mixing: FloatArray, template: Template | None) -> FloatArray:
    if template is None:
        return stable_maps(mixing)
    heights = np.abs(mixing).max(axis=0)
    signs = np.where(np.einsum("rd,dr->r", template.maps, mixing) < 0, -1.0, 1.0)
    return np.ascontiguousarray(mixing * (signs / np.where(heights == 0, 1.0, heights)))


def likeness(
    maps: FloatArray,
    draws: Iterable[FloatArray],
    template: Template | None = None,
    basis: FloatArray | None = None,
) -> FloatArray:
    """Return the median correlation of each map with its redrawn versions, between 0 and 1.

    Parameters
    ----------
    maps : array (D, R)
        The estimate.
    draws : iterable of arrays (D, R)
        Mixing matrices that might have resulted with different noise, in the order of the maps; with a basis,
        their coefficients (K, R).
    template : Template, optional
        Compare only the part of every map that is orthogonal to that of this template.
    basis : array (K, D), optional
        Orthonormal rows, of which the maps are combinations.
    """
    with one_thread():
        if basis is not None and template is None:
            own, others = basis @ maps, iter(draws)
        else:
            own, others, basis = maps, in_features(draws, basis), None
        own = _unit(_without(own, template), basis)
        correlations = [np.sum(own * _unit(_without(draw, template), basis), axis=0) for draw in others]
        # The sign of a map is arbitrary, that of a difference from a template is not.
        alike = np.maximum(correlations, 0.0) if template else np.abs(correlations)
    return np.asarray(np.minimum(np.median(alike, axis=0), 1.0))


def _without(maps: FloatArray, template: Template | None) -> FloatArray:
    """Return maps (D, R) without their parts along those of the template, with its signs."""
    if template is None:
        return maps
    unit = template.maps.T / np.linalg.norm(template.maps, axis=1)
    along = np.sum(maps * unit, axis=0)
    apart = maps - along * unit
    # If a map is that of the template, only rounding errors remain.
    nothing = np.linalg.norm(apart, axis=0) <= ROUNDING * np.abs(along)
    difference: FloatArray = np.where(nothing, 0.0, apart * np.where(along < 0, -1.0, 1.0))
    return difference


def in_features(draws: Iterable[FloatArray], basis: FloatArray | None) -> Iterator[FloatArray]:
    """Convert coefficients (K, R) of a basis to maps (D, R)."""
    return iter(draws) if basis is None else (basis.T @ draw for draw in draws)


def _unit(maps: FloatArray, basis: FloatArray | None = None) -> FloatArray:
    r"""Return columns whose inner products are the correlations of maps, or of maps with these coefficients.

    A centred map has the squared norm :math:`a' (I - D u u') a`, with a its coefficients and u the means of
    the basis. The root of that matrix is :math:`I - c\, u u' / |u|^2`, with
    :math:`c = 1 - \sqrt{1 - D |u|^2}`.
    """
    if basis is None:
        centred = maps - maps.mean(axis=0)
    else:
        means = basis.mean(axis=1)
        square = max(float(means @ means), np.finfo(float).tiny)
        part = 1 - np.sqrt(max(1 - basis.shape[1] * square, 0.0))
        centred = maps - np.outer(means, means @ maps) * (part / square)
    unit: FloatArray = centred / np.maximum(np.linalg.norm(centred, axis=0), np.finfo(float).tiny)
    return unit


@dataclass(frozen=True, eq=False)
class Networks(Result):
    """Estimated networks.

    Attributes
    ----------
    estimate : array (R, D)
        Unmixing matrix of centred data, with rows in any order and scale.
    draws : callable
        Yields (D, R) mixing matrices that might have resulted with different noise, in the order of the
        components of ``estimate``, from what was published and the known noise alone; with a basis, their
        coefficients (K, R), since maps of voxels are large; None if unknown.
    template : Template, optional
        Template of the networks; the rows of ``estimate`` are in its order.
    movements : tuple of Movement
        Distance of each network from the template, where it was measured.
    unclipped : callable
        Returns the correlation of each map of ``estimate`` with that without clipping; None if it is unknown.
    number : ComponentNumber, optional
        Number of recoverable components, if a mean projector was released.
    predict : callable
        Returns the predicted correlation between runs, given that of ``estimate`` with the draws.
    denoises : bool
        Whether there is prior knowledge about maps that the method has not used.
    basis : array (K, D), optional
        The public basis, with the smoothest map first.
    """

    estimate: FloatArray
    draws: Draws = lambda: None
    template: Template | None = None
    movements: tuple[Movement, ...] = ()
    unclipped: Unclipped = lambda: None
    number: ComponentNumber | None = None
    predict: Prediction = between_runs
    denoises: bool = False
    basis: FloatArray | None = None

    @cached_property
    def _raw(self) -> FloatArray:
        """The maps as columns (D, R), in the order, sign and scale of ``estimate``."""
        return pseudo_inverse(self.estimate)

    @cached_property
    def mixing(self) -> FloatArray:
        """The maps as columns (D, R), in an order, sign and scale that are reproducible between runs."""
        return _reproducible(self._raw, self.template)

    @cached_property
    def unmixing(self) -> FloatArray:
        """The matrix (R, D) that unmixes a centred scan."""
        return pseudo_inverse(self.mixing)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the networks in the template; empty without one."""
        return () if self.template is None else self.template.names

    @property
    def maps(self) -> FloatArray:
        """The maps as rows (R, D)."""
        return np.ascontiguousarray(self.mixing.T)

    @cached_property
    def stability(self) -> FloatArray | None:
        """Predicted correlation of each map with that of another run, in the order of the maps.

        With a template it is the stability of the difference from it, or 0 if there is none. It is 0 for
        maps that are not recoverable.
        """
        if self.redrawn is None:
            return None
        return np.where(self.recoverable, self._ordered(self.predict(self.redrawn)), 0.0)

    @cached_property
    def redrawn(self) -> FloatArray | None:
        """Correlation of each map with versions of it with fresh noise, in the order of ``estimate``."""
        draws = self.draws()
        return None if draws is None else likeness(self._raw, draws, self.template, self.basis)

    @cached_property
    def denoised(self) -> FloatArray | None:
        """The denoised maps as rows (R, D) (:mod:`capedjica.algorithms.ica.maps.denoising`).

        They have the order, sign and scale of the raw maps. None if there is no prior knowledge about maps
        that the method has not used: neither positions of the features nor a template.
        """
        draws = self.draws() if self.denoises and (self.basis is not None or self.template) else None
        if draws is None:
            return None
        known = None if self.template is None else self.template.maps.T
        with one_thread():
            maps = self._ordered(denoised(self._raw, draws, self.basis, known).T)
        signs = np.where(np.sum(maps * self.maps, axis=1) < 0, -1.0, 1.0)
        heights = np.maximum(np.abs(maps).max(axis=1), np.finfo(float).tiny)
        return np.ascontiguousarray(maps * (signs / heights)[:, np.newaxis])

    @cached_property
    def recoverable(self) -> NDArray[np.bool_]:
        """Whether each map can be estimated from what was published, in the order of the maps.

        False if the component is so weak compared with others that clipping has suppressed it: the map shown
        in its place must not be used, however stable it is. More participants or a larger epsilon do not
        help; scaling features to equal power before the analysis, or fewer components, may.
        """
        unclipped = self.unclipped()
        if unclipped is None:
            return np.ones(len(self.estimate), dtype=bool)
        by_noise = 1.0 if self.redrawn is None else self.redrawn
        # Where noise changes a map more than clipping does, its stability says so.
        return self._ordered(unclipped >= np.minimum(UNCHANGED, by_noise))

    def _ordered(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return one value for each component of ``estimate`` in the order of the maps."""
        return values if self.template else values[peak_order(self._raw)]

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return the maps as columns, the matrix that unmixes a centred scan, and denoised maps as rows."""
        arrays = {"unmixing": self.unmixing, "mixing": self.mixing}
        return arrays if self.denoised is None else arrays | {"maps_denoised": self.denoised}

    def tables(self) -> Sequence[ResultTable]:
        """Return the distances of networks from the template and the unrecoverable maps, where known."""
        moved = (movement_table(self.movements),) if self.movements else ()
        number = self.number
        told = (number.table(),) if number is not None and number.telling else ()
        return (*moved, *told, *self._not_recoverable())

    def _not_recoverable(self) -> Sequence[ResultTable]:
        if self.recoverable.all():
            return ()
        names = self.names or [f"map {number}" for number in range(1, len(self.estimate) + 1)]
        rows = [(name, "yes" if kept else "no") for name, kept in zip(names, self.recoverable, strict=True)]
        caption = (
            "Maps that are not recoverable are too weak compared with others to be found; do not use them."
        )
        return (ResultTable("recoverable", caption, ("map", "recoverable"), rows),)
