"""Base class of the ``[analysis]`` tables of ``study.toml``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import msgspec

from capedjica.algorithms.analysis import Analysis
from capedjica.data.features import FeatureTable
from capedjica.data.scans import Features
from capedjica.tools.arrays import Scan

MOST_ITERATIONS: Final = 10**6
Iterations = Annotated[int, msgspec.Meta(ge=1, le=MOST_ITERATIONS)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
# Also used as the name of a folder.
Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,39}\Z")]
Words = Mapping[str, str]
POWER: Final = 0.8
"""Statistical power assumed for the smallest detectable difference of a plan."""
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


@dataclass(frozen=True, eq=False)
class Setting:
    """The facts of a study that an analysis may use, all public and part of the agreement.

    Attributes
    ----------
    features : FeatureTable
        The features of the study.
    open_features : callable
        Returns the features computed from a scan; opens public files.
    noise : float
        Standard deviation of the noise on each number of a mean of vectors of norm at most 1, if the whole
        share of the analysis in the budget were spent on one release; 0 without privacy.
    earlier : dict
        The analyses before this one, by name.
    folder : Path
        Folder of the public files.
    sites : dict
        Number of participants enrolled at each site.
    """

    features: FeatureTable
    open_features: Callable[[], Features]
    noise: float = 0.0
    earlier: Mapping[str, AnalysisTable] = field(default_factory=dict)
    folder: Path = Path()
    sites: Mapping[str, int] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """Number of features D; for a table, the number of its columns."""
        return len(self.features.columns) or self.features.n_features or 0

    @property
    def scan_length(self) -> int:
        """Time points of a typical scan; 1 for the row of a table."""
        return self.features.scan_length or 1

    @property
    def names(self) -> list[str]:
        """Names of the features."""
        return list(self.features.columns) or [
            f"feature {number}" for number in range(1, self.n_features + 1)
        ]


@dataclass(frozen=True)
class Detectable:
    """The smallest detectable differences of a study, in standard deviations of an outcome.

    Attributes
    ----------
    contrast : str
        The groups or values that are compared.
    n_outcomes : int
        Number of outcomes tested.
    single, among_all : float
        Detected with probability `POWER` by one test at 5%, and after correction for all (Bonferroni).
    without_privacy : float
        Detected by one test with the same number of participants without privacy noise.
    """

    contrast: str
    n_outcomes: int
    single: float
    among_all: float
    without_privacy: float


class AnalysisTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One analysis of a study; its fields are the keys of its table in ``study.toml``.

    The docstring of a subclass states in one sentence what is computed; sites read it before they approve.

    Attributes
    ----------
    kind : str
        Kind of the analysis.
    name : str
        Name by which later analyses and the results refer to it; the kind by default.
    share : float, optional
        Share of the budget (of mu^2); by default an equal part of what the other analyses leave.
    """

    kind: str
    name: Name | None = None
    share: Share | None = None

    # Content of each release by the label of its query, and meaning of each key.
    meanings: ClassVar[Words] = {}
    comments: ClassVar[Words] = {}
    # Keys of files next to study.toml, each with its hash under the same name and "_sha256".
    public_keys: ClassVar[tuple[str, ...]] = ()

    @property
    def called(self) -> str:
        """Name of the analysis, its kind by default."""
        return self.name or self.kind

    @property
    def releases(self) -> bool:
        """Whether anything is released; an analysis without releases has no share of the budget."""
        return True

    @property
    def participant_columns(self) -> tuple[str, ...]:
        """Columns of ``participants.tsv`` that the analysis reads in addition to the scans."""
        return ()

    @property
    def constants(self) -> Mapping[str, Any]:
        """Constants of the code on which a subject's vector depends, covered by the hash of the study.

        Sites whose versions disagree on one of them would add up different quantities.
        """
        return {}

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Sentences about what this analysis excludes from the guarantee, or what the guarantee assumes."""
        return ()

    def problems(self, setting: Setting) -> list[str]:
        """Return the problems of the table in its study, without opening public files."""
        return []

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the analysis."""
        raise NotImplementedError(f"{type(self).__name__} does not implement open")

    def summary(self, setting: Setting) -> str:
        """Return a short description of the computation."""
        return (type(self).__doc__ or self.kind).strip().splitlines()[0].rstrip(".")

    def words(self, setting: Setting) -> list[str]:
        """Return sentences about the computation for the approval text."""
        return [f"{self.summary(setting)}."]

    def article(self, setting: Setting) -> str:
        """Return the description as part of a methods sentence, after "participants at 3 sites"."""
        summary = self.summary(setting)
        return summary[:1].lower() + summary[1:]

    def detectable(self, setting: Setting) -> list[Detectable]:
        """Return the smallest detectable differences, known before the run; empty for most analyses."""
        return []

    def fewest_timepoints(self, setting: Setting) -> int:
        """Return the minimum number of time points of a usable scan."""
        return 1

    def covariate_notes(self, covariates: Mapping[str, Any]) -> Iterable[tuple[str, str, bool]]:
        """Return the problems of a subject's covariates.

        Each is what was found, what is expected, and whether it must be corrected.
        """
        return ()

    def site_notes(self, people: Sequence[Mapping[str, Any]], site: str) -> Iterable[tuple[str, str, bool]]:
        """Return the problems of the covariates of a whole site, in the form of `covariate_notes`."""
        return ()

    def notes(self, scan: Scan, setting: Setting) -> list[tuple[str, str]]:
        """Return the problems of a scan, shown only at its site: what was found and what is expected.

        The expectation does not depend on the scan, so that scans with the same problem share one line.
        """
        return []
