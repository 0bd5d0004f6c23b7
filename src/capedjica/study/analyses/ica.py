"""``kind = "ica"``: brain networks by joint independent component analysis."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.paper_method import PaperMethod
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.data.features import MOST
from capedjica.study.analyses.base import AnalysisTable, Iterations, Setting, Words
from capedjica.tools.text import counted

MethodName = Literal["subject", "paper"]
Several = Annotated[int, msgspec.Meta(ge=2, le=MOST)]
_METHOD_NAMES: Final = {
    "subject": "The default method (one short vector per person and release)",
    "paper": "The paper's method (capePCA, then capeDJICA)",
}
_METHOD_WORDS: Final = {
    "subject": "The method is 'subject', the default: each person enters every step with one short vector.",
    "paper": "The method is 'paper': capePCA, which finds the directions in which scans vary, and capeDJICA, "
    "which finds the networks in them, as their authors published them.",
}


class IcaTable(AnalysisTable, frozen=True, kw_only=True):
    """Brain networks, found in all scans at once by independent component analysis."""

    kind: Literal["ica"] = "ica"
    method: MethodName = "subject"
    n_components: Several
    max_iter: Iterations | None = None

    meanings: ClassVar[Words] = {
        "subspace": "in which directions the scans vary most, every person counted alike",
        "log-covariance": "how strongly the scans vary along these directions, and which vary together",
        "log-covariance, whitened": "the same once more, after what all have in common was taken out",
        "rotation": "in which way to turn the networks so that they become more independent of each other",
        "second moments (PCA)": "how strongly the features vary, and which vary together",
        "gradients of W and b": "in which way to change the networks so that they become more independent",
    }
    comments: ClassVar[Words] = {
        "method": '"subject": one small vector per person and release (the default). "paper": capePCA, then '
        "capeDJICA.",
        "n_components": "Networks to find.",
        "max_iter": "Most iterations.",
    }

    def problems(self, setting: Setting) -> list[str]:
        """Return what keeps networks from being found."""
        if setting.features.kind == "table":
            return ["analysis.kind 'ica' needs scans; features.kind is 'table', one row per person"]
        limits = {"n_features": setting.features.n_features, "scan_length": setting.features.scan_length}
        return [
            f"analysis.n_components must be at most {key}, {most}; got {self.n_components}"
            for key, most in limits.items()
            if most is not None and self.n_components > most
        ]

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the method."""
        size, length = setting.n_features, setting.scan_length
        if self.method == "paper":
            iterations = {} if self.max_iter is None else {"max_iter": self.max_iter}
            return PaperMethod(size, self.n_components, **iterations, scan_length=length)
        shape = setting.features.image_shape
        basis = setting.open_features().basis if shape is None else low_pass(shape)
        return SubjectMethod(size, self.n_components, length, setting.noise, self.max_iter, basis)

    def summary(self, setting: Setting) -> str:
        """Return in few words what is computed."""
        return (
            f"{_METHOD_NAMES[self.method]}: {counted(setting.n_features, 'feature')} to "
            f"{counted(self.n_components, 'component')}, scans of about {setting.scan_length:,} time points"
        )

    def words(self, setting: Setting) -> list[str]:
        """Return what is computed in sentences."""
        return [
            f"{counted(self.n_components, 'brain network')} (components: parts of the brain whose "
            "activity rises and falls together), found in all scans at once by independent component "
            "analysis, which looks for signals as independent of each other as can be. A scan is a table: "
            f"{setting.n_features:,} numbers (voxels or regions) at each of about "
            f"{setting.scan_length:,} time points.",
            _METHOD_WORDS[self.method],
        ]

    def fewest_timepoints(self, setting: Setting) -> int:
        """Return the number of components."""
        return self.n_components
