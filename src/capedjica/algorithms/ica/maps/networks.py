"""What a joint ICA finds: maps whose order, sign and scale stay the same between runs, and their stability.

Stability is the correlation that a map is predicted to have with the same map of another run of the same
participants with fresh noise. It is told from what was published and the known noise alone, so that it costs
nothing (:mod:`capedjica.algorithms.ica.maps.calibration`). With a template it is that of the *difference*
from the template: the map itself is stable for being the template's, whatever the data say. It speaks of the
noise only: a map can be stable and mean nothing.

Clips and floors, which bound what one person can do, may bury components whose power is far below that of
others (mixing matrices of condition numbers above 20 or so), and no draw of the noise shows that. Such maps
are not *recoverable*, which is told from what was published too
(:func:`capedjica.algorithms.ica.subject_level.whitened_enough`); their stability is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
Recovered = Callable[[], NDArray[np.bool_] | None]
Prediction = Callable[[FloatArray], FloatArray]


def pseudo_inverse(matrix: FloatArray) -> FloatArray:
    """Return the Moore-Penrose inverse."""
    inverse: FloatArray = np.linalg.pinv(matrix).astype(np.float64)
    return inverse


def peak_order(mixing: FloatArray) -> NDArray[np.intp]:
    """Return the order of maps by the features at which they peak."""
    return np.argsort(np.argmax(np.abs(mixing), axis=0), kind="stable")


def stable_maps(mixing: FloatArray) -> FloatArray:
    """Scale each map to a largest absolute value of 1, positive, and sort maps by where that peak is."""
    peaks = np.argmax(np.abs(mixing), axis=0)
    heights = mixing[peaks, np.arange(mixing.shape[1])]
    scaled = mixing / np.where(heights == 0, 1.0, heights)
    return np.ascontiguousarray(scaled[:, peak_order(mixing)])


def mixing_of(unmixing: FloatArray, template: Template | None = None) -> FloatArray:
    """Return the (D, R) maps of an (R, D) unmixing matrix, stable between runs that find the same maps.

    Those that came from a template keep its order and point its way.
    """
    mixing = pseudo_inverse(unmixing)
    if template is None:
        return stable_maps(mixing)
    heights = np.abs(mixing).max(axis=0)
    signs = np.where(np.einsum("rd,dr->r", template.maps, mixing) < 0, -1.0, 1.0)
    return np.ascontiguousarray(mixing * (signs / np.where(heights == 0, 1.0, heights)))


def likeness(
    unmixing: FloatArray, draws: Iterable[FloatArray], template: Template | None = None
) -> FloatArray:
    """Return the median correlation of each map with itself as it might have come out, between 0 and 1.

    Parameters
    ----------
    unmixing : array (R, D)
        What was found.
    draws : iterable of arrays (D, R)
        Mixing matrices as they might have come out with other noise, in the order of the unmixing matrix.
    template : Template, optional
        What maps are compared without: of every map that which is not along the template's.
    """
    with one_thread():
        own = _unit(_without(pseudo_inverse(unmixing), template))
        correlations = [np.sum(own * _unit(_without(draw, template)), axis=0) for draw in draws]
        # The sign of a map means nothing, that of a difference from a template does.
        alike = np.maximum(correlations, 0.0) if template else np.abs(correlations)
    return np.asarray(np.minimum(np.median(alike, axis=0), 1.0))


def _without(maps: FloatArray, template: Template | None) -> FloatArray:
    """Return maps (D, R) without what is along those of the template, all pointing its way."""
    if template is None:
        return maps
    unit = template.maps.T / np.linalg.norm(template.maps, axis=1)
    along = np.sum(maps * unit, axis=0)
    apart = maps - along * unit
    # Of a map that is the template's, rounding alone is left.
    nothing = np.linalg.norm(apart, axis=0) <= ROUNDING * np.abs(along)
    difference: FloatArray = np.where(nothing, 0.0, apart * np.where(along < 0, -1.0, 1.0))
    return difference


def _unit(maps: FloatArray) -> FloatArray:
    centred = maps - maps.mean(axis=0)
    unit: FloatArray = centred / np.maximum(np.linalg.norm(centred, axis=0), np.finfo(float).tiny)
    return unit


@dataclass(frozen=True, eq=False)
class Networks(Result):
    """Networks as they were estimated.

    Attributes
    ----------
    estimate : array (R, D)
        Unmixing matrix of centred data, its rows in any order and scale.
    draws : callable
        Yields (D, R) mixing matrices as they might have come out with other noise, in the order of the
        components of ``estimate``, from what was published and the known noise alone; None if not known.
    template : Template, optional
        What the networks were known as before; the rows of ``estimate`` are in its order.
    movements : tuple of Movement
        How far each is from the template, where that was measured.
    recovered : callable
        Returns whether each component of ``estimate`` was strong enough to be found; None if all were.
    number : ComponentNumber, optional
        How many components the noise lets through, where a mean projector was released.
    predict : callable
        Returns the correlation between runs that follows from that of ``estimate`` with the draws.
    denoises : bool
        Whether more is known of maps, beforehand, than the method has already used.
    basis : array (K, D), optional
        The public basis, the smoothest map first.
    """

    estimate: FloatArray
    draws: Draws = lambda: None
    template: Template | None = None
    movements: tuple[Movement, ...] = ()
    recovered: Recovered = lambda: None
    number: ComponentNumber | None = None
    predict: Prediction = between_runs
    denoises: bool = False
    basis: FloatArray | None = None

    @cached_property
    def mixing(self) -> FloatArray:
        """The maps as columns (D, R), in an order, sign and scale that stay the same between runs."""
        return mixing_of(self.estimate, self.template)

    @property
    def names(self) -> tuple[str, ...]:
        """What the template calls the networks; nothing without one."""
        return () if self.template is None else self.template.names

    @property
    def maps(self) -> FloatArray:
        """The maps as rows (R, D)."""
        return np.ascontiguousarray(self.mixing.T)

    @cached_property
    def stability(self) -> FloatArray | None:
        """The correlation of each map that another run would have with it, in the order of the maps.

        With a template it is that of the difference from it, and 0 where there is none. It is 0 for maps that
        are not recoverable.
        """
        draws = self.draws()
        if draws is None:
            return None
        predicted = self.predict(likeness(self.estimate, draws, self.template))
        return np.where(self.recoverable, self._ordered(predicted), 0.0)

    @cached_property
    def denoised(self) -> FloatArray | None:
        """The maps as rows (R, D) with less noise (:mod:`capedjica.algorithms.ica.maps.denoising`).

        They are in the order, sign and scale of the raw ones. None where nothing is known of maps beforehand
        that the method has not used: neither places of the features nor a template.
        """
        draws = self.draws() if self.denoises and (self.basis is not None or self.template) else None
        if draws is None:
            return None
        known = None if self.template is None else self.template.maps.T
        with one_thread():
            raw = pseudo_inverse(self.estimate)
            maps = self._ordered(denoised(raw, draws, self.basis, known).T)
        signs = np.where(np.sum(maps * self.maps, axis=1) < 0, -1.0, 1.0)
        heights = np.maximum(np.abs(maps).max(axis=1), np.finfo(float).tiny)
        return np.ascontiguousarray(maps * (signs / heights)[:, np.newaxis])

    @cached_property
    def recoverable(self) -> NDArray[np.bool_]:
        """Whether each map can be told from what was published, in the order of the maps.

        False where the component is so weak beside others that clipping has buried it: the map shown in its
        place is not to be used, however stable it is. More people or a larger epsilon do not help; scaling
        features to equal power before the analysis, or fewer components, may.
        """
        recovered = self.recovered()
        if recovered is None:
            return np.ones(len(self.estimate), dtype=bool)
        return self._ordered(recovered)

    def _ordered(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return one value for each component of ``estimate`` in the order of the maps."""
        return values if self.template else values[peak_order(pseudo_inverse(self.estimate))]

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return the maps as columns, the matrix that unmixes a centred scan, and denoised maps as rows."""
        arrays = {"unmixing": pseudo_inverse(self.mixing), "mixing": self.mixing}
        return arrays if self.denoised is None else arrays | {"maps_denoised": self.denoised}

    def tables(self) -> Sequence[ResultTable]:
        """Return how far networks are from the template and which are not recoverable, where known."""
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
            "Maps that are not recoverable are too weak beside others to be found, and must not be used."
        )
        return (ResultTable("recoverable", caption, ("map", "recoverable"), rows),)
