r"""Synthetic 3-D fMRI: networks inside the MNI template brain, with drift, physiology, motion and noise.

A volume of a run is, in every voxel of the brain,

.. math:: y_t = g \, [\, 100\, b + A s_t + D d_t + P p_t - \nabla b' m_t + n_t \,],        (1)

with the sources s of :mod:`capedjica.data.simulated.synthetic` (so that a signal of 1 is one per cent of the
baseline b), and

- A, the maps: networks of one to three Gaussian blobs, many of them bilateral. Their centres are those of a
  k-means partition of the left half of the brain; a unilateral network may be in either half;
- d, slow drift: sinusoids with periods of two to eight minutes, with random smooth patterns D;
- p, two physiological time courses, one of the whole brain and one around the ventricles, which appear in the
  confounds as ``white_matter`` and ``csf``;
- m, the six parameters of head motion: a slow random walk, and jerks that last for one volume. A head
  displaced by m changes the image b(x - m) by :math:`-\nabla b' m`, mostly at the edges of the brain; for a
  rotation the displacement is the cross product with the position;
- n, white noise, and g, the gain of the scanner, which differs between sites, as do the length of runs and
  the repetition time.

Some participants have two runs. Confounds have the names used by fMRIPrep.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from scipy.ndimage import gaussian_filter, map_coordinates

from capedjica.data.simulated.synthetic import BATCH, SyntheticModel
from capedjica.errors import InputError
from capedjica.privacy import validate
from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

Float32Array = NDArray[np.float32]
Confounds = dict[str, FloatArray]

SPACE: Final = "MNI152NLin2009cAsym"
# Usual bounding box of images in MNI space, in mm: 61 x 73 x 61 voxels of 3 mm, 91 x 109 x 91 of 2 mm.
_CORNER: Final = np.array([-90.0, -126.0, -72.0])
_EXTENT: Final = (180.0, 216.0, 180.0)
VOXEL_SIZES: Final = (2.0, 12.0)
REPETITION_TIMES: Final = (2.0, 1.5, 2.5, 3.0, 1.0)
BASELINE: Final = 100.0  # a signal of 1 is one per cent of it
TWO_RUNS: Final = 0.2  # fraction of participants with two runs
_EDGE: Final = 6.0  # mm over which the baseline falls at the surface of the brain
_WIDTHS: Final = (11.0, 15.0)  # mm, standard deviations of the blobs
_LATERAL: Final = 20.0  # mm from the midline, beyond which a blob has a counterpart on the other side
_JERKS: Final = 0.02  # fraction of volumes
_RADIUS: Final = 50.0  # mm, radius of the head in framewise displacement (Power et al. 2012)
_CUTOFF: Final = 128.0  # seconds, cut-off period of the cosines among the confounds
_OUTLIER_FD, _OUTLIER_DVARS = 0.5, 1.5
MOTION: Final = ("trans_x", "trans_y", "trans_z", "rot_x", "rot_y", "rot_z")


@dataclass(frozen=True, eq=False, repr=False)
class Brain:
    """The voxels of a brain on a grid.

    Attributes
    ----------
    mask : ndarray of bool, shape (nx, ny, nz)
        Voxels of the brain; features are these voxels in row-major order, as in nilearn's maskers.
    affine : ndarray, shape (4, 4)
        From voxels to mm in MNI space.
    """

    mask: NDArray[np.bool_]
    affine: FloatArray

    @cached_property
    def places(self) -> FloatArray:
        """Centres of the voxels (D, 3), in mm."""
        return np.argwhere(self.mask) @ self.affine[:3, :3].T + self.affine[:3, 3]

    @cached_property
    def baseline(self) -> FloatArray:
        """Mean image (D,): 1 deep inside the brain, decreasing towards the surface."""
        return self._smooth[self.mask]

    @cached_property
    def motion_patterns(self) -> FloatArray:
        """Change of the image with each of the six motion parameters, per mm or radian, (6, D)."""
        slopes = np.asarray(np.gradient(self._smooth, self.voxel_size))[:, self.mask].T
        return -np.hstack([slopes, np.cross(self.places, slopes)]).T

    @property
    def voxel_size(self) -> float:
        """Side of a voxel in mm."""
        return float(self.affine[0, 0])

    @property
    def n_voxels(self) -> int:
        """Number of voxels D."""
        return int(np.count_nonzero(self.mask))

    @cached_property
    def _smooth(self) -> FloatArray:
        return gaussian_filter(self.mask.astype(np.float64), _EDGE / self.voxel_size)  # type: ignore[no-any-return]

    def image(self, features: NDArray[np.generic], repetition_time: float | None = None) -> Nifti1Image:
        """Return an image of features (D,), or a series of them (n, D), zero outside the brain."""
        from nibabel.nifti1 import Nifti1Image

        volumes = np.zeros((*self.mask.shape, *features.shape[:-1]), dtype=features.dtype)
        volumes[self.mask] = features.T
        image: Any = Nifti1Image(volumes, self.affine)  # type: ignore[no-untyped-call]
        for set_form in (image.header.set_sform, image.header.set_qform):
            set_form(self.affine, code="mni")
        image.header.set_xyzt_units("mm", "sec")
        if repetition_time is not None:
            image.header.set_zooms((*image.header.get_zooms()[:3], repetition_time))
        return cast("Nifti1Image", image)

    def mask_image(self) -> Nifti1Image:
        """Return the mask as an image."""
        return self.image(np.ones(self.n_voxels, dtype=np.uint8))


@cache
def mni_brain(voxel_size: float) -> Brain:
    """Return the MNI template brain distributed with nilearn, in the usual box of this resolution."""
    smallest, largest = VOXEL_SIZES
    if not smallest <= voxel_size <= largest:
        raise InputError(f"voxel_size must be between {smallest:g} and {largest:g} mm, got {voxel_size:g}")
    from nilearn.datasets import load_mni152_brain_mask

    template = load_mni152_brain_mask(resolution=2)
    shape = [math.floor(extent / voxel_size) + 1 for extent in _EXTENT]
    affine = np.diag([voxel_size] * 3 + [1.0])
    affine[:3, 3] = _CORNER
    from_voxel = np.linalg.inv(template.affine) @ affine
    places = np.tensordot(from_voxel[:3, :3], np.indices(shape), 1) + from_voxel[:3, 3, None, None, None]
    inside = map_coordinates(np.asarray(template.dataobj, dtype=np.float32), places, order=1)
    return Brain(inside > 0.5, affine)


@dataclass(frozen=True)
class Run:
    """One run of the simulated study.

    Attributes
    ----------
    site, person : int
        Indices of the site and the participant, from 0; participants are numbered across all sites.
    number : int or None
        Number of the run, from 1; None if the participant has only one.
    is_last : bool
        Whether it is the participant's last run.
    n_volumes : int
        Number of volumes T.
    repetition_time : float
        Repetition time in seconds.
    gain : float
        Gain of the scanner.
    """

    site: int
    person: int
    number: int | None
    is_last: bool
    n_volumes: int
    repetition_time: float
    gain: float


@dataclass(frozen=True, eq=False, repr=False)
class BrainModel:
    """Model of a simulated study, which generates the same runs every time.

    Attributes
    ----------
    brain : Brain
        The voxel grid.
    signal : SyntheticModel
        Maps, sources and noise, with one "subject" for each run.
    runs : tuple of Run
        The runs, in the order of the participants.
    seeds : list of numpy.random.SeedSequence
        Seeds for the artefacts of each run.
    """

    brain: Brain
    signal: SyntheticModel
    runs: tuple[Run, ...]
    seeds: list[np.random.SeedSequence]

    @classmethod
    def draw(
        cls,
        site_sizes: Sequence[int],
        n_components: int,
        n_volumes: tuple[int, int],
        voxel_size: float,
        seed: int = 0,
        *,
        noise: float = 1.0,
    ) -> BrainModel:
        """Draw maps and runs.

        Parameters
        ----------
        site_sizes : sequence of int
            Number of participants of every site.
        n_components : int
            Number of networks R.
        n_volumes : pair of int
            Smallest and largest length of the runs of a site.
        voxel_size : float
            Side of a voxel in mm.
        seed : int
            Seed of all random numbers.
        noise : float
            Standard deviation of the white noise, relative to the root mean square of the signal.
        """
        rng = np.random.default_rng(validate.count("seed", seed, minimum=0))
        brain = mni_brain(float(voxel_size))
        maps = _network_maps(validate.count("n_components", n_components), brain, rng)
        runs = tuple(_runs(site_sizes, n_volumes, rng))
        root = np.random.SeedSequence(rng.integers(2**32, size=4).tolist())
        if math.isinf(validate.nonnegative("noise", noise)):
            raise InputError("noise must be finite, got inf")
        scale = noise * math.sqrt(np.sum(maps**2) / brain.n_voxels)
        lengths = np.array([run.n_volumes for run in runs])
        signal = SyntheticModel(maps, lengths, scale, root.spawn(math.ceil(len(runs) / BATCH)))
        return cls(brain, signal, runs, root.spawn(len(runs)))

    def recordings(self, *, disturbed: bool = True) -> Iterator[tuple[Run, Float32Array, Confounds]]:
        """Generate the volumes (T, D) and the confounds of one run after another.

        Without ``disturbed``, runs have drift, noise and gain, but neither motion nor physiology, as if these
        had been removed before.
        """
        for run, volumes, seed in zip(self.runs, self.signal.subjects(), self.seeds, strict=True):
            rng = np.random.default_rng(seed)
            volumes += _drift(run, self.brain, rng)
            motion, physiology = _motion(run, rng), _physiology(run, rng)
            if disturbed:
                volumes += _product(motion, BASELINE * self.brain.motion_patterns)
                volumes += _product(physiology, _physiology_patterns(self.brain))
            volumes += (BASELINE * self.brain.baseline).astype(np.float32)
            confounds = _confounds(run, volumes, motion, physiology)
            volumes *= np.float32(run.gain)
            yield run, volumes, confounds


def _runs(site_sizes: Sequence[int], n_volumes: tuple[int, int], rng: np.random.Generator) -> Iterator[Run]:
    people = itertools.count()
    for site, size in enumerate(site_sizes):
        length = int(rng.integers(*n_volumes, endpoint=True))
        time = REPETITION_TIMES[site % len(REPETITION_TIMES)]
        gain = float(rng.uniform(2, 20))
        for person in itertools.islice(people, size):
            numbers = (1, 2) if rng.random() < TWO_RUNS else (None,)
            for number in numbers:
                yield Run(site, person, number, number == numbers[-1], length, time, gain)


# Maps -------------------------------------------------------------------------------------------------------


def _network_maps(n_components: int, brain: Brain, rng: np.random.Generator) -> FloatArray:
    """Return the maps (R, D), with peaks between 0.7 and 1.3.

    Every network has its own centre; every second one has a further blob at another centre.
    """
    centres = _spread(brain, n_components + n_components // 2, rng)
    maps = np.zeros((n_components, brain.n_voxels))
    for r, centre in enumerate(centres[:n_components]):
        bilateral = abs(centre[0]) > _LATERAL and rng.random() < 0.5
        side = 1 if bilateral else rng.choice([-1, 1])
        maps[r] = _blob(brain, centre * (side, 1, 1), rng)
        if bilateral:
            maps[r] += _blob(brain, centre * (-1, 1, 1), rng)
    for r, centre in zip(rng.permutation(n_components), centres[n_components:], strict=False):
        maps[r] += rng.uniform(0.5, 0.8) * _blob(brain, centre * (rng.choice([-1, 1]), 1, 1), rng)
    peaks = rng.uniform(0.7, 1.3, size=(n_components, 1))
    return np.asarray(maps * peaks / maps.max(axis=1, keepdims=True))


def _spread(brain: Brain, n_centres: int, rng: np.random.Generator) -> FloatArray:
    """Return positions (n, 3): the centres of n parts of the left half of the brain, in random order."""
    inside = brain.places[(brain.baseline > 0.8) & (brain.places[:, 0] <= 0)]
    if n_centres > len(inside) / 4:
        raise InputError(
            f"n_components is too large for voxel_size {brain.voxel_size:g} mm; reduce one of them"
        )
    centres, _ = kmeans2(inside, n_centres, minit="++", rng=rng)
    return np.asarray(centres[rng.permutation(n_centres)])


def _blob(brain: Brain, centre: FloatArray, rng: np.random.Generator) -> FloatArray:
    away = (brain.places - centre) / rng.uniform(*_WIDTHS, size=3)
    return np.asarray(np.exp(-0.5 * np.sum(away**2, axis=1)))


# Artefacts --------------------------------------------------------------------------------------------------


def _product(courses: FloatArray, patterns: FloatArray) -> Float32Array:
    """Return the product of time courses (T, n) and patterns (n, D) in single precision."""
    return courses.astype(np.float32) @ patterns.astype(np.float32)


def _drift(run: Run, brain: Brain, rng: np.random.Generator) -> Float32Array:
    """Return slow sinusoids (T, D), each with a pattern that is linear in position."""
    seconds = run.repetition_time * np.arange(run.n_volumes)[:, np.newaxis]
    periods, phases = rng.uniform(120, 480, size=3), rng.uniform(0, 2 * np.pi, size=3)
    courses = np.sin(2 * np.pi * seconds / periods + phases)
    directions = rng.standard_normal((3, 4)) * (0.6, 0.4 / 70, 0.4 / 70, 0.4 / 70)
    patterns = directions @ np.vstack([np.ones(brain.n_voxels), brain.places.T])
    return _product(courses, patterns)


def _motion(run: Run, rng: np.random.Generator) -> FloatArray:
    """Return the motion parameters (T, 6), in mm and radians: a slow random walk, and jerks."""
    unit = np.array([1.0, 1.0, 1.0, 1 / _RADIUS, 1 / _RADIUS, 1 / _RADIUS])
    steps = 0.02 * rng.standard_normal((run.n_volumes, 6))
    jerks = (rng.random((run.n_volumes, 1)) < _JERKS) * rng.normal(0, 0.5, size=(run.n_volumes, 6))
    return np.asarray((np.cumsum(steps, axis=0) - steps[0] + jerks) * unit)


def _physiology(run: Run, rng: np.random.Generator) -> FloatArray:
    """Return two Gaussian time courses (T, 2) with autocorrelation."""
    fresh = rng.standard_normal((run.n_volumes, 2))
    previous = np.vstack([np.zeros((1, 2)), fresh[:-1]])
    return np.asarray(fresh + 0.5 * previous)


def _physiology_patterns(brain: Brain) -> FloatArray:
    """Return the spatial patterns of the two time courses, (2, D): everywhere, and around the ventricles."""
    away = np.linalg.norm(brain.places - (0.0, -20.0, 15.0), axis=1) / 25
    return np.vstack([0.3 * brain.baseline, 0.6 * np.exp(-0.5 * away**2)])


# Confounds --------------------------------------------------------------------------------------------------


def _confounds(run: Run, volumes: Float32Array, motion: FloatArray, physiology: FloatArray) -> Confounds:
    """Return fMRIPrep's columns; NaN where the first value is undefined."""
    signals = dict(zip(("white_matter", "csf"), BASELINE + physiology.T, strict=True))
    signals["global_signal"] = volumes.mean(axis=1, dtype=np.float64)
    columns = {
        name: column
        for base, values in {**signals, **dict(zip(MOTION, motion.T, strict=True))}.items()
        for name, column in _expanded(base, values).items()
    }
    moved = np.abs(np.diff(motion * ([1] * 3 + [_RADIUS] * 3), axis=0)).sum(axis=1)
    steps = np.diff(volumes, axis=0)
    dvars = _after_first(np.sqrt(np.mean(np.square(steps, out=steps), axis=1, dtype=np.float64)))
    columns["framewise_displacement"] = _after_first(moved)
    columns["dvars"], columns["std_dvars"] = dvars, dvars / np.nanmedian(dvars)
    return columns | _cosines(run) | _outliers(columns)


def _expanded(name: str, values: FloatArray) -> Confounds:
    """Return a column, its derivative, and the squares of both."""
    derivative = _after_first(np.diff(values))
    return {
        name: values,
        f"{name}_derivative1": derivative,
        f"{name}_power2": values**2,
        f"{name}_derivative1_power2": derivative**2,
    }


def _after_first(values: FloatArray) -> FloatArray:
    """Return a column of values that are undefined for the first volume."""
    return np.concatenate([[np.nan], values])


def _cosines(run: Run) -> Confounds:
    """Return the cosines with periods above the cut-off."""
    count = math.floor(2 * run.n_volumes * run.repetition_time / _CUTOFF)
    half = np.arange(run.n_volumes) + 0.5
    scale = math.sqrt(2 / run.n_volumes)
    return {
        f"cosine{k - 1:02}": scale * np.cos(np.pi * k * half / run.n_volumes) for k in range(1, count + 1)
    }


def _outliers(columns: Confounds) -> Confounds:
    """Return one column for each volume with excessive motion or signal change."""
    moved = columns["framewise_displacement"] > _OUTLIER_FD
    bad = np.flatnonzero(moved | (columns["std_dvars"] > _OUTLIER_DVARS))
    rows = np.eye(len(moved))[bad]
    return {f"motion_outlier{number:02}": row for number, row in enumerate(rows)}
