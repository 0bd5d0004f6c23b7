"""The ``[analysis]`` tables of a study: one class for each ``kind`` of analysis.

Other packages add kinds through entry points in `GROUP`: the name is the kind, the object a subclass of
:class:`AnalysisTable`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from capedjica.errors import InputError
from capedjica.study.analyses.base import AnalysisTable, Setting
from capedjica.study.analyses.group_comparison import GroupComparisonTable
from capedjica.study.analyses.ica import IcaTable
from capedjica.study.analyses.pca import PcaTable
from capedjica.study.analyses.tabular import HistogramTable, KMeansTable, MeanTable, RegressionTable

GROUP: Final = "capedjica.analyses"
OWN: Final[dict[str, type[AnalysisTable]]] = {
    "ica": IcaTable,
    "pca": PcaTable,
    "mean": MeanTable,
    "histogram": HistogramTable,
    "kmeans": KMeansTable,
    "regression": RegressionTable,
    "group-comparison": GroupComparisonTable,
}

__all__ = ["GROUP", "OWN", "AnalysisTable", "IcaTable", "Setting", "known_kinds", "provider", "table_class"]


@cache
def _foreign() -> dict[str, EntryPoint]:
    """Return the kinds of other packages; none can replace a built-in kind."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in OWN}


def known_kinds() -> list[str]:
    """Return every kind that this installation can run."""
    return [*OWN, *_foreign()]


def provider(kind: str) -> str:
    """Return the package and version that provide a kind; empty for built-in kinds."""
    point = _foreign().get(kind)
    if point is None:
        return ""
    return point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"


def table_class(kind: Any) -> type[AnalysisTable]:
    """Return the class of a kind; raise an InputError that lists the known kinds."""
    if isinstance(kind, str) and kind in OWN:
        return OWN[kind]
    if not isinstance(kind, str) or kind not in _foreign():
        raise InputError(
            f"analysis.kind {str(kind)[:60]!r} is unknown; expected one of {', '.join(known_kinds())}. If it "
            "belongs to another package, install that package"
        )
    try:
        found = _foreign()[kind].load()
    except Exception as error:  # whatever another package raises when it is imported
        raise InputError(f"analysis.kind {kind!r} of {provider(kind)} cannot be loaded: {error}") from None
    if not (isinstance(found, type) and issubclass(found, AnalysisTable)):
        raise InputError(f"analysis.kind {kind!r} of {provider(kind)} is not a subclass of AnalysisTable")
    return found
