"""Every figure of the project: what makes it, where it is, and the code it depends on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.evidence.code import ROOT, code_of

# Words and pictures, and what only carries numbers from one place to another.
_NEUTRAL: Final = (
    "capedjica.errors",
    "capedjica.report",
    "capedjica.tools",
    "benchmarks.framework",
    "benchmarks.evidence",
    "benchmarks.utility.shared.figures",
    "benchmarks.utility.shared.report",
)
# Code whose results tests pin to a formula: the protocol adds exactly, in integers; noise has a tested
# distribution; kernels equal their formulas in NumPy to single precision. None of it can change the quality
# of a result, unlike what decides how much noise there is, which therefore counts.
_PINNED: Final = (
    "capedjica.algorithms.kernels",
    "capedjica.algorithms.reserved",
    "capedjica.compiled",
    "capedjica.engines",
    "capedjica.mechanisms.aggregator",
    "capedjica.mechanisms.block",
    "capedjica.mechanisms.messages",
    "capedjica.mechanisms.site.answering",
    "capedjica.mechanisms.site.head_seal",
    "capedjica.privacy.adversary",
    "capedjica.privacy.ledger",
    "capedjica.privacy.statement",
    "capedjica.privacy.validate",
    "capedjica.privacy.wording",
    "capedjica.securesum",
)
# Constants by which stability is predicted: they change no map.
_PREDICTED: Final = "capedjica.algorithms.ica.maps.calibration"
_NOISE: Final = (
    "capedjica.mechanisms.release",
    "capedjica.mechanisms.site.clipping",
    "capedjica.mechanisms.terms",
    "capedjica.privacy.cape",
)
_FEDERATED: Final = (
    "benchmarks.federated",
    "capedjica.coordinator.flare.transport",
    "capedjica.site.flare.relay",
    "capedjica.site.agent.responder",
)
_FEDERATED_WITHOUT: Final = (
    *_NEUTRAL,
    "capedjica.data",
    "capedjica.cli",
    "capedjica.study",
    "capedjica.one_machine",
)
# What an import of the estimators or the help of the command line loads, but not what is below it.
_STARTED: Final = ("benchmarks.startup", "capedjica", "capedjica.cli", "capedjica.estimators")
_NOT_STARTED: Final = tuple(
    f"capedjica.{name}"
    for name in (
        *("algorithms", "applications", "coordinator", "data", "engines", "extending", "flare"),
        *("mechanisms", "metrics", "one_machine", "privacy", "securesum", "site", "study", "web"),
    )
)
_RESULTS: Final = "benchmarks/results"
_EVIDENCE: Final = "docs/evidence"


@dataclass(frozen=True)
class Figure:
    """Numbers that a page of the project shows.

    Parameters
    ----------
    name : str
        Of its files, without suffix.
    folder : str
        Where they are, relative to the project.
    arguments : tuple of str
        What makes them, after ``python -m``; "FOLDER" stands for the real data.
    roots : tuple of str
        Modules that compute them.
    without : tuple of str
        What these import that cannot change the numbers.
    """

    name: str
    folder: str
    arguments: tuple[str, ...]
    roots: tuple[str, ...]
    without: tuple[str, ...] = _NEUTRAL

    @property
    def command(self) -> str:
        """What makes the figure."""
        return " ".join(("python -m", *self.arguments))

    @property
    def needs_folder(self) -> bool:
        """Whether it needs the real data."""
        return "FOLDER" in self.arguments

    @property
    def base(self) -> Path:
        """Path of its files, without suffix."""
        return ROOT / self.folder / self.name

    def code(self) -> dict[str, str]:
        """Return the fingerprint of each module that it depends on."""
        return code_of(self.roots, self.without)


def _quality(name: str, module: str, *arguments: str) -> Figure:
    """Return a figure about the quality of results, by one of the benchmarks of utility or findings."""
    kind = module.split(".")[1]
    return Figure(
        f"{kind}-{name}",
        _RESULTS,
        (f"benchmarks.{kind}", name, *arguments),
        (module, *_NOISE),
        (*_NEUTRAL, *_PINNED, *(() if name == "stability" else (_PREDICTED,))),
    )


def _utility(module: str, *names: str, folder: bool = False, seeds: int = 5) -> tuple[Figure, ...]:
    more = ("FOLDER",) if folder else ()
    return tuple(
        _quality(name, f"benchmarks.utility.{module}", *more, "--seeds", str(seeds)) for name in names
    )


def _speed(name: str, *without: str) -> Figure:
    return Figure(
        f"bench-{name}",
        _EVIDENCE,
        ("benchmarks", name),
        (f"benchmarks.{name}",),
        (*_NEUTRAL, "benchmarks.peers", *without),
    )


def _scale(name: str, module: str = "workloads") -> Figure:
    return Figure(
        f"scale-{name}",
        _RESULTS,
        ("benchmarks.scale", name),
        (f"benchmarks.scale.{module}", "benchmarks.scale.measuring"),
        (*_NEUTRAL, "capedjica.privacy"),
    )


def _paper(name: str, *more: str, data: str = "") -> Figure:
    return Figure(
        f"{name}{data}",
        "paper/results",
        (f"paper.{name}", *more),
        (f"paper.{name}", *_NOISE),
        (*_NEUTRAL, *_PINNED, "capedjica.study"),
    )


FIGURES: Final[dict[str, Figure]] = {
    figure.name: figure
    for figure in (
        *_utility("synthetic", "synthetic", "noise", "scattered", "components", "no-basis"),
        *_utility("start", "start"),
        *_utility("methods", "methods"),
        *_utility("condition", "condition"),
        *_utility("spatial", "spatial"),
        *_utility("number", "number"),
        *_utility("readable", "denoised", "stability", folder=True),
        *_utility("abide", "abide", folder=True),
        *_utility("guided", "guided", folder=True, seeds=20),
        *_utility("guided_external", "guided-external", folder=True),
        *_utility("guided_more", "guided-bad", "guided-ablation", folder=True),
        *_utility("guided_more", "guided-synthetic"),
        *_utility("speed", "nonprivate", "time"),
        _quality("calibration", "benchmarks.findings.simulated"),
        _quality("truth", "benchmarks.findings.simulated", "--repetitions", "300"),
        _quality("abide", "benchmarks.findings.abide", "FOLDER", "--repetitions", "300", "--whole", "3"),
        _quality("permuted", "benchmarks.findings.abide", "FOLDER", "--whole", "3"),
        *(_paper(name) for name in ("communication", "composition", "effective_delta", "sample_imbalance")),
        *(_paper(name) for name in ("pca_energy", "spatial_maps")),
        *(_paper(name) for name in ("vary_delta", "vary_epsilon", "vary_subjects")),
        *(
            _paper(name, "--abide", "FOLDER", data="_abide")
            for name in ("vary_delta", "vary_epsilon", "vary_subjects")
        ),
        _paper("vary_epsilon", "--abide", "FOLDER", data="_abide_50"),
        *(_scale(name) for name in ("participants", "sites", "secure-sum", "components")),
        *(_scale(name) for name in ("features", "features-without-basis")),
        _scale("one-site", "one_site"),
        _speed("noise"),
        _speed("securesum"),
        _speed("release", "capedjica.data", "capedjica.estimators"),
        _speed("kernels", "capedjica.data", "capedjica.privacy"),
        _speed("descent", "capedjica.data", "capedjica.privacy"),
        _speed("whole"),
        Figure("bench-startup", _EVIDENCE, ("benchmarks", "startup"), _STARTED, (*_NEUTRAL, *_NOT_STARTED)),
        _speed("extraction", "capedjica.algorithms.ica", "capedjica.mechanisms", "capedjica.privacy"),
        Figure("bench-federated", _EVIDENCE, ("benchmarks.federated",), _FEDERATED, _FEDERATED_WITHOUT),
        Figure(
            "wide-area",
            _RESULTS,
            ("benchmarks.wide_area",),
            ("benchmarks.wide_area.__main__", *_FEDERATED[1:]),
            _FEDERATED_WITHOUT,
        ),
    )
}
# Compared with an earlier commit, once: it can be made again, but does not become untrue.
ONCE: Final = ("bench-federated-before",)
