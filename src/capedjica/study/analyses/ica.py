"""``kind = "ica"``: brain networks from joint independent component analysis or from a template."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import msgspec

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.guided import GuidedMethod
from capedjica.algorithms.ica.maps.component_number import AUTO, FEWEST
from capedjica.algorithms.ica.paper_method import PaperMethod
from capedjica.algorithms.ica.spatial import SpatialMethod
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.ica.template_method import LABEL, TemplateMethod
from capedjica.data.features import MOST
from capedjica.data.templates import NOT_COVERED, ORIGIN_WORDS, Origin, study_template
from capedjica.study.analyses.base import AnalysisTable, Iterations, Setting, Words
from capedjica.tools.arrays import FloatArray
from capedjica.tools.text import counted

MethodName = Literal["subject", "paper", "template", "guided", "spatial"]
Several = Annotated[int, msgspec.Meta(ge=2, le=MOST)]
Source = Annotated[str, msgspec.Meta(max_length=200)]
METHODS: Final[tuple[str, ...]] = get_args(MethodName)
# Methods that start from a template, methods that support "auto", and iterative methods.
WITH_TEMPLATE: Final = ("template", "guided")
WITH_AUTO: Final = ("subject", "spatial")
_ITERATING: Final = ("subject", "paper", "guided")
# Names of result files, which are stored in the same folder as the template of a study.
_RESULTS: Final = ("maps.npy", "maps_denoised.npy", "mixing.npy", "unmixing.npy")
_METHOD_NAMES: Final = {
    "subject": "The default method (one short vector per participant and release)",
    "paper": "The paper's method (capePCA, then capeDJICA)",
    "template": "The networks of a template",
    "guided": "The guided method (networks of this cohort, estimated from a template)",
    "spatial": "The spatial method (one short vector per participant and release; independent maps)",
}
_METHOD_WORDS: Final = {
    "subject": "The method is 'subject', the default: each participant contributes one short vector to every "
    "release.",
    "paper": "The method is 'paper': capePCA, which estimates the directions of largest variation of the "
    "scans, and capeDJICA, which estimates the networks within them, as published by their authors.",
    "guided": "The method is 'guided': it starts from the networks of a template, and each participant "
    "contributes one short vector to every release.",
    "spatial": "The method is 'spatial': it makes the maps, rather than the time courses, as independent of "
    "each other as possible, and each participant contributes one short vector to every release.",
}
_AUTO_WORDS: Final = (
    "The number of networks is determined from the first release: as many as are recoverable at its noise "
    "level. The releases, their noise and their cost are those of the largest number, whatever the number "
    "found."
)
_MOVED_WORDS: Final = (
    "The method is 'template': no networks are estimated from scratch. Each participant contributes once, "
    "with the difference between their own networks and the template's. The mean difference is released and "
    "added to the template."
)
_KEPT_WORDS: Final = (
    "The method is 'template', without group maps: no networks are estimated, and this analysis releases "
    "nothing. Later analyses use the template's own networks."
)


class IcaTable(AnalysisTable, frozen=True, kw_only=True):
    """Brain networks, estimated from all scans jointly by independent component analysis."""

    kind: Literal["ica"] = "ica"
    method: MethodName = "subject"
    n_components: Several | Literal["auto"]
    max_iter: Iterations | None = None
    template: str | None = None
    template_sha256: str | None = None
    template_origin: Origin | None = None
    template_source: Source = ""
    template_names: tuple[str, ...] = ()
    template_systems: tuple[str, ...] = ()
    group_maps: bool = True
    max_components: Several | None = None

    meanings: ClassVar[Words] = {
        "subspace": "the directions of largest variation of the scans, with equal weight for every "
        "participant",
        "log-covariance": "the variances and covariances of the scans along these directions (logarithm)",
        "log-covariance, whitened": "the same again, after removal of the part common to all participants",
        "rotation": "the rotation that makes the networks more independent of each other",
        "second moments (PCA)": "the variances and covariances of the features",
        "gradients of W and b": "the change of the networks that makes them more independent",
        "support of the template": "the part of each template network that lies within the main directions "
        "of a participant's scan",
        LABEL: "the mean difference between the participants' own networks and those of the template",
    }
    comments: ClassVar[Words] = {
        "method": '"subject": one small vector per participant and release (the default). "paper": capePCA, '
        'then capeDJICA. "template", "guided": from a template. "spatial": independent maps.',
        "n_components": 'Number of networks; with a template, the number it has. "auto": as many as are '
        "recoverable at the noise level, at most max_components.",
        "max_iter": "Maximum number of iterations.",
        "template": "Template networks, an array (networks, features) stored next to this file.",
        "template_sha256": "SHA-256 of the template, which must be the same at every site.",
        "template_origin": 'Origin of the template: "public" (includes no participant of this study), '
        '"earlier-study" (private results), "other-people" (results without privacy; they include no '
        "participant of this study).",
        "template_source": "Source of the template.",
        "template_names": "Names of the template networks.",
        "template_systems": "System to which each template network belongs.",
        "group_maps": "Whether the mean difference from the template is released; if false, nothing is.",
        "max_components": 'Largest number of networks for n_components = "auto"; it sets the noise and cost.',
    }
    public_keys: ClassVar[tuple[str, ...]] = ("template",)

    @property
    def releases(self) -> bool:
        """Whether anything is released: not if the template is used unchanged."""
        return self.method != "template" or self.group_maps

    @property
    def not_covered(self) -> tuple[str, ...]:
        """The assumption that a template adds to the guarantee."""
        return () if self.template_origin is None else (NOT_COVERED[self.template_origin],)

    @property
    def auto(self) -> bool:
        """Whether the number of networks is determined from the noise level."""
        return self.n_components == AUTO

    @property
    def most_components(self) -> int:
        """The number of networks, or its maximum for "auto"."""
        known = self.max_components if self.n_components == AUTO else self.n_components
        return known or FEWEST

    def fits(self, n_components: int) -> bool:
        """Return whether results may have this number of networks."""
        least = FEWEST if self.auto else self.most_components
        return least <= n_components <= self.most_components

    @property
    def _counted(self) -> str:
        return "up to " * self.auto + counted(self.most_components, "brain network")

    @property
    def network_names(self) -> tuple[str, ...]:
        """Names of the networks; numbered if they have none."""
        return self.template_names or tuple(f"network {n}" for n in range(1, self.most_components + 1))

    def problems(self, setting: Setting) -> list[str]:
        """Return the problems of the table."""
        if setting.features.kind == "table":
            return [
                "analysis.kind 'ica' requires scans, but features.kind is 'table' (one row per participant)"
            ]
        limits = {"n_features": setting.features.n_features, "scan_length": setting.features.scan_length}
        asked = "max_components" if self.auto else "n_components"
        found = self._auto_problems() + [
            f"analysis.{asked} must be at most {key}, {most}; got {self.most_components}"
            for key, most in limits.items()
            if most is not None and self.most_components > most
        ]
        if self.max_iter is not None and self.method not in _ITERATING:
            found.append(
                f"analysis.max_iter is not allowed for method {self.method!r}, which does not iterate; "
                "remove it"
            )
        if not self.group_maps and self.method != "template":
            found.append(
                "analysis.group_maps is only allowed for method 'template'; analysis.method is "
                f"{self.method!r}"
            )
        return found + self._template_problems()

    def _auto_problems(self) -> list[str]:
        if not self.auto:
            given = self.max_components is not None
            words = 'analysis.max_components is only allowed for analysis.n_components = "auto"; remove it'
            return [words] if given else []
        found = []
        if self.method not in WITH_AUTO:
            found.append(
                f"analysis.n_components 'auto' requires method {' or '.join(map(repr, WITH_AUTO))}; "
                f"analysis.method is {self.method!r}: give a number"
            )
        if self.max_components is None:
            found.append("analysis.max_components is missing; analysis.n_components 'auto' requires it")
        return found

    def _template_problems(self) -> list[str]:
        if self.method not in WITH_TEMPLATE:
            given = (
                "template",
                "template_origin",
                "template_source",
                "template_names",
                "template_systems",
            )
            return [
                f"analysis.{key} is only allowed for methods 'template' and 'guided'; analysis.method is "
                f"{self.method!r}"
                for key in given
                if getattr(self, key)
            ]
        found = [
            f"analysis.{key} is missing; analysis.method {self.method!r} requires it"
            for key in ("template", "template_origin")
            if getattr(self, key) is None
        ]
        if self.template is not None and (not self.template.endswith(".npy") or self.template in _RESULTS):
            found.append(
                f"analysis.template must be a .npy file other than a result file; got {self.template!r} "
                "(`capedjica study new --template` converts an image)"
            )
        found += [
            f"analysis.{key} must have one name for each of the {self.n_components} networks; got "
            f"{len(names)}"
            for key, names in (
                ("template_names", self.template_names),
                ("template_systems", self.template_systems),
            )
            if names and len(names) != self.most_components
        ]
        if not self.template_source.isprintable():
            found.append("analysis.template_source must be printable text on one line")
        return found

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the method."""
        size, length, noise = setting.n_features, setting.scan_length, setting.noise
        if self.method == "paper":
            iterations = {} if self.max_iter is None else {"max_iter": self.max_iter}
            return PaperMethod(size, self.most_components, **iterations, scan_length=length)
        basis = self._basis(setting)
        if self.method == "template":
            return TemplateMethod(self._open_template(setting), length, noise, self.group_maps, basis)
        if self.method == "guided":
            return GuidedMethod(self._open_template(setting), length, noise, self.max_iter, basis)
        if self.method == "spatial":
            return SpatialMethod(size, self.most_components, length, noise, basis, self.auto)
        return SubjectMethod(size, self.most_components, length, noise, self.max_iter, basis, self.auto)

    def _basis(self, setting: Setting) -> FloatArray | None:
        shape = setting.features.image_shape
        return setting.open_features().basis if shape is None else low_pass(shape)

    def _open_template(self, setting: Setting) -> Template:
        assert self.template is not None
        shape = (self.most_components, setting.n_features)
        return study_template(
            setting.folder / self.template, self.template_sha256, self.template_names, shape
        )

    def summary(self, setting: Setting) -> str:
        """Return a short description of the computation."""
        return (
            f"{_METHOD_NAMES[self.method]}: {counted(setting.n_features, 'feature')} to "
            f"{'up to ' * self.auto}{counted(self.most_components, 'component')}, scans of about "
            f"{setting.scan_length:,} time points"
        )

    def words(self, setting: Setting) -> list[str]:
        """Return sentences about the computation for the approval text."""
        networks = f"{self._counted[0].upper()}{self._counted[1:]} (components: parts of the brain whose "
        scan = (
            f"A scan is an array of {setting.n_features:,} features (voxels or regions) at each of about "
            f"{setting.scan_length:,} time points."
        )
        if self.method == "template":
            said = _MOVED_WORDS if self.group_maps else _KEPT_WORDS
            return [
                f"{networks}activity rises and falls together), taken from a template. {scan}",
                said,
                self.template_words,
            ]
        found = [
            f"{networks}activity rises and falls together), estimated from all scans jointly by independent "
            "component analysis, which finds signals that are as independent of each other as possible. "
            + scan,
            _METHOD_WORDS[self.method],
            *([_AUTO_WORDS] if self.auto else []),
        ]
        return [*found, self.template_words] if self.template else found

    @property
    def template_words(self) -> str:
        """Sentences about the origin of the template; empty if there is none."""
        if self.template is None or self.template_origin is None:
            return ""
        source = f" Its source is {self.template_source}." if self.template_source else ""
        names = f" Its networks: {', '.join(self.template_names)}." if self.template_names else ""
        return (
            f"The template is the file {self.template!r} (SHA-256 {self.template_sha256}). Every site uses "
            f"the same file and refuses any other.{source}{names} The coordinator vouches that it is "
            f"{ORIGIN_WORDS[self.template_origin]}."
        )

    def article(self, setting: Setting) -> str:
        """Return the description as part of a methods sentence."""
        if self.method != "template":
            return super().article(setting)
        taken = "adapted to the participants" if self.group_maps else "used unchanged"
        return f"{self._counted} of a template were {taken}"

    def fewest_timepoints(self, setting: Setting) -> int:
        """Return the number of components."""
        return self.most_components
