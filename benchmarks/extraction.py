"""Series from images: a site against nilearn's maskers with as many processes, time and peak memory.

Memory of a whole process is measured in fresh processes: ``python -m benchmarks.extraction WHO KIND FOLDER``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from joblib import Parallel, delayed  # type: ignore[import-untyped]
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.framework import Row, Section, amount_row, duration_row, interleaved, timed
from capedjica.algorithms.ica.subject_level import SubjectSite
from capedjica.algorithms.parallel import InParallel
from capedjica.data.cache import SeriesCache
from capedjica.data.features import FeatureTable, open_features
from capedjica.data.layouts import find_people
from capedjica.data.participants import People

SHAPE: Final = (61, 73, 61)
N_PEOPLE, N_VOLUMES = 8, 150
COMPONENTS: Final = 20
BLOCK: Final = 10  # voxels along the side of a region
TABLES: Final = {
    "regions": FeatureTable(kind="atlas", atlas="atlas.nii", detrend=True, standardize=True),
    "voxels": FeatureTable(kind="voxels", mask="mask.nii", detrend=True, standardize=True),
}
ENDINGS: Final = {"nii": "uncompressed", "nii.gz": "gzip"}
PEERS: Final = {"regions": "NiftiLabelsMasker of nilearn", "voxels": "NiftiMasker of nilearn"}
REPETITIONS: Final = 3
FASTER: Final = 4.0
LESS_MEMORY: Final = 0.5
MOST_MEMORY: Final = 2e9
"""Bytes that a site of any number of images of this size may take."""


def run(console: Console) -> Section:
    """Measure time, then memory."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        size = 2 * N_PEOPLE * N_VOLUMES * int(np.prod(SHAPE)) * 2
        if shutil.disk_usage(folder).free < 2 * size:
            raise SystemExit(f"{folder} has no room for {size / 1e9:.1f} GB of images; set TMPDIR")
        for ending in ENDINGS:
            console.print(f"  writing images, {ENDINGS[ending]} ...")
            write_site(folder, N_PEOPLE, N_VOLUMES, ending)
        rows = [_time_row(folder, kind, ending, console) for kind in TABLES for ending in ENDINGS]
        rows += [_memory_row(folder, kind) for kind in TABLES]
    cores = os.cpu_count()
    return Section(
        "extraction",
        f"Series of {N_PEOPLE} images of {' x '.join(map(str, SHAPE))} voxels and {N_VOLUMES} volumes",
        rows,
        (
            "16-bit integers; detrended and standardised; files were read before, and the system keeps them.",
            f"Ours: {cores} threads. Peer: {cores} processes, started before, which pass nothing on.",
            "Memory: largest resident memory of each process, added; uncompressed images.",
        ),
    )


def _time_row(folder: Path, kind: str, ending: str, console: Console) -> Row:
    console.print(f"  {kind}, {ENDINGS[ending]} ...")
    ours, peer = (partial(read, folder, kind, ending) for read in (by_site, by_nilearn))
    for work in (ours, peer):  # what is loaded, compiled or started on first use is not counted
        work()
    pair = interleaved(timed(ours), timed(peer), REPETITIONS)
    return duration_row(f"{kind}, {ENDINGS[ending]}", *pair, PEERS[kind], FASTER)


def _memory_row(folder: Path, kind: str) -> Row:
    ours, peer = (in_fresh_process(who, kind, folder) / 1e6 for who in ("ours", "nilearn"))
    return amount_row(f"{kind}: peak memory", ours, peer, PEERS[kind], "MB", LESS_MEMORY)


def by_site(folder: Path, kind: str, ending: str = "nii") -> None:
    """Read everybody's series as a site does, a few at a time."""
    people = _people(folder, kind, ending)
    for series in InParallel(people.__getitem__, range(len(people))):
        assert len(series)


def _people(folder: Path, kind: str, ending: str, cache: SeriesCache | None = None) -> People:
    found = find_people("nifti", folder / ending)
    return People(found.people, open_features(TABLES[kind], folder, None), cache)


def by_nilearn(folder: Path, kind: str, ending: str = "nii") -> None:
    """Read everybody's series by nilearn's masker, in as many processes as cores."""
    masker = _masker(folder, kind)
    paths = sorted(map(str, (folder / ending).iterdir()))
    lengths = Parallel(n_jobs=-1)(delayed(_length)(masker, path) for path in paths)
    assert all(lengths)


def _length(masker: Any, path: str) -> int:
    warnings.simplefilter("ignore")
    return len(masker.transform(path))


def _masker(folder: Path, kind: str) -> Any:
    from nilearn.maskers import NiftiLabelsMasker, NiftiMasker

    options: dict[str, Any] = {"detrend": True, "standardize": "zscore_sample", "reports": False}
    if kind == "regions":
        return NiftiLabelsMasker(str(folder / "atlas.nii"), **options).fit()
    return NiftiMasker(str(folder / "mask.nii"), **options).fit()


def a_whole_site(folder: Path, kind: str) -> None:
    """Check everybody, fill the cache and make the first statistic."""
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        people = _people(folder, kind, "nii", SeriesCache(Path(kept) / "cache"))
        assert not [problem for problem in people.check(COMPONENTS) if problem.fatal]
        site = SubjectSite(people, COMPONENTS, people.features.basis)
        assert sum(len(batch) for batch in site(0, b"", b"")) == len(people)


MEASURED: Final[dict[str, Callable[[Path, str], None]]] = {
    "ours": by_site,
    "nilearn": by_nilearn,
    "site": a_whole_site,
}


def in_fresh_process(who: str, kind: str, folder: Path) -> int:
    """Return the peak memory in bytes of a new process, and of those it starts."""
    command = [sys.executable, "-m", "benchmarks.extraction", who, kind, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(json.loads(done.stdout))


def _peak_resident(process: str) -> int:
    """Bytes of a process and its children; not ru_maxrss, which a child takes over from its parent."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return 1024 * own + sum(map(_peak_resident, children))


def write_site(folder: Path, n_people: int, n_volumes: int, ending: str = "nii") -> None:
    """Write a mask, an atlas and the images of a site, one at a time."""
    mask = _brain_mask()
    _save(folder / "mask.nii", mask.astype(np.uint8))
    blocks = np.indices(SHAPE) // BLOCK
    atlas = (1 + blocks[0] + 10 * blocks[1] + 100 * blocks[2]) * mask
    _save(folder / "atlas.nii", atlas.astype(np.int16))
    baseline = (800 * mask + 100)[..., np.newaxis]
    (folder / ending).mkdir()
    for number in range(n_people):
        noise = np.random.default_rng(number).standard_normal((*SHAPE, n_volumes), dtype=np.float32)
        noise *= 25
        noise += baseline
        _save(folder / ending / f"sub-{number:02d}.{ending}", noise.astype(np.int16))


def _affine() -> NDArray[np.float64]:
    affine = np.diag([3.0, 3.0, 3.0, 1.0])
    affine[:3, 3] = (-90, -126, -72)
    return affine


def _brain_mask() -> NDArray[np.bool_]:
    from nilearn.datasets import load_mni152_brain_mask
    from nilearn.image import resample_img

    options = {"target_affine": _affine(), "target_shape": SHAPE, "interpolation": "nearest"}
    inside: NDArray[np.bool_] = np.asarray(resample_img(load_mni152_brain_mask(), **options).dataobj) != 0
    return inside


def _save(path: Path, values: NDArray[Any]) -> None:
    import nibabel
    from nibabel.nifti1 import Nifti1Image

    nibabel.save(Nifti1Image(values, _affine()), path)  # type: ignore[no-untyped-call]


def main() -> None:
    """Do what the arguments say, and print the peak memory."""
    who, kind, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    MEASURED[who](Path(folder), kind)
    json.dump(_peak_resident(str(os.getpid())), sys.stdout)


if __name__ == "__main__":
    main()
