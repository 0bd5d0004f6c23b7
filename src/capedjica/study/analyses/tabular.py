"""Analyses of one vector per person: mean, histogram, k-means and logistic regression."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
import numpy as np

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.ica.scan_length import longest_scan
from capedjica.algorithms.tables.histogram import HistogramOfRows
from capedjica.algorithms.tables.kmeans import ClustersOfRows
from capedjica.algorithms.tables.mean import MeanOfRows
from capedjica.algorithms.tables.regression import LogisticOfRows
from capedjica.algorithms.tables.values import OfScans, Values, ValuesName
from capedjica.data.features import MOST
from capedjica.mechanisms.release import MAX_BLOCK_WORDS
from capedjica.study.analyses.base import AnalysisTable, Iterations, Positive, Setting, Words
from capedjica.study.analyses.ica import IcaTable
from capedjica.tools.arrays import Scan
from capedjica.tools.text import counted

Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Edges = Annotated[tuple[Number, ...], msgspec.Meta(min_length=2, max_length=10_000)]
GroupName = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
Several = Annotated[int, msgspec.Meta(ge=2, le=MOST)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_VALUES: Final = {
    "average": "the mean over time of each of {n} numbers",
    "connectivity": "how strongly each two of {n} time courses go together (Fisher's z of their correlation)",
    "amplitudes": "how strongly each of {n} time courses varies (logarithm, less the person's own mean)",
    "partial-connectivity": "how strongly each two of {n} time courses go together when all others are "
    "accounted for (Fisher's z of their partial correlation)",
    "blocks": "how strongly {n} time courses go together, within groups and between (means of Fisher's z)",
    "band-power": "how much of each of {n} time courses is in given bands of frequency (logarithm)",
    "spectra": "how much of each of {n} time courses is slow or fast, in eight bands (logarithm)",
    "loadings": "how much a person's own maps resemble those of {n} networks (Fisher's z)",
}


class RowsTable(AnalysisTable, frozen=True, kw_only=True):
    """Numbers of one vector per person."""

    values: ValuesName = "average"
    networks: str | None = None
    center: tuple[Number, ...] = ()
    scale: tuple[Positive, ...] = ()
    groups: tuple[GroupName, ...] = ()
    bands: tuple[tuple[Number, Number], ...] = ()
    shrinkage: Number = 0.1

    comments: ClassVar[Words] = {
        "values": 'One vector per person: "average" over time, "connectivity", "partial-connectivity", '
        '"blocks", "amplitudes", "band-power", "spectra" or "loadings".',
        "groups": 'Of "blocks": the group of each network; by default the systems of its template.',
        "bands": 'Of "band-power": lowest and highest frequency of each, in cycles per time point.',
        "shrinkage": 'Of "partial-connectivity": how far correlations are drawn towards 0, up to 1.',
        "networks": "Of the networks that this earlier analysis found, instead of the features.",
        "center": "Public numbers that are subtracted, one for each number of a person.",
        "scale": "Public numbers by which they are divided then.",
    }

    def problems(self, setting: Setting) -> list[str]:
        """Return what keeps a scan from becoming a vector."""
        found = []
        if self.networks is not None and not isinstance(setting.earlier.get(self.networks), IcaTable):
            before = ", ".join(setting.earlier) or "none"
            found.append(
                f"analysis.networks must name an analysis of kind 'ica' before this one ({before}); got "
                f"{self.networks!r}"
            )
        if self.networks is not None and getattr(setting.earlier.get(self.networks), "auto", False):
            found.append(
                f"analysis.networks names {self.networks!r}, whose n_components is 'auto': what is asked of "
                "people must be known beforehand, so give that analysis a number"
            )
        if setting.features.kind == "table" and self.values != "average":
            found.append(f"analysis.values {self.values!r} needs scans; features.kind is 'table'")
        if self.networks is not None and self.values == "average":
            found.append("analysis.values 'average' of networks is always 0: take connectivity or amplitudes")
        if self.values != "average" and self._n_courses(setting) < 2:
            found.append(f"analysis.values {self.values!r} needs at least 2 features or networks")
        if self.values == "loadings" and self.networks is None:
            found.append("analysis.values 'loadings' needs analysis.networks: features have no maps")
        if self.values == "blocks" and not self.block_groups(setting):
            found.append(
                "analysis.values 'blocks' needs analysis.groups: nothing says which group a network is of"
            )
        elif (outcome := self._values(setting).outcome) is not None:
            found += [f"analysis.{problem}" for problem in outcome.problems()]
        return found or self._size_problems(setting)

    def _size_problems(self, setting: Setting) -> list[str]:
        """Return what is wrong with the number of numbers, before any list of that length is made."""
        size = self.vector(setting).size
        if size > MAX_BLOCK_WORDS:
            return [
                f"a person would have {size:,} numbers, more than the {MAX_BLOCK_WORDS:,} of a release: "
                "analyse fewer features, regions of an atlas for example"
            ]
        return [
            f"analysis.{key} must hold a number for each of {self._n_scaled(setting):,}; got {len(given)}"
            for key, given in (("center", self.center), ("scale", self.scale))
            if given and len(given) != self._n_scaled(setting)
        ]

    def _n_scaled(self, setting: Setting) -> int:
        return self.vector(setting).size

    def vector(self, setting: Setting) -> Values:
        """Return how a scan becomes a vector."""
        return self._values(setting)

    def _values(self, setting: Setting) -> Values:
        return Values(
            self.values,
            self._n_courses(setting),
            (),
            self.center,
            self.scale,
            self.block_groups(setting),
            self.bands,
            self.shrinkage,
        )

    def block_groups(self, setting: Setting) -> tuple[str, ...]:
        """Return the group of each network: as given, or the systems of the template that they come from."""
        earlier = setting.earlier.get(self.networks or "")
        if self.values == "blocks" and not self.groups and isinstance(earlier, IcaTable):
            return earlier.template_systems
        return self.groups

    def _n_courses(self, setting: Setting) -> int:
        earlier = setting.earlier.get(self.networks or "")
        return earlier.most_components if isinstance(earlier, IcaTable) else setting.n_features

    def vector_names(self, setting: Setting) -> tuple[str, ...]:
        """Return what the numbers of the vector are called."""
        return self.vector(setting).names(self.course_names(setting))

    def course_names(self, setting: Setting) -> tuple[str, ...]:
        """Return what the features or networks are called."""
        earlier = setting.earlier.get(self.networks or "")
        return earlier.network_names if isinstance(earlier, IcaTable) else tuple(setting.names)

    def on_scans(self, rows: Analysis[Any], setting: Setting) -> Analysis[Any]:
        """Return an analysis of rows as one of scans."""
        longest = longest_scan(setting.scan_length)
        return OfScans(rows, self.vector(setting), setting.n_features, longest, self.networks or "")

    def person_words(self, setting: Setting) -> str:
        """Return in words what a person's vector is."""
        if setting.features.kind == "table":
            return f"Each person enters with a row of a table: {', '.join(setting.names)}."
        made = _VALUES[self.values].format(n=f"{self._n_courses(setting):,}")
        whose = f" of the networks that '{self.networks}' found" if self.networks else ""
        return f"Each person enters with {made}{whose}: {self.vector(setting).size:,} numbers."

    def words(self, setting: Setting) -> list[str]:
        """Return what is computed in sentences."""
        return [f"{self.summary(setting)}.", self.person_words(setting)]

    def fewest_timepoints(self, setting: Setting) -> int:
        """Return 1 for averages; correlations and deviations of fewer than 3 time points mean nothing."""
        return 1 if self.values == "average" else 3


class MeanTable(RowsTable, frozen=True, kw_only=True):
    """The mean of everybody's vector."""

    kind: Literal["mean"] = "mean"
    clip: Positive

    meanings: ClassVar[Words] = {"mean of the subjects' vectors": "the mean of everybody's numbers"}
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "clip": "Longest vector of one person; longer ones are shortened.",
    }

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the mean."""
        names = self.vector_names(setting)
        return self.on_scans(MeanOfRows(len(names), self.clip, names), setting)

    def summary(self, setting: Setting) -> str:
        """Return in few words what is computed."""
        numbers = counted(self.vector(setting).size, "number")
        return f"The mean of {numbers} per person, shortened to length {self.clip:g}"

    def article(self, setting: Setting) -> str:
        """Return it as part of a sentence."""
        return f"the mean of {counted(self.vector(setting).size, 'number')} per participant was estimated"


class HistogramTable(RowsTable, frozen=True, kw_only=True):
    """How many people fall between public edges."""

    kind: Literal["histogram"] = "histogram"
    edges: Annotated[tuple[Edges, ...], msgspec.Meta(min_length=1, max_length=16)]

    meanings: ClassVar[Words] = {
        "share of people in each cell": "which part of the people falls into each cell"
    }
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "edges": "Public edges of the cells, for each number of a person.",
    }

    def problems(self, setting: Setting) -> list[str]:
        """Return what is wrong with the edges."""
        found = super().problems(setting)
        size = self.vector(setting).size
        if size and len(self.edges) != size:
            found.append(
                f"analysis.edges must be one list for each of {size:,} numbers; got {len(self.edges)}"
            )
        for number, axis in enumerate(self.edges, start=1):
            if any(low >= high for low, high in pairwise(axis)):
                found.append(f"analysis.edges[{number}] must rise from each number to the next")
        return found

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the histogram."""
        edges = tuple(np.array(axis, dtype=np.float64) for axis in self.edges)
        return self.on_scans(HistogramOfRows(edges, self.vector_names(setting)), setting)

    def summary(self, setting: Setting) -> str:
        """Return in few words what is computed."""
        cells = " by ".join(str(len(axis) - 1) for axis in self.edges)
        return f"How many people fall into each of {cells} cells"

    def article(self, setting: Setting) -> str:
        """Return it as part of a sentence."""
        return "a histogram of participants was estimated"


class KMeansTable(RowsTable, frozen=True, kw_only=True):
    """Clusters of people, by k-means."""

    kind: Literal["kmeans"] = "kmeans"
    n_clusters: Several
    radius: Positive
    max_iter: Iterations = 10
    seed: Seed = 0

    meanings: ClassVar[Words] = {
        "shares and sums of the clusters": "how many people are near each center, and where they are"
    }
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "n_clusters": "Clusters to find.",
        "radius": "Longest vector of one person; longer ones are shortened. Centre numbers at public values.",
        "max_iter": "Steps, over which the budget is spread.",
        "seed": "Of the first centers, which are public.",
    }

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return k-means."""
        names = self.vector_names(setting)
        rows = ClustersOfRows(self.n_clusters, len(names), self.radius, self.max_iter, self.seed, names)
        return self.on_scans(rows, setting)

    def summary(self, setting: Setting) -> str:
        """Return in few words what is computed."""
        return f"{self.n_clusters} clusters of people by k-means in {counted(self.max_iter, 'step')}"

    def article(self, setting: Setting) -> str:
        """Return it as part of a sentence."""
        return f"{self.n_clusters} clusters of participants were estimated by k-means"


class RegressionTable(RowsTable, frozen=True, kw_only=True):
    """A label, 0 or 1, from the other numbers of a person, by logistic regression."""

    kind: Literal["regression"] = "regression"
    label: str
    feature_bound: Positive
    clip: Positive | None = None
    max_iter: Iterations = 30
    learning_rate: Positive | None = None
    l2: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0

    meanings: ClassVar[Words] = {
        "gradient of the logistic loss": "in which way to change the weights so that they fit better"
    }
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "label": "The column with the label, 0 or 1.",
        "feature_bound": "Longest vector of the other numbers; longer ones are shortened.",
        "clip": "Longest gradient of one person; by default sqrt(feature_bound^2 + 1) / 3.",
        "max_iter": "Steps, over which the budget is spread.",
        "learning_rate": "Length of a step; by default 4 / (feature_bound^2 + 1).",
        "l2": "Penalty on the weights.",
    }

    def problems(self, setting: Setting) -> list[str]:
        """Return what is wrong with the label."""
        found = super().problems(setting)
        if setting.features.kind != "table":
            found.append("analysis.kind 'regression' needs labels: features.kind must be 'table'")
        elif self.label not in setting.names:
            found.append(
                f"analysis.label must be one of features.columns ({', '.join(setting.names)}); got "
                f"{self.label!r}"
            )
        elif len(setting.names) < 2:
            found.append("analysis.kind 'regression' needs a column besides the label")
        return found

    def vector(self, setting: Setting) -> Values:
        """Return the row with the label last."""
        names = setting.names
        order = [number for number, name in enumerate(names) if name != self.label]
        last = [names.index(self.label)] if self.label in names else []
        center = (*self.center, 0.0) if self.center else ()
        scale = (*self.scale, 1.0) if self.scale else ()
        return Values("average", setting.n_features, (*order, *last), center, scale)

    def _n_scaled(self, setting: Setting) -> int:
        return setting.n_features - 1

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the regression."""
        names = self.vector_names(setting)[:-1]
        rows = LogisticOfRows(
            len(names), self.feature_bound, self.clip, self.max_iter, self.learning_rate, self.l2, names
        )
        return self.on_scans(rows, setting)

    def notes(self, scan: Scan, setting: Setting) -> list[tuple[str, str]]:
        """Return whether a row has another label than 0 or 1, or is longer than the bound."""
        *numbers, label = map(float, self.vector(setting).of(scan, None))
        length, found = math.hypot(*numbers), []
        if label not in (0.0, 1.0):
            found.append((f"label {label:g}", f"0 or 1 in column '{self.label}'; others count as zero"))
        if length > self.feature_bound:
            bound = f"at most {self.feature_bound:g} (feature_bound), to which longer ones are shortened"
            found.append((f"numbers of length {length:.4g}", bound))
        return found

    def summary(self, setting: Setting) -> str:
        """Return in few words what is computed."""
        numbers = counted(setting.n_features - 1, "number")
        return f"Logistic regression of '{self.label}' on {numbers} per person"

    def article(self, setting: Setting) -> str:
        """Return it as part of a sentence."""
        return f"'{self.label}' was predicted by logistic regression"
