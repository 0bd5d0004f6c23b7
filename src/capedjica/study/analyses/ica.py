"""``kind = "ica"``: brain networks by joint independent component analysis, or as a template has them."""

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
# Methods that begin from a template, and those whose steps are counted.
WITH_TEMPLATE: Final = ("template", "guided")
WITH_AUTO: Final = ("subject", "spatial")
_ITERATING: Final = ("subject", "paper", "guided")
# What results are called, beside which a template of the study is kept.
_RESULTS: Final = ("maps.npy", "maps_denoised.npy", "mixing.npy", "unmixing.npy")
_METHOD_NAMES: Final = {
    "subject": "The default method (one short vector per person and release)",
    "paper": "The paper's method (capePCA, then capeDJICA)",
    "template": "The networks of a template",
    "guided": "The guided method (from a template to the networks of these people)",
    "spatial": "The spatial method (one short vector per person and release, of maps that are independent)",
}
_METHOD_WORDS: Final = {
    "subject": "The method is 'subject', the default: each person enters every step with one short vector.",
    "paper": "The method is 'paper': capePCA, which finds the directions in which scans vary, and capeDJICA, "
    "which finds the networks in them, as their authors published them.",
    "guided": "The method is 'guided': it begins from the networks of a template, and each person enters "
    "every step with one short vector.",
    "spatial": "The method is 'spatial': it looks for maps, not time courses, as independent of each other "
    "as can be, and each person enters every step with one short vector.",
}
_AUTO_WORDS: Final = (
    "How many networks there are is decided by the first release: as many as its noise lets through. What is "
    "released, its noise and its cost are those of the largest number, whatever is found."
)
_MOVED_WORDS: Final = (
    "The method is 'template': no networks are looked for. Each person enters once, with how their own "
    "networks differ from the template's; the mean of that is released, and moves the template."
)
_KEPT_WORDS: Final = (
    "The method is 'template', without group maps: no networks are looked for, and nothing is released for "
    "this. The template's own networks are what later analyses use."
)


class IcaTable(AnalysisTable, frozen=True, kw_only=True):
    """Brain networks, found in all scans at once by independent component analysis."""

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
        "subspace": "in which directions the scans vary most, every person counted alike",
        "log-covariance": "how strongly the scans vary along these directions, and which vary together",
        "log-covariance, whitened": "the same once more, after what all have in common was taken out",
        "rotation": "in which way to turn the networks so that they become more independent of each other",
        "second moments (PCA)": "how strongly the features vary, and which vary together",
        "gradients of W and b": "in which way to change the networks so that they become more independent",
        "support of the template": "how much of each known network lies in the directions of a person's scan",
        LABEL: "how people's own networks differ from those of the template, on average",
    }
    comments: ClassVar[Words] = {
        "method": '"subject": one small vector per person and release (the default). "paper": capePCA, then '
        'capeDJICA. "template", "guided": from known networks. "spatial": independent maps.',
        "n_components": 'Networks to find; with a template those it has. "auto": as many as the noise lets '
        "through, at most max_components.",
        "max_iter": "Most iterations.",
        "template": "Known networks, an array (networks, features) beside this file.",
        "template_sha256": "Its hash: every site must have the same.",
        "template_origin": 'Where it comes from: "public" (nobody who takes part is in it), "earlier-study" '
        '(private results), "other-people" (results without privacy; nobody who takes part is in them).',
        "template_source": "What it was made from.",
        "template_names": "What its networks are called.",
        "template_systems": "To which system each of them belongs.",
        "group_maps": "Whether the mean difference from the template is released; without it nothing is.",
        "max_components": 'With n_components = "auto": the most there may be; noise and cost are theirs.',
    }
    public_keys: ClassVar[tuple[str, ...]] = ("template",)

    @property
    def releases(self) -> bool:
        """Whether anything is released: not if the template is taken as it is."""
        return self.method != "template" or self.group_maps

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the guarantee rests on where there is a template."""
        return () if self.template_origin is None else (NOT_COVERED[self.template_origin],)

    @property
    def auto(self) -> bool:
        """Whether the number of networks is left to what the noise lets through."""
        return self.n_components == AUTO

    @property
    def most_components(self) -> int:
        """The number of networks, or the most there may be."""
        known = self.max_components if self.n_components == AUTO else self.n_components
        return known or FEWEST

    def fits(self, n_components: int) -> bool:
        """Tell whether results may have so many networks."""
        least = FEWEST if self.auto else self.most_components
        return least <= n_components <= self.most_components

    @property
    def _counted(self) -> str:
        return "up to " * self.auto + counted(self.most_components, "brain network")

    @property
    def network_names(self) -> tuple[str, ...]:
        """What the networks are called; numbers where they have no names."""
        return self.template_names or tuple(f"network {n}" for n in range(1, self.most_components + 1))

    def problems(self, setting: Setting) -> list[str]:
        """Return what keeps networks from being found."""
        if setting.features.kind == "table":
            return ["analysis.kind 'ica' needs scans; features.kind is 'table', one row per person"]
        limits = {"n_features": setting.features.n_features, "scan_length": setting.features.scan_length}
        asked = "max_components" if self.auto else "n_components"
        found = self._auto_problems() + [
            f"analysis.{asked} must be at most {key}, {most}; got {self.most_components}"
            for key, most in limits.items()
            if most is not None and self.most_components > most
        ]
        if self.max_iter is not None and self.method not in _ITERATING:
            found.append(f"analysis.max_iter is not for method {self.method!r}, which does not iterate")
        if not self.group_maps and self.method != "template":
            found.append(f"analysis.group_maps is for method 'template'; analysis.method is {self.method!r}")
        return found + self._template_problems()

    def _auto_problems(self) -> list[str]:
        if not self.auto:
            given = self.max_components is not None
            return ['analysis.max_components is for analysis.n_components = "auto"'] if given else []
        found = []
        if self.method not in WITH_AUTO:
            found.append(
                f"analysis.n_components 'auto' is for methods {' and '.join(map(repr, WITH_AUTO))}; "
                f"analysis.method is {self.method!r}: give a number"
            )
        if self.max_components is None:
            found.append("analysis.max_components is missing: analysis.n_components is 'auto'")
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
                f"analysis.{key} is for methods 'template' and 'guided'; analysis.method is {self.method!r}"
                for key in given
                if getattr(self, key)
            ]
        found = [
            f"analysis.{key} is missing: analysis.method is {self.method!r}"
            for key in ("template", "template_origin")
            if getattr(self, key) is None
        ]
        if self.template is not None and (not self.template.endswith(".npy") or self.template in _RESULTS):
            found.append(
                "analysis.template must be a .npy file that is not called as results are; got "
                f"{self.template!r} (`capedjica study new --template` makes one of an image)"
            )
        found += [
            f"analysis.{key} must be one name for each of {self.n_components} networks; got {len(names)}"
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
        """Return in few words what is computed."""
        return (
            f"{_METHOD_NAMES[self.method]}: {counted(setting.n_features, 'feature')} to "
            f"{'up to ' * self.auto}{counted(self.most_components, 'component')}, scans of about "
            f"{setting.scan_length:,} time points"
        )

    def words(self, setting: Setting) -> list[str]:
        """Return what is computed in sentences."""
        networks = f"{self._counted[0].upper()}{self._counted[1:]} (components: parts of the brain whose "
        scan = (
            f"A scan is a table: {setting.n_features:,} numbers (voxels or regions) at each of about "
            f"{setting.scan_length:,} time points."
        )
        if self.method == "template":
            said = _MOVED_WORDS if self.group_maps else _KEPT_WORDS
            return [
                f"{networks}activity rises and falls together), those of a template. {scan}",
                said,
                self.template_words,
            ]
        found = [
            f"{networks}activity rises and falls together), found in all scans at once by independent "
            "component analysis, which looks for signals as independent of each other as can be. " + scan,
            _METHOD_WORDS[self.method],
            *([_AUTO_WORDS] if self.auto else []),
        ]
        return [*found, self.template_words] if self.template else found

    @property
    def template_words(self) -> str:
        """Where the template comes from, in sentences; empty where there is none."""
        if self.template is None or self.template_origin is None:
            return ""
        source = f" It was made from {self.template_source}." if self.template_source else ""
        names = f" Its networks: {', '.join(self.template_names)}." if self.template_names else ""
        return (
            f"The template is the file {self.template!r}, the same at every site, which refuses another "
            f"(SHA-256 {self.template_sha256}).{source}{names} Whoever wrote the study vouches that it is "
            f"{ORIGIN_WORDS[self.template_origin]}."
        )

    def article(self, setting: Setting) -> str:
        """Return it as part of a sentence."""
        if self.method != "template":
            return super().article(setting)
        taken = "moved to where they are in participants" if self.group_maps else "taken as they are known"
        return f"{self._counted} of a template were {taken}"

    def fewest_timepoints(self, setting: Setting) -> int:
        """Return the number of components."""
        return self.most_components
