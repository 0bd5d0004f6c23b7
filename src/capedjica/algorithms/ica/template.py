"""Templates: networks that are public knowledge before a study begins, with their names.

Maps may be in any unit, such as z-values up to 50 or weights. Only their shape matters, so each is scaled to
a largest absolute value of 1. All results have the order, signs and names of the template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike

from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray

# With a larger condition number of the unit-norm maps, they cannot be separated in a scan.
WORST_CONDITION: Final = 1e3
LONGEST_NAME: Final = 80
# Fraction of the energy of each map that a basis must keep.
LEAST_KEPT: Final = 0.1


@dataclass(frozen=True, eq=False)
class Template:
    """Known networks, created and validated by :meth:`of`.

    Attributes
    ----------
    maps : array (R, D)
        One map for each network, with its original sign and a largest absolute value of 1.
    names : tuple of str
        Name of each network.
    """

    maps: FloatArray
    names: tuple[str, ...]

    @classmethod
    def of(cls, maps: ArrayLike, names: Sequence[str] | None = None, where: str = "the template") -> Self:
        """Validate and scale maps of shape (R, D); ``where`` names them in error messages."""
        try:
            values = np.array(maps, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{where} must be an array of real numbers, (networks, features)") from None
        _check_maps(values, where)
        named = tuple(names) if names is not None else _numbered(len(values))
        _check_names(named, len(values), where)
        scaled = values / np.abs(values).max(axis=1, keepdims=True)
        _check_collinear(scaled, named, where)
        return cls(np.ascontiguousarray(scaled), named)

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names, if networks were given names and not only numbers."""
        return () if self.names == _numbered(len(self.maps)) else self.names

    @property
    def n_networks(self) -> int:
        """Number of networks R."""
        return len(self.maps)

    @property
    def n_features(self) -> int:
        """Number of features D."""
        return int(self.maps.shape[1])

    def check_kept(self, basis: FloatArray | None) -> None:
        """Reject a basis (K, D) of orthonormal rows in which a network is lost or cannot be separated."""
        if basis is None:
            return
        unit = self.maps / np.linalg.norm(self.maps, axis=1, keepdims=True)
        inside = unit @ basis.T
        kept = np.sum(inside**2, axis=1)
        if kept.min() < LEAST_KEPT:
            name = self.names[int(kept.argmin())]
            raise InputError(
                f"the basis keeps {kept.min():.0%} of the template's network {name!r}, but at least "
                f"{LEAST_KEPT:.0%} is required; its resolution is finer than that of the analysis"
            )
        _check_maps(inside, "the template, in the basis,")
        _check_collinear(inside, self.names, "the template, in the basis,")


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"network {number}" for number in range(1, count + 1))


def _check_maps(values: FloatArray, where: str) -> None:
    if values.ndim != 2 or len(values) < 2:
        raise InputError(
            f"{where} must contain at least two maps, shape (networks, features); got {values.shape}"
        )
    networks, features = values.shape
    if features < networks:
        raise InputError(f"{where} has {networks} networks; expected at most {features}, one per feature")
    broken = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if broken.size:
        raise InputError(f"{where}: map {broken[0] + 1} contains NaN or infinity")
    empty = np.flatnonzero(~values.any(axis=1))
    if empty.size:
        raise InputError(f"{where}: map {empty[0] + 1} is zero everywhere; remove it")


def _check_names(names: tuple[str, ...], networks: int, where: str) -> None:
    if len(names) != networks:
        raise InputError(f"{where} has {networks} networks, but {len(names)} names are given")
    for name in names:
        if not (isinstance(name, str) and name.strip() and len(name) <= LONGEST_NAME and name.isprintable()):
            raise InputError(
                f"{where}: the name of a network must have 1 to {LONGEST_NAME} printable characters, "
                f"got {str(name)[:LONGEST_NAME]!r}"
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{where}: two networks have the name {twice!r}; names must be unique")


def _check_collinear(maps: FloatArray, names: tuple[str, ...], where: str) -> None:
    """Reject maps if one is nearly a linear combination of the others."""
    unit = maps / np.linalg.norm(maps, axis=1, keepdims=True)
    left, singular, _ = np.linalg.svd(unit, full_matrices=False)
    if singular[-1] * WORST_CONDITION < singular[0]:
        condition = singular[0] / max(singular[-1], 1e-300)
        first, second = np.argsort(-np.abs(left[:, -1]))[:2]
        raise InputError(
            f"{where}: its maps are collinear (condition number {condition:.3g}, "
            f"at most {WORST_CONDITION:g} allowed), in particular {names[first]!r} and {names[second]!r}"
        )
