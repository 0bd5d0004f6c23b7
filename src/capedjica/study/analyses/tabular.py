"""Analyses of one vector per subject: mean, histogram, k-means and logistic regression."""

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
    "average": "the mean over time of each of {n} features",
    "connectivity": "the correlation of each pair of {n} time courses (Fisher's z)",
    "amplitudes": "the amplitude of each of {n} time courses (logarithm, minus the participant's own mean)",
    "partial-connectivity": "the partial correlation of each pair of {n} time courses, given all others "
    "(Fisher's z)",
    "blocks": "the mean correlation of {n} time courses within and between groups (Fisher's z)",
    "band-power": "the power of each of {n} time courses in given frequency bands (logarithm)",
    "spectra": "the power of each of {n} time courses in eight frequency bands (logarithm)",
    "loadings": "the similarity of the participant's own maps to those of {n} networks (Fisher's z)",
}


class RowsTable(AnalysisTable, frozen=True, kw_only=True):
    """An analysis of one vector per subject."""

    values: ValuesName = "average"
    networks: str | None = None
    center: tuple[Number, ...] = ()
    scale: tuple[Positive, ...] = ()
    groups: tuple[GroupName, ...] = ()
    bands: tuple[tuple[Number, Number], ...] = ()
    shrinkage: Number = 0.1

    comments: ClassVar[Words] = {
        "values": 'Vector of each participant: "average" over time, "connectivity", "partial-connectivity", '
        '"blocks", "amplitudes", "band-power", "spectra" or "loadings".',
        "groups": 'For "blocks": group of each network; by default the systems of the template.',
        "bands": 'For "band-power": lowest and highest frequency of each band, in cycles per time point.',
        "shrinkage": 'For "partial-connectivity": shrinkage of correlations towards 0, at most 1.',
        "networks": "Earlier analysis whose networks are used instead of the features.",
        "center": "Public values that are subtracted, one for each number of the vector.",
        "scale": "Public values by which the centred numbers are divided.",
    }

    def problems(self, setting: Setting) -> list[str]:
        """Return the problems of the table."""
        found = []
        if self.networks is not None and not isinstance(setting.earlier.get(self.networks), IcaTable):
            before = ", ".join(setting.earlier) or "none"
            found.append(
                f"analysis.networks must name an earlier analysis of kind 'ica' (earlier: {before}); got "
                f"{self.networks!r}"
            )
        if self.networks is not None and getattr(setting.earlier.get(self.networks), "auto", False):
            found.append(
                f"analysis.networks names {self.networks!r}, whose n_components is 'auto', but the size of a "
                "release must be known before the run starts; give that analysis a number"
            )
        if setting.features.kind == "table" and self.values != "average":
            found.append(f"analysis.values {self.values!r} requires scans, but features.kind is 'table'")
        if self.networks is not None and self.values == "average":
            found.append(
                "analysis.values 'average' of networks is always 0; use 'connectivity' or 'amplitudes'"
            )
        if self.values != "average" and self._n_courses(setting) < 2:
            found.append(f"analysis.values {self.values!r} requires at least 2 features or networks")
        if self.values == "loadings" and self.networks is None:
            found.append("analysis.values 'loadings' requires analysis.networks, as features have no maps")
        if self.values == "blocks" and not self.block_groups(setting):
            found.append(
                "analysis.values 'blocks' requires analysis.groups, the group of each network; it is missing"
            )
        elif (outcome := self._values(setting).outcome) is not None:
            found += [f"analysis.{problem}" for problem in outcome.problems()]
        return found or self._size_problems(setting)

    def _size_problems(self, setting: Setting) -> list[str]:
        """Return the problems of the vector's size, before any list of that length is built."""
        size = self.vector(setting).size
        if size > MAX_BLOCK_WORDS:
            return [
                f"analysis: the vector of a participant would have {size:,} numbers; at most "
                f"{MAX_BLOCK_WORDS:,} are possible. Use fewer features, for example the regions of an atlas"
            ]
        return [
            f"analysis.{key} must have {self._n_scaled(setting):,} values, one per number; got {len(given)}"
            for key, given in (("center", self.center), ("scale", self.scale))
            if given and len(given) != self._n_scaled(setting)
        ]

    def _n_scaled(self, setting: Setting) -> int:
        return self.vector(setting).size

    def vector(self, setting: Setting) -> Values:
        """Return the rule that computes the vector of a scan."""
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
        """Return the group of each network: as given, or the systems of their template."""
        earlier = setting.earlier.get(self.networks or "")
        if self.values == "blocks" and not self.groups and isinstance(earlier, IcaTable):
            return earlier.template_systems
        return self.groups

    def _n_courses(self, setting: Setting) -> int:
        earlier = setting.earlier.get(self.networks or "")
        return earlier.most_components if isinstance(earlier, IcaTable) else setting.n_features

    def vector_names(self, setting: Setting) -> tuple[str, ...]:
        """Return the names of the numbers of the vector."""
        return self.vector(setting).names(self.course_names(setting))

    def course_names(self, setting: Setting) -> tuple[str, ...]:
        """Return the names of the features or networks."""
        earlier = setting.earlier.get(self.networks or "")
        return earlier.network_names if isinstance(earlier, IcaTable) else tuple(setting.names)

    def on_scans(self, rows: Analysis[Any], setting: Setting) -> Analysis[Any]:
        """Return an analysis of rows as an analysis of scans."""
        longest = longest_scan(setting.scan_length)
        return OfScans(rows, self.vector(setting), setting.n_features, longest, self.networks or "")

    def person_words(self, setting: Setting) -> str:
        """Return a sentence about the vector of a participant."""
        if setting.features.kind == "table":
            return f"Each participant contributes one row of a table: {', '.join(setting.names)}."
        made = _VALUES[self.values].format(n=f"{self._n_courses(setting):,}")
        whose = f" of the networks of '{self.networks}'" if self.networks else ""
        return f"Each participant contributes {made}{whose}: {self.vector(setting).size:,} numbers."

    def words(self, setting: Setting) -> list[str]:
        """Return sentences about the computation for the approval text."""
        return [f"{self.summary(setting)}.", self.person_words(setting)]

    def fewest_timepoints(self, setting: Setting) -> int:
        """Return 1 for averages, else 3: shorter scans give no meaningful correlations or deviations."""
        return 1 if self.values == "average" else 3


class MeanTable(RowsTable, frozen=True, kw_only=True):
    """The mean of the participants' vectors."""

    kind: Literal["mean"] = "mean"
    clip: Positive

    meanings: ClassVar[Words] = {"mean of the subjects' vectors": "the mean of the participants' vectors"}
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "clip": "Norm to which the vector of each participant is clipped.",
    }

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the mean."""
        names = self.vector_names(setting)
        return self.on_scans(MeanOfRows(len(names), self.clip, names), setting)

    def summary(self, setting: Setting) -> str:
        """Return a short description of the computation."""
        numbers = counted(self.vector(setting).size, "number")
        return f"The mean of {numbers} per participant, clipped to norm {self.clip:g}"

    def article(self, setting: Setting) -> str:
        """Return the description as part of a methods sentence."""
        return f"the mean of {counted(self.vector(setting).size, 'number')} per participant was estimated"


class HistogramTable(RowsTable, frozen=True, kw_only=True):
    """Histogram of the participants, with public edges."""

    kind: Literal["histogram"] = "histogram"
    edges: Annotated[tuple[Edges, ...], msgspec.Meta(min_length=1, max_length=16)]

    meanings: ClassVar[Words] = {
        "share of people in each cell": "the fraction of the participants in each bin"
    }
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "edges": "Public bin edges for each number of the vector.",
    }

    def problems(self, setting: Setting) -> list[str]:
        """Return the problems of the table, including those of the edges."""
        found = super().problems(setting)
        size = self.vector(setting).size
        if size and len(self.edges) != size:
            found.append(f"analysis.edges must have {size:,} lists, one per number; got {len(self.edges)}")
        for number, axis in enumerate(self.edges, start=1):
            if any(low >= high for low, high in pairwise(axis)):
                found.append(f"analysis.edges[{number}] must be strictly increasing")
        return found

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the histogram."""
        edges = tuple(np.array(axis, dtype=np.float64) for axis in self.edges)
        return self.on_scans(HistogramOfRows(edges, self.vector_names(setting)), setting)

    def summary(self, setting: Setting) -> str:
        """Return a short description of the computation."""
        cells = " by ".join(str(len(axis) - 1) for axis in self.edges)
        return f"A histogram of the participants with {cells} bins"

    def article(self, setting: Setting) -> str:
        """Return the description as part of a methods sentence."""
        return "a histogram of participants was estimated"


class KMeansTable(RowsTable, frozen=True, kw_only=True):
    """Clusters of participants, by k-means."""

    kind: Literal["kmeans"] = "kmeans"
    n_clusters: Several
    radius: Positive
    max_iter: Iterations = 10
    seed: Seed = 0

    meanings: ClassVar[Words] = {
        "shares and sums of the clusters": "the fraction of participants nearest to each center, and the sum "
        "of their vectors"
    }
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "n_clusters": "Number of clusters.",
        "radius": "Norm to which a participant's vector is clipped, after subtraction of center (public).",
        "max_iter": "Number of steps, among which the budget is divided.",
        "seed": "Seed of the initial centers, which are public.",
    }

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return k-means."""
        names = self.vector_names(setting)
        rows = ClustersOfRows(self.n_clusters, len(names), self.radius, self.max_iter, self.seed, names)
        return self.on_scans(rows, setting)

    def summary(self, setting: Setting) -> str:
        """Return a short description of the computation."""
        return f"{self.n_clusters} clusters of participants by k-means in {counted(self.max_iter, 'step')}"

    def article(self, setting: Setting) -> str:
        """Return the description as part of a methods sentence."""
        return f"{self.n_clusters} clusters of participants were estimated by k-means"


class RegressionTable(RowsTable, frozen=True, kw_only=True):
    """Logistic regression of a label, 0 or 1, on the other columns of a participant."""

    kind: Literal["regression"] = "regression"
    label: str
    feature_bound: Positive
    clip: Positive | None = None
    max_iter: Iterations = 30
    learning_rate: Positive | None = None
    l2: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0

    meanings: ClassVar[Words] = {
        "gradient of the logistic loss": "the change of the weights that improves the fit"
    }
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "label": "Column with the label, 0 or 1.",
        "feature_bound": "Norm to which the vector of the other columns is clipped.",
        "clip": "Norm to which a participant's gradient is clipped; default sqrt(feature_bound^2 + 1) / 3.",
        "max_iter": "Number of steps, among which the budget is divided.",
        "learning_rate": "Step size; by default 4 / (feature_bound^2 + 1).",
        "l2": "Penalty on the weights.",
    }

    def problems(self, setting: Setting) -> list[str]:
        """Return the problems of the table, including those of the label."""
        found = super().problems(setting)
        if setting.features.kind != "table":
            found.append(
                "analysis.kind 'regression' requires labels: features.kind must be 'table', got "
                f"{setting.features.kind!r}"
            )
        elif self.label not in setting.names:
            found.append(
                f"analysis.label must be one of features.columns ({', '.join(setting.names)}); got "
                f"{self.label!r}"
            )
        elif len(setting.names) < 2:
            found.append("analysis.kind 'regression' requires at least one column in addition to the label")
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
        """Return the problems of a row: a label other than 0 or 1, or a norm above the bound."""
        *numbers, label = map(float, self.vector(setting).of(scan, None))
        length, found = math.hypot(*numbers), []
        if label not in (0.0, 1.0):
            expected = f"0 or 1 in column '{self.label}'; other rows count as the zero vector"
            found.append((f"label {label:g}", expected))
        if length > self.feature_bound:
            bound = f"at most {self.feature_bound:g} (feature_bound); longer rows are clipped"
            found.append((f"row of norm {length:.4g}", bound))
        return found

    def summary(self, setting: Setting) -> str:
        """Return a short description of the computation."""
        numbers = counted(setting.n_features - 1, "number")
        return f"Logistic regression of '{self.label}' on {numbers} per participant"

    def article(self, setting: Setting) -> str:
        """Return the description as part of a methods sentence."""
        return f"'{self.label}' was predicted by logistic regression"
