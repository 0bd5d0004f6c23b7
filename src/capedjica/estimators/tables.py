"""Read and validate tables with one subject per row; error messages give row numbers, never values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from capedjica.errors import InputError
from capedjica.estimators.inputs import Sites, name_sites
from capedjica.tools.arrays import FloatArray


def read_tables(X: Sites, n_features: int | None = None) -> dict[str, FloatArray]:
    """Return one array (subjects, features) per site, with the given width or that of the first row."""
    named = name_sites(X)
    first_name, first = next(iter(named.items()))
    width = n_features or read_table(f"X: site {first_name}", first).shape[1]
    return {name: read_table(f"X: site {name}", site, width) for name, site in named.items()}


def read_table(where: str, rows: Any, n_features: int | None = None) -> FloatArray:
    """Return rows of numbers as an array (subjects, features); a single number is a row of one feature."""
    # A data frame iterates over its columns, an array over its rows.
    people = np.asarray(rows) if hasattr(rows, "__array__") else rows
    table = [_read_row(f"{where}, row {number}", row) for number, row in enumerate(people)]
    width = n_features or len(table[0])
    for number, row in enumerate(table):
        if len(row) != width:
            raise InputError(f"{where}, row {number} has {len(row)} features, expected {width}")
    return np.stack(table)


def _read_row(where: str, row: Any) -> FloatArray:
    try:
        values = np.asarray(row, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where} is not a row of numbers") from None
    if values.ndim > 1 or not values.size:
        raise InputError(f"{where} must be a row of numbers, got shape {values.shape}")
    return values.reshape(-1)


def read_people(X: Any, n_features: int) -> FloatArray:
    """Return the rows to which a fitted result is applied; unlike in ``fit``, all must be finite."""
    if not hasattr(X, "__len__") or not len(X):
        raise InputError("X must contain rows of numbers, one per subject")
    table = read_table("X", X, n_features)
    broken = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if broken.size:
        raise InputError(f"X, row {broken[0]} contains NaN or infinity ({broken.size} such rows)")
    return table


def read_labels(y: Sites, tables: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the labels of every site, one per row, each 0 or 1; lists follow the order of X."""
    if not hasattr(y, "__len__") or len(y) != len(tables):
        raise InputError(f"y must contain labels for each of the {len(tables)} sites of X")
    if isinstance(y, Mapping):
        named = {str(name): labels for name, labels in y.items()}
        if set(named) != set(tables):
            raise InputError(f"y must name the same sites as X, {', '.join(tables)}; got {', '.join(named)}")
    else:
        named = dict(zip(tables, y, strict=True))
    return {name: _read_site_labels(name, named[name], len(table)) for name, table in tables.items()}


def _read_site_labels(name: str, labels: Any, n_people: int) -> FloatArray:
    if np.shape(labels) != (n_people,):
        raise InputError(
            f"y: site {name} must have {n_people} labels, one per row of X; got shape {np.shape(labels)}"
        )
    values = np.asarray(labels)
    wrong = np.flatnonzero(~np.isin(values, [0, 1]))
    if wrong.size:
        raise InputError(f"y: site {name}, row {wrong[0]} must be 0 or 1 ({wrong.size} such rows)")
    return values.astype(np.float64)
