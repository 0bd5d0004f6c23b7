"""Whole runs: joint ICA from raw scans against scikit-learn and nilearn on the same data, in one process."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.framework import Measure, Row, Section, amount_row, duration_row, interleaved, timed
from capedjica import CapeDJICA
from capedjica.data import make_synthetic
from capedjica.data.simulated.brain import BrainModel
from capedjica.data.simulated.brain_files import write_volumes
from capedjica.mechanisms.contract import MechanismName
from capedjica.metrics import normalized_gain_index
from capedjica.study.analyses.ica import MethodName

COMPONENTS: Final = 20
SITES: Final = 4
ARRAYS, VOLUMES, IMAGE_SIDE = 256, 250, 30
SCANS, SCAN_VOLUMES, VOXEL = 24, 150, 4.0
EPSILON: Final = 10.0
REPETITIONS: Final = 3
FASTER: Final = 3.0
WITH_PRIVACY: Final = 1.3
PCA_ICA: Final = "PCA and FastICA of scikit-learn"
CANICA: Final = "CanICA of nilearn"

# CanICA is spatial ICA: so is what is compared with it.
METHODS: Final[Mapping[str, MethodName]] = {PCA_ICA: "subject", CANICA: "spatial"}

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Study:
    """Scans with known maps: what is fitted, the true mixing matrix, and options of the estimator."""

    name: str
    sites: Mapping[str, list[Any]]
    mixing: Array
    options: Mapping[str, Any]

    def ours(self, mechanism: MechanismName, method: MethodName = "subject") -> Array:
        """Return the unmixing matrix of this package."""
        epsilon = None if mechanism == "none" else EPSILON
        estimator = CapeDJICA(
            COMPONENTS, epsilon, mechanism=mechanism, method=method, n_jobs=-1, **self.options
        )
        return np.asarray(estimator.fit(self.sites).unmixing_)

    def gain(self, unmixing: Array) -> float:
        """Return the gain index of a result."""
        return normalized_gain_index(unmixing @ self.mixing)

    @property
    def scans(self) -> list[Any]:
        """All scans."""
        return [scan for site in self.sites.values() for scan in site]


def run(console: Console) -> Section:
    """Measure arrays, then images."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        images = simulated_images(Path(folder))
        peers = {PCA_ICA: lambda: pca_fastica(read_images(images)), CANICA: lambda: canica(images)}
        rows = [*_rows(images, peers, console)]
        arrays = simulated_arrays()
        rows += _rows(arrays, {PCA_ICA: lambda: pca_fastica(centred(arrays.scans))}, console)
    return Section(
        "whole",
        f"Whole runs: {COMPONENTS} components from raw scans at {SITES} sites, without privacy and with",
        rows,
        (
            f"Arrays: {ARRAYS} scans of {VOLUMES} time points and {IMAGE_SIDE**2} pixels.",
            f"Images: {SCANS} scans of {SCAN_VOLUMES} volumes, {VOXEL:g} mm, files of 16-bit integers.",
            "Peers read the same files by nilearn's masker with as many processes as cores.",
            f"Private: cape at epsilon {EPSILON:g}, all sites and messages in one process.",
            "Compared with CanICA: spatial ICA; with the others: the default method.",
            "Gain index: 0 is perfect; less is better.",
        ),
    )


def _rows(study: Study, peers: Mapping[str, Callable[[], Array]], console: Console) -> list[Row]:
    """Compare the time and the gain index with every peer, then the private run with the other."""
    rows = []
    for name, peer in peers.items():
        console.print(f"  {study.name}: {name} ...")
        own, gain = study.gain(study.ours("none", METHODS[name])), study.gain(peer())
        pair = interleaved(_fit(study, "none", METHODS[name]), timed(peer), REPETITIONS)
        rows.append(duration_row(f"{study.name}: time", *pair, name, FASTER))
        rows.append(amount_row(f"{study.name}: gain index", own, gain, name, "", 1.0))
    study.ours("cape")
    pair = interleaved(_fit(study, "cape"), _fit(study, "none"), REPETITIONS)
    return [*rows, amount_row(f"{study.name}: private", *pair, "not private", "s", WITH_PRIVACY)]


def _fit(study: Study, mechanism: MechanismName, method: MethodName = "subject") -> Measure:
    return timed(lambda: study.ours(mechanism, method))


def simulated_arrays() -> Study:
    """Simulate arrays of pixels."""
    made = make_synthetic(SITES, ARRAYS, COMPONENTS, VOLUMES, IMAGE_SIDE, random_state=0)
    sites = {f"site-{number}": site for number, site in enumerate(made.sites)}
    return Study("arrays", sites, made.mixing, {"image_shape": made.image_shape})


def simulated_images(folder: Path) -> Study:
    """Simulate brain scans with known networks, and write them as uncompressed files."""
    model = BrainModel.draw([SCANS // SITES] * SITES, COMPONENTS, (SCAN_VOLUMES, SCAN_VOLUMES), VOXEL)
    mask = folder / "mask.nii"
    model.brain.mask_image().to_filename(mask)
    sites: dict[str, list[Any]] = {f"site-{number}": [] for number in range(SITES)}
    for number, (scan, volumes, _) in enumerate(model.recordings(disturbed=False)):
        path = folder / f"scan-{number:03d}.nii"
        write_volumes(path, model.brain, scan, volumes)
        sites[f"site-{number % SITES}"].append(str(path))
    return Study("images", sites, model.signal.mixing, {"mask_img": str(mask), "scan_length": SCAN_VOLUMES})


def read_images(study: Study) -> Array:
    """Read all scans by nilearn's masker, centred, one after the other in one array."""
    from nilearn.maskers import MultiNiftiMasker

    masker = MultiNiftiMasker(study.options["mask_img"], detrend=True, n_jobs=-1, reports=False)
    return np.concatenate(masker.fit().transform(study.scans))


def centred(scans: list[Array]) -> Array:
    """Return scans centred over time, in one array."""
    return np.concatenate([scan - scan.mean(axis=0) for scan in scans])


def pca_fastica(data: Array) -> Array:
    """Return the unmixing matrix of scikit-learn's PCA and FastICA, with their defaults."""
    from sklearn.decomposition import PCA, FastICA

    pca = PCA(COMPONENTS, random_state=0)
    reduced = pca.fit_transform(data)
    ica = FastICA(random_state=0, max_iter=400).fit(reduced)
    return np.asarray(ica.components_ @ pca.components_)


def canica(study: Study) -> Array:
    """Return the pseudo-inverse of the maps of nilearn's CanICA, without its threshold."""
    from nilearn.decomposition import CanICA

    estimator = CanICA(
        n_components=COMPONENTS,
        mask=study.options["mask_img"],
        smoothing_fwhm=None,
        threshold=None,
        random_state=0,
        n_jobs=-1,
    )
    return np.asarray(np.linalg.pinv(estimator.fit(study.scans).components_.T))
