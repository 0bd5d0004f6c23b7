"""Read and validate the sites and subjects given to an estimator, before any budget is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from capedjica.errors import InputError
from capedjica.tools.arrays import Scan

Sites = Mapping[str, Any] | Sequence[Any]
OnBad = Literal["raise", "zero"]


def name_sites(X: Sites) -> dict[str, Any]:
    """Return sites by name; those of a list are named site-1, site-2, ..."""
    if isinstance(X, Mapping):
        sites = {str(name): site for name, site in X.items()}
    elif isinstance(X, str | bytes) or is_frame(X) or not hasattr(X, "__len__"):
        raise InputError(f"X must be a list of sites or a dict from name to site, got {type(X).__name__}")
    else:
        sites = {f"site-{number}": site for number, site in enumerate(X, start=1)}
    if not sites:
        raise InputError("X contains no sites; expected at least one")
    for name, site in sites.items():
        if isinstance(site, Mapping | str | bytes):
            raise InputError(
                f"X: site {name} is a {type(site).__name__}; expected a list of its subjects"
                + ", for example list(site.values())" * isinstance(site, Mapping)
            )
        if not hasattr(site, "__len__") or not len(site):
            raise InputError(f"X: site {name} has no subjects; expected at least one")
    # A data frame iterates over its columns, an array over its rows.
    return {name: site.to_numpy() if is_frame(site) else site for name, site in sites.items()}


def is_frame(given: Any) -> bool:
    """Return whether this is a data frame (pandas or similar) with named columns."""
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def feature_names(X: Sites) -> list[str] | None:
    """Return the column names if all subjects are data frames with string names, None otherwise."""
    sites = X.values() if isinstance(X, Mapping) else X
    subjects = [subject for site in sites for subject in site]
    if not all(map(is_frame, subjects)):
        return None
    first = list(subjects[0].columns)
    if not all(isinstance(name, str) for name in first):
        return None
    for number, subject in enumerate(subjects):
        if list(subject.columns) != first:
            raise InputError(
                f"X: the columns of subject {number} (counted over all sites) differ from those of the first "
                "subject; all subjects must have the same columns in the same order"
            )
    return first


def read_sites(
    X: Sites, n_components: int, on_bad: OnBad = "raise", longest: int | None = None
) -> dict[str, list[Scan]]:
    """Return the subjects of every site as (time, features) arrays, without copying them.

    Parameters
    ----------
    X : list of sites, or dict from name to site
        A site is a list of subjects; a subject is an array (time, features). Scans may differ in length.
    n_components : int
        R. A scan needs at least R time points and no constant feature; 0 disables both checks.
    on_bad : {"raise", "zero"}
        Handling of a subject with NaN, infinity, a constant feature, no time points, or a number of features
        that differs from the majority: "raise" an error, or include the subject as sites do in a federated
        run, where an unusable subject contributes zero.
    longest : int, optional
        Largest number of time points of a scan that are used. A longer scan raises an error, or is truncated
        with ``on_bad="zero"``.
    """
    if on_bad not in get_args(OnBad):
        raise InputError(f"on_bad must be 'raise' or 'zero', got {on_bad!r}")
    named = name_sites(X)
    for name, site in named.items():
        _check_site(name, site)
    read = _arrays_or_nothing if on_bad == "zero" else _arrays
    sites = read(named)
    first_name, first = next((name, site[0]) for name, site in sites.items())
    if sum(map(len, sites.values())) < 2:
        raise InputError(
            f"X contains only one subject (site {first_name}); a private result needs at least two"
        )
    for name, site in sites.items():
        for number, subject in enumerate(site):
            where = f"site {name}, subject {number}"
            if subject.shape[1] != first.shape[1]:
                raise InputError(
                    f"X: {where} has {subject.shape[1]} features, but site {first_name}, subject 0 has "
                    f"{first.shape[1]}; all subjects must have the same number"
                )
            _check_subject(subject, where, n_components, on_bad, longest)
    if n_components > first.shape[1]:
        raise InputError(
            f"n_components must be at most {first.shape[1]}, the number of features of X; got {n_components}"
        )
    return sites


def _check_site(name: str, site: Any) -> None:
    """Reject a single subject where a list of subjects is expected, as when X is a flat list of subjects."""
    if isinstance(site, np.ndarray) and site.ndim < 3 and site.dtype != object:
        raise InputError(
            f"X: site {name} is one array of shape {site.shape}; expected a list of subjects, each (time, "
            "features). If X is a list of subjects, pass a list of sites: [[subject, ...], [subject, ...]]"
        )


def _arrays(named: Mapping[str, Any]) -> dict[str, list[Scan]]:
    return {name: [_array(name, m, s) for m, s in enumerate(site)] for name, site in named.items()}


def _arrays_or_nothing(named: Mapping[str, Any]) -> dict[str, list[Scan]]:
    """Return arrays of the most common width; an invalid subject becomes an array without time points."""

    def attempt(name: str, number: int, subject: Any) -> Scan | None:
        try:
            return _array(name, number, subject)
        except InputError:
            return None

    found = {name: [attempt(name, m, s) for m, s in enumerate(site)] for name, site in named.items()}
    widths = Counter(one.shape[1] for site in found.values() for one in site if one is not None)
    if not widths:
        return _arrays(named)  # raises the error of the first subject
    ((width, _),) = widths.most_common(1)
    nothing = np.empty((0, width))
    return {
        name: [nothing if one is None or one.shape[1] != width else one for one in site]
        for name, site in found.items()
    }


def _array(name: str, number: int, subject: Any) -> Scan:
    try:
        array = np.asarray(subject)
        if array.dtype.kind != "f":
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"X: site {name}, subject {number} is not an array of numbers") from None
    if array.ndim != 2 or not array.shape[1]:
        raise InputError(
            f"X: site {name}, subject {number} must be (time, features), got shape {array.shape}"
        )
    return array


def _check_subject(subject: Scan, where: str, n_components: int, on_bad: OnBad, longest: int | None) -> None:
    if on_bad == "zero":
        return
    if not len(subject):
        raise InputError(f"X: {where} has no time points; exclude it or pass on_bad='zero'")
    if longest is not None and len(subject) > longest:
        raise InputError(
            f"X: {where} has {len(subject)} time points, but at most {longest} are used: set scan_length "
            "to the length of a typical scan, or pass on_bad='zero' to truncate longer scans"
        )
    if len(subject) < n_components:
        raise InputError(f"X: {where} has {len(subject)} time points, fewer than n_components={n_components}")
    low, high = subject.min(axis=0), subject.max(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        broken = np.flatnonzero(~np.isfinite(high - low))
    if broken.size:
        raise InputError(
            f"X: {where}, feature {broken[0]} contains NaN or infinity ({broken.size} such features); "
            "exclude the subject or pass on_bad='zero'"
        )
    constant = np.flatnonzero(low == high)
    if n_components and constant.size:
        raise InputError(
            f"X: {where}, feature {constant[0]} is constant ({constant.size} such features); "
            "exclude the subject or the feature, or pass on_bad='zero'"
        )
