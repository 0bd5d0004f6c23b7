"""What users hand in: sites of subjects, looked at before any budget is spent."""

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
    """Return sites by name; a list gets the names site-1, site-2, ..."""
    if isinstance(X, Mapping):
        sites = {str(name): site for name, site in X.items()}
    elif isinstance(X, str | bytes) or is_frame(X) or not hasattr(X, "__len__"):
        raise InputError(f"X must be a list of sites or a dict from name to site, got {type(X).__name__}")
    else:
        sites = {f"site-{number}": site for number, site in enumerate(X, start=1)}
    if not sites:
        raise InputError("X holds no sites")
    for name, site in sites.items():
        if isinstance(site, Mapping | str | bytes):
            raise InputError(
                f"X: site {name} is a {type(site).__name__}; expected a list of its subjects"
                + ", which list(site.values()) makes of a dict" * isinstance(site, Mapping)
            )
        if not hasattr(site, "__len__") or not len(site):
            raise InputError(f"site {name} has no subjects")
    # A data frame iterates over its columns, an array over its rows.
    return {name: site.to_numpy() if is_frame(site) else site for name, site in sites.items()}


def is_frame(given: Any) -> bool:
    """Tell whether this is a table of pandas or the like, with names for its columns."""
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def feature_names(X: Sites) -> list[str] | None:
    """Return the columns of subjects that are data frames; None where not all are, or names are numbers."""
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
                f"X: the columns of subject {number}, counted over all sites, are not those of the first; "
                "all subjects must have the same, in the same order"
            )
    return first


def read_sites(
    X: Sites, n_components: int, on_bad: OnBad = "raise", longest: int | None = None
) -> dict[str, list[Scan]]:
    """Return the subjects of every site as (time, features) arrays, without copying them.

    Parameters
    ----------
    X : list of sites, or dict from name to site
        A site is a list of subjects, a subject an array (time, features); scans may differ in length.
    n_components : int
        R; a scan needs at least as many time points, and no constant feature. With 0 neither is asked for.
    on_bad : {"raise", "zero"}
        What to do about a subject with NaN, infinity, a constant feature, no time points, or another number
        of features than most: say so, or let it take part as sites do in a federated run, where one that
        cannot be used contributes zero.
    longest : int, optional
        How many time points of a scan take part: a longer one is an error, or is cut.
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
            f"X holds one subject in all (site {first_name}); one person cannot be hidden among others"
        )
    for name, site in sites.items():
        for number, subject in enumerate(site):
            where = f"site {name}, subject {number}"
            if subject.shape[1] != first.shape[1]:
                raise InputError(
                    f"{where} has {subject.shape[1]} features; "
                    f"site {first_name}, subject 0 has {first.shape[1]}"
                )
            _check_subject(subject, where, n_components, on_bad, longest)
    if n_components > first.shape[1]:
        raise InputError(
            f"n_components must be at most the {first.shape[1]} features of X, got {n_components}"
        )
    return sites


def _check_site(name: str, site: Any) -> None:
    """Refuse one subject where a list of them was expected, as where X is a flat list of subjects."""
    if isinstance(site, np.ndarray) and site.ndim < 3 and site.dtype != object:
        raise InputError(
            f"X: site {name} is one array of shape {site.shape}; expected a list of subjects, each (time, "
            "features). Is X a list of subjects? A list of sites is [[subject, ...], [subject, ...]]"
        )


def _arrays(named: Mapping[str, Any]) -> dict[str, list[Scan]]:
    return {name: [_array(name, m, s) for m, s in enumerate(site)] for name, site in named.items()}


def _arrays_or_nothing(named: Mapping[str, Any]) -> dict[str, list[Scan]]:
    """Return arrays of one width, that of most subjects; one that is no such array has no time points."""

    def attempt(name: str, number: int, subject: Any) -> Scan | None:
        try:
            return _array(name, number, subject)
        except InputError:
            return None

    found = {name: [attempt(name, m, s) for m, s in enumerate(site)] for name, site in named.items()}
    widths = Counter(one.shape[1] for site in found.values() for one in site if one is not None)
    if not widths:
        return _arrays(named)  # says what is wrong with the first
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
        raise InputError(f"site {name}, subject {number}: not an array of numbers") from None
    if array.ndim != 2 or not array.shape[1]:
        raise InputError(f"site {name}, subject {number}: expected (time, features), got shape {array.shape}")
    return array


def _check_subject(subject: Scan, where: str, n_components: int, on_bad: OnBad, longest: int | None) -> None:
    if on_bad == "zero":
        return
    if not len(subject):
        raise InputError(f"{where} has no time points")
    if longest is not None and len(subject) > longest:
        raise InputError(
            f"{where} has {len(subject)} time points, of which {longest} would take part: pass scan_length, "
            "the length of a typical scan, or on_bad='zero' to cut longer ones"
        )
    if len(subject) < n_components:
        raise InputError(
            f"{where} has {len(subject)} time points, fewer than the {n_components} components asked for"
        )
    low, high = subject.min(axis=0), subject.max(axis=0)
    broken = np.flatnonzero(~np.isfinite(high - low))
    if broken.size:
        raise InputError(f"{where}: feature {broken[0]} holds NaN or infinity ({broken.size} such features)")
    constant = np.flatnonzero(low == high)
    if n_components and constant.size:
        raise InputError(
            f"{where}: feature {constant[0]} is constant ({constant.size} such features); "
            "leave out the subject or the feature, or pass on_bad='zero'"
        )
