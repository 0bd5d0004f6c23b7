"""What a run leaves: matrices for programs, pictures and tables for people, the cost, the origin."""

from __future__ import annotations

import gzip
import math
import platform
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np

from capedjica.algorithms.ica.maps import mixing_of, pseudo_inverse
from capedjica.algorithms.ica.reliability import STABLE
from capedjica.coordinator.run.run_folder import RunFolder, RunState
from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.statement import PrivacyStatement
from capedjica.privacy.wording import NOT_PRIVATE
from capedjica.report.brain import RegionsAt, find_peaks, read_region_names, write_peaks
from capedjica.report.figures import draw, maps_figure, slices_figure
from capedjica.study.public_files import public_files
from capedjica.study.study_file import Study
from capedjica.tools.arrays import FloatArray
from capedjica.tools.version import __version__

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

SCALE: Final = "largest absolute value 1, positive; in the order of the features at which they peak"
_LIBRARIES: Final = ("numpy", "scipy", "numba", "cryptography", "msgspec", "nibabel", "nilearn")
BUNDLE: Final = "results.zip"

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


@dataclass(frozen=True)
class SiteFacts:
    """What there is to say of sites besides what they spent.

    Attributes
    ----------
    left_out : dict
        Why sites were left out.
    carriers : dict
        What keeps the program with the network from each site's files.
    """

    left_out: Mapping[str, str]
    carriers: Mapping[str, str]

    def json(self) -> dict[str, Any]:
        """Return it for ``privacy.json``."""
        return {"left_out": dict(self.left_out), "carriers": dict(self.carriers)}


def result_names(study: Study) -> list[str]:
    """Return the files that a complete run has."""
    pictures = [] if study.content.analysis.image_shape is None else ["maps.png"]
    if study.content.features.kind != "columns":
        pictures = ["maps.nii.gz", "peaks.csv", "maps.png"]
    return [
        "unmixing.npy",
        "mixing.npy",
        "maps.npy",
        "maps.csv",
        *pictures,
        "reliability.json",
        "privacy.json",
        "provenance.json",
        BUNDLE,
    ]


def write_results(
    folder: RunFolder,
    study: Study,
    unmixing: FloatArray,
    n_iter: int,
    stability: FloatArray | None,
    privacy: PrivacyStatement,
    state: RunState,
    sites: SiteFacts,
) -> None:
    """Write the matrices, the maps for people, reliability, privacy, provenance, and a bundle of it all.

    ``stability`` is that of each map, None where the method cannot tell it.
    """
    mixing = mixing_of(unmixing)
    folder.write_array("mixing.npy", mixing)
    folder.write_array("unmixing.npy", pseudo_inverse(mixing))
    folder.write_array("maps.npy", np.ascontiguousarray(mixing.T))
    folder.produce("maps.csv", lambda draft: _write_csv(draft, mixing))
    title = study.content.title if privacy.private else f"{study.content.title} ({NOT_PRIVATE})"
    _write_pictures(folder, study, mixing.T, title, stability)
    folder.write_json("reliability.json", reliability_json(stability))
    folder.write_json("privacy.json", privacy_json(privacy) | sites.json())
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
                name: folder.hash_of(name)
                for name in result_names(study)
                if name != BUNDLE and not name.endswith(".json")
            },
        },
    )
    folder.produce(BUNDLE, lambda draft: _write_bundle(draft, folder, study))


def _write_pictures(
    folder: RunFolder, study: Study, maps: FloatArray, title: str, stability: FloatArray | None
) -> None:
    """Write the maps as images, where features have places."""
    shape, image = study.content.analysis.image_shape, study.features.image(maps)
    if shape is not None:
        figure = maps_figure({"": maps.reshape(-1, *shape)}, title, stability)
    elif image is not None:
        folder.write("maps.nii.gz", gzip.compress(image.to_bytes(), mtime=0))
        peaks = find_peaks(image, _regions(study))
        folder.produce("peaks.csv", lambda draft: write_peaks(draft, peaks))
        figure = slices_figure(image, title, stability)
    else:
        return
    folder.produce("maps.png", lambda draft: draw(figure, draft))


def _regions(study: Study) -> RegionsAt | None:
    """Return the regions of an atlas of labels, with their names if a table of them is beside the image."""
    name = study.content.features.atlas
    if name is None:
        return None
    import nibabel

    atlas = cast("Nifti1Image", nibabel.load(study.folder / name))
    names = read_region_names(study.folder / f"{name.removesuffix('.gz').removesuffix('.nii')}.tsv")
    return RegionsAt(atlas, names) if len(atlas.shape) == 3 else None


def _write_bundle(path: Path, folder: RunFolder, study: Study) -> None:
    """Write one file with all that is to be handed on: the results and the study, public files included."""
    public = [name for _, name, _ in public_files(study.content.features)]
    names = [*(name for name in result_names(study) if name != BUNDLE), "study.toml", *public]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            # Without a date, the same results make the same bundle.
            entry = zipfile.ZipInfo(name)
            archive.writestr(entry, (folder.path / name).read_bytes(), zipfile.ZIP_DEFLATED)


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
    """Return a statement as plain values; what is infinite, as all is where nobody is protected, is null."""
    whom = privacy.adversary

    def cost(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "statement": str(privacy),
        "private": privacy.private,
        "neighbour": privacy.neighbour,
        "units_per_subject": privacy.units_per_subject,
        "epsilon": cost(privacy.epsilon),
        "delta": privacy.delta,
        "mu": cost(privacy.mu),
        "subject_epsilon": cost(privacy.subject_epsilon),
        "subject_mu": cost(privacy.subject_mu),
        "spent_epsilon": cost(privacy.spent_epsilon),
        "against": whom.against,
        "not_against": whom.not_against,
        "curious_site_epsilon": privacy.curious_site_epsilon,
        "guarantee": privacy.guarantee.as_dict(),
        "not_covered": list(privacy.not_covered),
        "mechanism": privacy.mechanism,
        "n_sites": privacy.n_sites,
        "n_colluding": privacy.n_colluding,
        "sites": {
            name: {
                "epsilon": cost(privacy.site_epsilon.get(name, math.inf)),
                "spent_mu_squared": cost(mu2),
                "spent_epsilon": cost(gaussian_epsilon(math.sqrt(mu2), privacy.delta)),
            }
            for name, mu2 in (privacy.charged or {}).items()
        },
        "lost": list(privacy.lost),
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
