"""What every table ``[analysis]`` has in common."""

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
# Becomes the name of a folder.
Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,39}\Z")]
Words = Mapping[str, str]
POWER: Final = 0.8
"""With which probability a plan wants a difference to be found."""
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


@dataclass(frozen=True, eq=False)
class Setting:
    """What an analysis may know of its study: public all of it, and agreed on.

    Attributes
    ----------
    features : FeatureTable
        What the features are.
    open_features : callable
        Returns what a scan is made into; public files are opened for it.
    noise : float
        Standard deviation of the noise on each number of a mean of vectors of norm at most 1, if all of the
        analysis' share of the budget went into one release; 0 without privacy.
    earlier : dict
        The analyses before this one, by name.
    folder : Path
        Where the public files that it names are.
    sites : dict
        How many people each site enrols.
    """

    features: FeatureTable
    open_features: Callable[[], Features]
    noise: float = 0.0
    earlier: Mapping[str, AnalysisTable] = field(default_factory=dict)
    folder: Path = Path()
    sites: Mapping[str, int] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """D; a row of a table has as many as columns are named."""
        return len(self.features.columns) or self.features.n_features or 0

    @property
    def scan_length(self) -> int:
        """Time points of a typical scan; the rows of tables have one."""
        return self.features.scan_length or 1

    @property
    def names(self) -> list[str]:
        """What the features are called."""
        return list(self.features.columns) or [
            f"feature {number}" for number in range(1, self.n_features + 1)
        ]


@dataclass(frozen=True)
class Detectable:
    """The smallest differences that a study can find, in standard deviations of an outcome.

    Attributes
    ----------
    contrast : str
        Between what.
    n_outcomes : int
        How many are tested.
    single, among_all : float
        Found with probability `POWER` by one test at 5%, and by the same among all (Bonferroni).
    without_privacy : float
        What one test of as many people would find without any noise.
    """

    contrast: str
    n_outcomes: int
    single: float
    among_all: float
    without_privacy: float


class AnalysisTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One analysis of a study: its fields are the keys of its table in ``study.toml``.

    A subclass says in its docstring, in one sentence, what is computed; sites read it before they approve.

    Attributes
    ----------
    kind : str
        Which analysis it is.
    name : str
        Under which later analyses and the results know it; by default its kind.
    share : float, optional
        Its part of the budget (of mu^2); by default what the others leave, in equal parts.
    """

    kind: str
    name: Name | None = None
    share: Share | None = None

    # What each release holds, by the label of its query, and what each key means.
    meanings: ClassVar[Words] = {}
    comments: ClassVar[Words] = {}
    # Keys of files beside the study.toml, each with its hash under the same name and "_sha256".
    public_keys: ClassVar[tuple[str, ...]] = ()

    @property
    def called(self) -> str:
        """Its name."""
        return self.name or self.kind

    @property
    def releases(self) -> bool:
        """Whether anything is released; what releases nothing has no part of the budget."""
        return True

    @property
    def participant_columns(self) -> tuple[str, ...]:
        """Columns of ``participants.tsv`` by which people are compared, besides their scans."""
        return ()

    @property
    def constants(self) -> Mapping[str, Any]:
        """Numbers of the code that a person's vector rests on; the study's hash covers them.

        Sites whose versions disagree on one of them would add up different things.
        """
        return {}

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the guarantee does not cover or rests on because of it, in sentences."""
        return ()

    def problems(self, setting: Setting) -> list[str]:
        """Return what is wrong with it in a study, in words; public files are not opened."""
        return []

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the analysis."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is computed")

    def summary(self, setting: Setting) -> str:
        """Return in few words what is computed."""
        return (type(self).__doc__ or self.kind).strip().splitlines()[0].rstrip(".")

    def words(self, setting: Setting) -> list[str]:
        """Return what is computed in sentences, for those who approve."""
        return [f"{self.summary(setting)}."]

    def article(self, setting: Setting) -> str:
        """Return the same as part of a sentence of an article, after "participants at 3 sites"."""
        summary = self.summary(setting)
        return summary[:1].lower() + summary[1:]

    def detectable(self, setting: Setting) -> list[Detectable]:
        """Return which differences a study can find, known beforehand; nothing of other analyses."""
        return []

    def fewest_timepoints(self, setting: Setting) -> int:
        """Return how many time points a scan must have to be of any use."""
        return 1

    def covariate_notes(self, covariates: Mapping[str, Any]) -> Iterable[tuple[str, str, bool]]:
        """Return what is found and expected of a person's covariates, and whether it has to be mended."""
        return ()

    def site_notes(self, people: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
        """Return what is found and expected of the covariates of a site's people together."""
        return ()

    def notes(self, scan: Scan, setting: Setting) -> list[tuple[str, str]]:
        """Return what only its site is told of a scan that is of less or no use: what is found and expected.

        What is expected is the same for everybody, so that all who are alike are told in one line.
        """
        return []
