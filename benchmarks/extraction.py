"""A site of images: time against nilearn's masker alone, and peak memory.

``python -m benchmarks.extraction`` writes 64 people of 61 x 73 x 61 voxels and 150 volumes to disk (5.2 GB,
gone afterwards), and for regions of an atlas and for the voxels of a mask measures

- the time in which a site has everybody's series, against that of nilearn's masker called directly on the
  same files, in turns, so that both find the machine and the disk in the same state;
- the peak memory of a fresh process that looks at everybody, fills the cache and makes the first statistic.

``--quick`` takes few short images.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.ica.subject_level import SubjectSite
from capedjica.data.cache import SeriesCache
from capedjica.data.features import FeatureTable, open_features
from capedjica.data.layouts import find_people
from capedjica.data.participants import People

SHAPE: Final = (61, 73, 61)
FULL, QUICK = (64, 150), (3, 30)
COMPONENTS: Final = 20
BLOCK: Final = 10  # voxels along the side of a region
TABLES: Final = {
    "atlas": FeatureTable(kind="atlas", atlas="atlas.nii", detrend=True, standardize=True),
    "voxels": FeatureTable(kind="voxels", mask="mask.nii", detrend=True, standardize=True),
}
MOST_MEMORY: Final = 2e9
MOST_TIME: Final = 1.3


def write_site(folder: Path, n_people: int, n_volumes: int) -> None:
    """Write a mask, an atlas and the images of a site, one at a time."""
    mask = _brain_mask()
    _save(folder / "mask.nii", mask.astype(np.uint8))
    blocks = np.indices(SHAPE) // BLOCK
    atlas = (1 + blocks[0] + 10 * blocks[1] + 100 * blocks[2]) * mask
    _save(folder / "atlas.nii", atlas.astype(np.int16))
    baseline = (800 * mask + 100)[..., np.newaxis]
    (folder / "data").mkdir()
    for number in range(n_people):
        noise = np.random.default_rng(number).standard_normal((*SHAPE, n_volumes), dtype=np.float32)
        noise *= 25
        noise += baseline
        _save(folder / "data" / f"sub-{number:02d}.nii", noise.astype(np.int16))


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


def measure_time(folder: Path, kind: str) -> dict[str, float]:
    """Return the seconds that a site takes for everybody, and those of nilearn's masker, in turns."""
    warnings.simplefilter("ignore")
    masker = _masker(folder, kind)
    people = People(find_people("nifti", folder / "data").people, open_features(TABLES[kind], folder, None))
    paths = [str(person.recordings[0].path) for person in people.people]
    turns: dict[str, Callable[[int], Any]] = {
        "ours": lambda m: people[m],
        "nilearn": lambda m: masker.transform(paths[m]),
    }
    for extract in turns.values():  # what is loaded on first use is not counted
        extract(0)
    seconds = dict.fromkeys(turns, 0.0)
    for m in range(len(people)):
        for name in list(turns)[:: 1 if m % 2 else -1]:
            start = time.perf_counter()
            turns[name](m)
            seconds[name] += time.perf_counter() - start
    return seconds


def _masker(folder: Path, kind: str) -> Any:
    from nilearn.maskers import NiftiLabelsMasker, NiftiMasker

    options: dict[str, Any] = {"detrend": True, "standardize": "zscore_sample", "reports": False}
    if kind == "atlas":
        return NiftiLabelsMasker(str(folder / "atlas.nii"), **options).fit()
    return NiftiMasker(str(folder / "mask.nii"), **options).fit()


def measure_memory(folder: Path, kind: str) -> dict[str, float]:
    """Return the peak memory of this process after it looked at a site and made its first statistic."""
    features = open_features(TABLES[kind], folder, None)
    found = find_people("nifti", folder / "data")
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        people = People(found.people, features, SeriesCache(Path(kept) / "cache"))
        fatal = [problem for problem in people.check(COMPONENTS) if problem.fatal]
        assert not fatal
        rows = sum(len(batch) for batch in SubjectSite(people, COMPONENTS, features.basis)(0, b"", b""))
        assert rows == len(people)
    return {"peak": _peak_resident()}


def _peak_resident() -> int:
    """Bytes; not ru_maxrss, which a child takes over from its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def in_fresh_process(what: str, folder: Path, kind: str) -> dict[str, float]:
    """Return what a process of its own measured."""
    command = [sys.executable, "-m", "benchmarks.extraction", "--measure", what, kind, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(n_people: int, n_volumes: int) -> list[dict[str, float | str]]:
    """Measure both kinds of features; return one row for each."""
    size = n_people * n_volumes * int(np.prod(SHAPE)) * 2
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if shutil.disk_usage(folder).free < 2 * size + 5e9:
            raise SystemExit(f"{folder} has no room for {size / 1e9:.1f} GB of images; set TMPDIR")
        write_site(folder, n_people, n_volumes)
        return [_row(folder, kind) for kind in TABLES]


def _row(folder: Path, kind: str) -> dict[str, float | str]:
    seconds = in_fresh_process("time", folder, kind)
    peak = in_fresh_process("memory", folder, kind)["peak"]
    ratio = seconds["ours"] / seconds["nilearn"]
    return {"kind": kind, **seconds, "ratio": ratio, "peak": peak}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extraction", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few short images")
    parser.add_argument("--measure", nargs=3, metavar=("WHAT", "KIND", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, kind, folder = arguments.measure
        measure = {"time": measure_time, "memory": measure_memory}[what]
        json.dump(measure(Path(folder), kind), sys.stdout)
        return
    n_people, n_volumes = QUICK if arguments.quick else FULL
    print(f"{n_people} people, {' x '.join(map(str, SHAPE))} voxels, {n_volumes} volumes")
    for row in compare(n_people, n_volumes):
        print(
            f"{row['kind']}: {row['ours']:.1f} s against {row['nilearn']:.1f} s of nilearn's masker, "
            f"{row['ratio']:.2f} times as much (aim: below {MOST_TIME}); "
            f"peak memory {float(row['peak']) / 1e9:.2f} GB (aim: below {MOST_MEMORY / 1e9:.0f})"
        )


if __name__ == "__main__":
    main()
