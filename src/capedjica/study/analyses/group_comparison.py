"""``kind = "group-comparison"``: regression of outcomes on a group or a numeric covariate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Literal, cast

import msgspec
import numpy as np

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.glm.analysis import (
    DESIGN_LABEL,
    EFFECTS_LABEL,
    LEADING,
    PRODUCTS_LABEL,
    VARIANCES_LABEL,
    GroupComparisonAnalysis,
    attenuation,
)
from capedjica.algorithms.glm.design import Column, Design, is_missing
from capedjica.algorithms.glm.power import (
    Noise,
    minimum_detectable_effect,
    tuned,
)
from capedjica.algorithms.ica.scan_length import longest_scan
from capedjica.algorithms.outcomes import Standard, default_clip, from_theory, theory_constants
from capedjica.algorithms.tables.values import OfScans
from capedjica.data.covariates import MOTION
from capedjica.errors import InputError
from capedjica.study.analyses.base import POWER, Detectable, Positive, Setting, Words
from capedjica.study.analyses.tabular import Number, RowsTable
from capedjica.tools.arrays import FloatArray
from capedjica.tools.text import counted

ColumnName = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
Level = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
Size = Annotated[int, msgspec.Meta(ge=0)]
Missing = Annotated[float, msgspec.Meta(ge=0, le=0.5)]
Origin = Literal["theory", "public-cohort", "earlier-study"]
_ORIGINS: Final = {
    "theory": "from theory, given the length of scans",
    "public-cohort": "from a public cohort that includes no participant of this study",
    "earlier-study": "from the published results of an earlier study",
}
_LEVEL: Final = 0.05
# Variances of a coded contrast within sites: for two groups of which one is about a third, and for a number
# distributed uniformly over its range.
_GROUPS: Final = 0.9
_EVENLY: Final = 1 / 3
_MISSING: Final = (
    "A participant who lacks one of these values, or whose scan is unusable, contributes nothing; the stated "
    "number of participants does not change."
)


@dataclass(frozen=True, eq=False)
class DesignNumbers:
    """The design row of a subject, computed from the covariates, with the leading numbers first."""

    comparison: GroupComparisonAnalysis
    motion: bool

    @property
    def size(self) -> int:
        """Length of the design row."""
        return LEADING + self.comparison.design.size

    def of(self, covariates: Mapping[str, Any], site: str) -> FloatArray:
        """Return the design row, with NaN for missing values."""
        design = self.comparison.design.encode(covariates)
        return np.concatenate([self.comparison.leading(site, float(design[0])), design])


@dataclass(frozen=True)
class _ShareOfNoise:
    """The noise of an analysis with a share of a study's budget."""

    noise: float

    @property
    def mechanism(self) -> str:
        return "cape" if self.noise else "none"

    def mean_noise(self, subjects: Sequence[int], share: float) -> float:
        return self.noise / math.sqrt(share)


class ColumnTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A column of ``participants.tsv``: a number with a public range, or a category with its levels.

    Attributes
    ----------
    name : str
        Name of the column.
    range : pair of float
        Lowest and highest value of a number; values outside are clipped.
    center : float
        Typical value of a number, if it is not the middle of the range.
    levels : list of str
        Levels of a category.
    """

    name: ColumnName
    range: tuple[Number, Number] | None = None
    center: Number | None = None
    levels: tuple[Level, ...] = ()

    def problems(self) -> Iterator[str]:
        """Yield the problems of the column."""
        if (self.range is None) == (not self.levels):
            yield f"column {self.name!r} must have either a range (number) or levels (category)"
            return
        if self.range is None and self.center is not None:
            yield f"column {self.name!r} has levels, so it must have no center"
            return
        try:
            self.column()
        except InputError as error:
            yield str(error)

    def column(self) -> Column:
        """Return the column as part of a design."""
        if self.range is None:
            return Column.of(self.name, self.levels)
        return Column(self.name, "number", self.range[0], self.range[1], center=self.center)

    @property
    def words(self) -> str:
        """Name and allowed values of the column."""
        if self.range is None:
            return f"{self.name} ({' or '.join(self.levels)})"
        typical = "" if self.center is None else f", typically {self.center:g}"
        return f"{self.name} ({self.range[0]:g} to {self.range[1]:g}{typical})"


class GroupSizes(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Number of participants of a site in each level of the contrast, in the order of the levels.

    Attributes
    ----------
    site : str
        Name of the site.
    sizes : pair of int
        Number of participants in each level.
    """

    site: str
    sizes: tuple[Size, Size]


class GroupComparisonTable(RowsTable, frozen=True, kw_only=True):
    """Differences of outcomes between two groups, or their association with a numeric covariate."""

    kind: Literal["group-comparison"] = "group-comparison"
    contrast: ColumnName
    columns: tuple[ColumnTable, ...]
    mode: Literal["private", "public-groups"] = "private"
    group_sizes: tuple[GroupSizes, ...] = ()
    missing: Missing = 0.0
    motion: bool = False
    motion_limit: Positive = 0.5
    clip: Positive | None = None
    origin: Origin = "theory"
    exploratory: bool = False

    meanings: ClassVar[Words] = {
        VARIANCES_LABEL: "the variances of the outcomes between participants of the same site",
        DESIGN_LABEL: "the variances and covariances of the columns between participants of the same site",
        PRODUCTS_LABEL: "the differences of the columns between the groups of the same site",
        EFFECTS_LABEL: "the association of the outcomes with the column of interest, adjusted for site",
    }
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "contrast": "Column of interest: two levels, or a number.",
        "columns": "Columns of participants.tsv: numbers with a public range, to which values are clipped, "
        "or categories with their public levels. A number whose typical value is not in the middle of its "
        "range should have it as center.",
        "mode": '"private": nothing about a participant is public. "public-groups": the number of '
        "participants of each site in each group is public, and who is in which group is NOT protected.",
        "group_sizes": "Number of participants of each site in each level of the contrast, in that order.",
        "missing": "With public groups: largest fraction of a group at a site whose values may be missing "
        "without bias; more noise is added for it.",
        "motion": "Whether to adjust for mean framewise displacement, read from the confounds tables.",
        "motion_limit": "Upper end of its public range in mm; the lower end is 0.",
        "clip": "Norm to which the standardised outcomes of a participant are clipped; by default "
        "0.8 sqrt(outcomes).",
        "origin": 'Origin of center and scale: "theory" (from the length of scans; give neither), '
        '"public-cohort" or "earlier-study"; never from the participants of this study.',
        "exploratory": "Whether outcomes, groups or contrast were chosen after something was known about "
        "these participants; if true, the report and the methods text state it.",
    }

    @property
    def participant_columns(self) -> tuple[str, ...]:
        """The columns of the design except motion, which is not read from ``participants.tsv``."""
        return tuple(column.name for column in self.columns)

    @property
    def constants(self) -> Mapping[str, Any]:
        """The constants of the theory behind center and scale."""
        return theory_constants(self.values) if self.origin == "theory" and self.values != "average" else {}

    @property
    def not_covered(self) -> tuple[str, ...]:
        """The statement that groups are public, in mode "public-groups"."""
        return () if self.mode == "private" else self.design.not_covered

    # Validation

    def problems(self, setting: Setting) -> list[str]:
        """Return the problems of outcomes and design."""
        found = super().problems(setting)
        found += [f"analysis.columns: {words}" for column in self.columns for words in column.problems()]
        found += [
            f"analysis.columns: {times} columns have the name {name!r}; names must be unique"
            for name, times in Counter(self.participant_columns).items()
            if times > 1
        ]
        if self.motion and MOTION in self.participant_columns:
            found.append(
                f"analysis.motion is true, and there is also a column {MOTION!r}; remove one of them"
            )
        if self.motion and setting.features.kind not in ("atlas", "voxels"):
            found.append(
                "analysis.motion requires images with fMRIPrep confounds, but features.kind is "
                f"{setting.features.kind!r}; give motion as a column of participants.tsv"
            )
        if self.contrast not in self.participant_columns:
            names = ", ".join(self.participant_columns) or "none"
            found.append(f"analysis.contrast must be one of the columns ({names}); got {self.contrast!r}")
        elif len(self._contrast.levels) > 2:
            found.append(
                f"analysis.contrast {self.contrast!r} must have 2 levels, got {len(self._contrast.levels)}"
            )
        return found + self._scale_problems(setting) + self._group_problems(setting)

    def _scale_problems(self, setting: Setting) -> list[str]:
        given = bool(self.center), bool(self.scale)
        if self.origin != "theory" and not all(given):
            return [f"analysis.origin {self.origin!r} requires analysis.center and analysis.scale"]
        if self.origin == "theory" and any(given):
            return [
                "analysis.origin must state the origin of center and scale; 'theory' allows neither of them"
            ]
        if self.origin == "theory" and self.values == "average":
            return [
                "analysis.values 'average' requires center, scale and origin, as theory does not give them"
            ]
        return []

    def _group_problems(self, setting: Setting) -> list[str]:
        if self.mode == "private":
            given = {"group_sizes": self.group_sizes, "missing": self.missing}
            return [
                f"analysis.{name} is only allowed for mode 'public-groups'; remove it"
                for name, value in given.items()
                if value
            ]
        if self.contrast in self.participant_columns and not self._contrast.levels:
            return [f"analysis.mode 'public-groups' requires two groups, but {self.contrast!r} is a number"]
        sizes = {one.site: sum(one.sizes) for one in self.group_sizes}
        found = [
            f"analysis.group_sizes: the sizes for site {site} must add up to the {enrolled} enrolled; got "
            f"{sizes.get(site, 'none')}"
            for site, enrolled in setting.sites.items()
            if sizes.get(site) != enrolled
        ]
        found += [
            f"analysis.group_sizes: site {site!r} is not a site of the study"
            for site in sizes
            if site not in setting.sites
        ]
        return found if setting.sites else []

    @property
    def _contrast(self) -> ColumnTable:
        return next(column for column in self.columns if column.name == self.contrast)

    @property
    def design(self) -> Design:
        """The design: the contrast and the covariates to adjust for."""
        others = [column.column() for column in self.columns if column.name != self.contrast]
        others += [Column(MOTION, "number", 0.0, self.motion_limit)] * self.motion
        sizes = {one.site: one.sizes for one in self.group_sizes} if self.mode == "public-groups" else None
        return Design(self._contrast.column(), tuple(others), self.mode, sizes)

    # Notes shown only at a site

    def covariate_notes(self, covariates: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
        """Yield the problems of a subject's covariates: found, expected, and whether to correct it."""
        for column in self.design.columns:
            value = covariates.get(column.name)
            if is_missing(value):
                yield f"no {column.name}", "a value; without it, they contribute nothing", False
            elif not np.isfinite(column.encode(value)).all():
                declared = " or ".join(column.levels) or "a number"
                yield f"{column.name} {str(value)[:40]!r}", f"{declared}, as declared in the study", True
            elif column.kind == "number" and not column.low <= float(cast(Any, value)) <= column.high:
                bounds = f"{column.low:g} to {column.high:g}; other values are clipped to this range"
                yield f"{column.name} {float(cast(Any, value)):g}", bounds, False

    def site_notes(self, people: Sequence[Mapping[str, Any]], site: str) -> Iterator[tuple[str, str, bool]]:
        """Yield the problems of the covariates of the whole site, for this site only.

        Each is what was found, what was expected, and whether to correct it. Public group sizes are public
        on both sides, so refusing others reveals nothing that is protected; with other sizes the site's mean
        outcome would enter the effects.
        """
        counts = Counter(str(row[self.contrast]) for row in people if not is_missing(row.get(self.contrast)))
        declared = dict(zip(self._contrast.levels, self._sizes_of(site), strict=False))
        for level, size in declared.items():
            if counts[level] > size:
                yield (
                    f"{counts[level]} participants with {self.contrast} {level!r}",
                    f"at most the {size} declared in group_sizes of the study",
                    True,
                )
        if len(counts) == 1:
            yield (
                f"{self.contrast} is the same for all participants",
                "several values; this site contributes nothing to the comparison",
                False,
            )
            return
        for level in self._contrast.levels:
            if counts[level] == 1:
                yield (
                    f"one participant with {self.contrast} {level!r}",
                    "more; this site contributes little to the comparison",
                    False,
                )

    def _sizes_of(self, site: str) -> Sequence[int]:
        return next((one.sizes for one in self.group_sizes or () if one.site == site), ())

    # Descriptions

    @property
    def contrast_words(self) -> str:
        """The comparison in words: the second level against the first, or one unit of a number."""
        if self._contrast.levels:
            return f"{self._contrast.levels[1]} against {self._contrast.levels[0]}"
        return f"per unit of {self.contrast}"

    @property
    def range_words(self) -> str:
        """The two conditions compared in a plan: the groups, or the ends of the range."""
        low, high = self._contrast.levels or (f"{end:g}" for end in self._contrast.range or ())
        return f"{self.contrast} {low} and {high}"

    def vector_names(self, setting: Setting) -> tuple[str, ...]:
        """Return the names of the outcomes; effects are in original, not standardised, units."""
        return msgspec.structs.replace(self, center=(), scale=())._plain_names(setting)

    def _plain_names(self, setting: Setting) -> tuple[str, ...]:
        return super().vector_names(setting)

    def pair_names(self, setting: Setting) -> tuple[str, ...]:
        """Return the networks, or groups of networks, that outcomes connect; empty for other outcomes."""
        if self.values == "blocks":
            return tuple(dict.fromkeys(self.block_groups(setting)))
        return self.course_names(setting) if self.values.endswith("connectivity") else ()

    def summary(self, setting: Setting) -> str:
        """Return a short description of the computation."""
        what = "Differences between" if self._contrast.levels else "Association with"
        whom = " and ".join(self._contrast.levels) or self.contrast
        outcomes = counted(self.vector(setting).size, "outcome")
        return f"{what} {whom} in {outcomes} per participant ({self.values})"

    def words(self, setting: Setting) -> list[str]:
        """Return sentences for the approval text, including whether group membership is protected."""
        others = [column.words for column in self.columns if column.name != self.contrast]
        others += [f"motion in the scanner (0 to {self.motion_limit:g} mm)"] * self.motion
        said = [
            f"{self.summary(setting)}.",
            self.person_words(setting),
            f"Participants are compared by the column {self._contrast.words} of participants.tsv, adjusted "
            f"for {', '.join(['site', *others])}. {_MISSING}",
            f"The center and scale of the outcomes are public, {_ORIGINS[self.origin]}.",
            *[
                "The comparison is exploratory: it was not fixed before anything was known about these "
                "participants."
            ]
            * self.exploratory,
        ]
        if self.mode == "private":
            return [*said, "Who is in which group is protected like everything else about a participant."]
        return [
            *said,
            "WHO IS IN WHICH GROUP IS NOT PROTECTED: the number of participants in each group is public for "
            "every site. Everything else about a participant is protected.",
        ]

    def article(self, setting: Setting) -> str:
        """Return the description as part of a methods sentence."""
        adjusted = [column.name for column in self.columns if column.name != self.contrast]
        adjusted = ["site", *adjusted, *["mean framewise displacement"] * self.motion]
        listed = ", ".join(adjusted[:-1]) + (" and " if len(adjusted) > 1 else "") + adjusted[-1]
        return (
            f"{counted(self.vector(setting).size, 'outcome')} per participant ({self.values}) were regressed "
            f"on {self.contrast}, adjusted for {listed}{' (exploratory)' * self.exploratory}"
        )

    # Computation

    def standard(self, setting: Setting) -> Standard:
        """Return the public center, scale and clip."""
        vector = self.vector(setting)
        clip = self.clip or default_clip(vector.size)
        if self.origin == "theory" and vector.outcome is not None:
            theory = from_theory(vector.outcome, setting.scan_length)
            return Standard(theory.center, theory.scale, clip, theory.origin)
        return Standard(np.array(self.center), np.array(self.scale), clip, _ORIGINS[self.origin])

    def comparison(self, setting: Setting) -> GroupComparisonAnalysis:
        """Return the comparison of rows; its releases and the site weights depend on the noise."""
        standard, noise = self.standard(setting), _ShareOfNoise(setting.noise)
        plain = GroupComparisonAnalysis(
            self.design,
            tuple(map(float, standard.scale)),
            dict(setting.sites),
            standard.clip,
            self.vector_names(setting),
            missing=self.missing,
        )
        return tuned(plain, noise)

    def detectable(self, setting: Setting) -> list[Detectable]:
        """Return the smallest detectable differences of the outcomes, with and without planned noise."""
        comparison, noise = self.comparison(setting), _ShareOfNoise(setting.noise)
        variance = _GROUPS if self._contrast.levels else _EVENLY
        # Difference between the two groups, or the ends of the range, for outcomes before clipping.
        factor = 2 / attenuation(comparison.size, comparison.bound)

        def smallest(noise: Noise, n_tests: int) -> float:
            alpha = _LEVEL / n_tests
            return factor * minimum_detectable_effect(
                comparison, noise, POWER, alpha, group_variance=variance
            )

        return [
            Detectable(
                contrast=self.range_words,
                n_outcomes=comparison.size,
                single=smallest(noise, 1),
                among_all=smallest(noise, comparison.size),
                without_privacy=smallest(_ShareOfNoise(0.0), 1),
            )
        ]

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the comparison of standardised outcomes."""
        standard, comparison = self.standard(setting), self.comparison(setting)
        scaled = replace(
            self.vector(setting),
            center=tuple(map(float, standard.center)),
            scale=tuple(map(float, standard.scale)),
        )
        return OfScans(
            comparison,
            scaled,
            setting.n_features,
            longest_scan(setting.scan_length),
            self.networks or "",
            beside=DesignNumbers(comparison, self.motion),
        )
