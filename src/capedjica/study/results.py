"""What a run leaves: matrices for programs, pictures and tables for people, the cost, the origin."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from capedjica import __version__
from capedjica.algorithms.maps import mixing_of, pseudo_inverse
from capedjica.algorithms.reliability import STABLE
from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.statement import PrivacyStatement
from capedjica.report.figures import draw, maps_figure
from capedjica.study.run_folder import RunFolder, RunState
from capedjica.study.study_file import Study

FloatArray = NDArray[np.float64]
SCALE: Final = "largest absolute value 1, positive; in the order of the features at which they peak"
_LIBRARIES: Final = ("numpy", "scipy", "numba", "cryptography", "msgspec")


RELIABILITY: Final = (
    "Stability is the correlation of a map with itself as it might have come out with other noise of the "
    "same size, told from what was published alone. A map below the threshold may be noise: it is no "
    "network. A stable map is not for that reason a true one."
)


class Reliability(msgspec.Struct):
    """What is told of a ``reliability.json``."""

    stable: list[bool] | None


class Cost(msgspec.Struct):
    """What is told of a ``privacy.json``."""

    statement: str


def result_names(study: Study) -> list[str]:
    """Return the files that a complete run has."""
    pictures = [] if study.content.analysis.image_shape is None else ["maps.png"]
    return [
        "unmixing.npy",
        "mixing.npy",
        "maps.npy",
        "maps.csv",
        *pictures,
        "reliability.json",
        "privacy.json",
        "provenance.json",
    ]


def write_results(
    folder: RunFolder,
    study: Study,
    unmixing: FloatArray,
    n_iter: int,
    stability: FloatArray | None,
    privacy: PrivacyStatement,
    state: RunState,
) -> None:
    """Write the matrices, maps.csv, maps.png (where features are an image), reliability, privacy, provenance.

    ``stability`` is that of each map, None where the method cannot tell it.
    """
    mixing = mixing_of(unmixing)
    folder.write_array("mixing.npy", mixing)
    folder.write_array("unmixing.npy", pseudo_inverse(mixing))
    folder.write_array("maps.npy", np.ascontiguousarray(mixing.T))
    folder.produce("maps.csv", lambda draft: _write_csv(draft, mixing))
    shape = study.content.analysis.image_shape
    if shape is not None:
        images, title = mixing.T.reshape(-1, *shape), study.content.title
        if not (privacy.secure and privacy.epsilon < math.inf):
            title += " (NOT PRIVATE)"
        figure = maps_figure({"": images}, title, stability)
        folder.produce("maps.png", lambda draft: draw(figure, draft))
    folder.write_json("reliability.json", reliability_json(stability))
    folder.write_json("privacy.json", privacy_json(privacy))
    folder.write_json(
        "provenance.json",
        {
            "capedjica": __version__,
            "python": platform.python_version(),
            "libraries": {name: version(name) for name in _LIBRARIES},
            "study": {"hash": study.hash.hex(), **msgspec.to_builtins(study.content)},
            "contract": study.contract.hash.hex(),
            "n_iter": n_iter,
            "maps": SCALE,
            "started": state.started,
            "resumed": state.resumed,
            "files": {
                name: folder.hash_of(name) for name in result_names(study) if not name.endswith(".json")
            },
        },
    )


def reliability_json(stability: FloatArray | None) -> dict[str, Any]:
    """Return how stable each map is, and what that means."""
    if stability is None:
        statement = "This method cannot tell how stable its maps are."
        return {"statement": statement, "threshold": STABLE, "stability": None, "stable": None}
    return {
        "statement": RELIABILITY,
        "threshold": STABLE,
        "stability": np.round(stability, 4).tolist(),
        "stable": (stability >= STABLE).tolist(),
    }


def privacy_json(privacy: PrivacyStatement) -> dict[str, Any]:
    """Return a statement as plain values; what is infinite, or void because noise was seeded, is null."""
    charged, private = privacy.charged or {}, privacy.secure and privacy.epsilon < math.inf

    def cost(value: float) -> float | None:
        return value if private and math.isfinite(value) else None

    return {
        "statement": str(privacy),
        "private": private,
        "epsilon": cost(privacy.epsilon),
        "delta": privacy.delta,
        "mu": cost(privacy.mu),
        "spent_epsilon": cost(privacy.spent_epsilon),
        "mechanism": privacy.mechanism,
        "n_sites": privacy.n_sites,
        "n_colluding": privacy.n_colluding,
        "sites": {
            name: {
                "epsilon": cost(privacy.site_epsilon.get(name, math.inf)),
                "spent_mu_squared": cost(mu2),
                "spent_epsilon": cost(gaussian_epsilon(math.sqrt(mu2), privacy.delta)),
            }
            for name, mu2 in charged.items()
        },
        "releases": [
            {
                "label": release.label,
                "mu": {name: cost(mu) for name, mu in release.site_mu.items()},
                "noise": release.noise,
                "given_up": release.aborted,
            }
            for release in privacy.releases
        ],
    }


def _write_csv(path: Path, mixing: FloatArray) -> None:
    header = ",".join(f"map {number}" for number in range(1, mixing.shape[1] + 1))
    np.savetxt(path, mixing, delimiter=",", fmt="%.8g", header=header, comments="")
