"""``kind = "pca"``: principal components of scans."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.ica.scan_length import longest_scan
from capedjica.algorithms.pca import PrincipalComponents
from capedjica.data.features import Count
from capedjica.study.analyses.base import AnalysisTable, Positive, Setting, Words
from capedjica.tools.text import counted


class PcaTable(AnalysisTable, frozen=True, kw_only=True):
    """Principal components: the directions in which scans, or rows, vary most."""

    kind: Literal["pca"] = "pca"
    n_components: Count
    clip: Positive | None = None

    meanings: ClassVar[Words] = {
        "second moments (PCA)": "how strongly the features vary, and which vary together"
    }
    comments: ClassVar[Words] = {
        "n_components": "Directions to find.",
        "clip": "Longest vector of one time point; without it each scan is centred and scaled by itself.",
    }

    def problems(self, setting: Setting) -> list[str]:
        """Return what keeps components from being found."""
        found = []
        if setting.n_features and self.n_components > setting.n_features:
            found.append(
                f"analysis.n_components must be at most n_features, {setting.n_features}; got "
                f"{self.n_components}"
            )
        if setting.features.kind == "table" and self.clip is None:
            found.append("analysis.clip is missing: the longest that a row of the table may be")
        return found

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return capePCA."""
        longest = longest_scan(setting.scan_length)
        return PrincipalComponents(
            setting.n_features,
            self.n_components,
            self.clip,
            longest=longest,
            names=tuple(setting.features.columns),
        )

    def summary(self, setting: Setting) -> str:
        """Return in few words what is computed."""
        return f"{self._counted} of {counted(setting.n_features, 'feature')} (capePCA)"

    def words(self, setting: Setting) -> list[str]:
        """Return what is computed in sentences."""
        about = (
            "Each scan is centred and scaled by itself before."
            if self.clip is None
            else "Nothing is centred: what counts are second moments about zero, of vectors of length "
            f"{self.clip:g} at most."
        )
        which = "the direction" if self.n_components == 1 else "the directions"
        return [
            f"{self._counted}: {which}, among {counted(setting.n_features, 'feature')}, in which everybody's "
            f"numbers are largest, every person counted alike. {about}"
        ]

    def article(self, setting: Setting) -> str:
        """Return it as part of a sentence."""
        return f"{self._counted} {'was' if self.n_components == 1 else 'were'} estimated"

    @property
    def _counted(self) -> str:
        return counted(self.n_components, "principal component")
