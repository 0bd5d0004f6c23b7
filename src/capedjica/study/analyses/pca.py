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
    """Principal components: the directions of largest variation of scans or table rows."""

    kind: Literal["pca"] = "pca"
    n_components: Count
    clip: Positive | None = None

    meanings: ClassVar[Words] = {"second moments (PCA)": "the variances and covariances of the features"}
    comments: ClassVar[Words] = {
        "n_components": "Number of principal components.",
        "clip": "Largest norm of one time point; if omitted, each scan is centred and scaled on its own.",
    }

    def problems(self, setting: Setting) -> list[str]:
        """Return the problems of the table."""
        found = []
        if setting.n_features and self.n_components > setting.n_features:
            found.append(
                f"analysis.n_components must be at most n_features, {setting.n_features}; got "
                f"{self.n_components}"
            )
        if setting.features.kind == "table" and self.clip is None:
            found.append("analysis.clip is missing; give the largest norm of a row of the table")
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
        """Return a short description of the computation."""
        return f"{self._counted} of {counted(setting.n_features, 'feature')} (capePCA)"

    def words(self, setting: Setting) -> list[str]:
        """Return sentences about the computation for the approval text."""
        about = (
            "Each scan is first centred and scaled on its own."
            if self.clip is None
            else "Nothing is centred: the second moments are about zero, of vectors clipped to norm "
            f"{self.clip:g}."
        )
        which = "the direction" if self.n_components == 1 else "the directions"
        return [
            f"{self._counted}: {which} of largest variation of {counted(setting.n_features, 'feature')}, "
            f"with equal weight for every participant. {about}"
        ]

    def article(self, setting: Setting) -> str:
        """Return the description as part of a methods sentence."""
        return f"{self._counted} {'was' if self.n_components == 1 else 'were'} estimated"

    @property
    def _counted(self) -> str:
        return counted(self.n_components, "principal component")
