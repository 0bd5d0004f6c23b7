"""Extraction of features from 4-D images, equal to nilearn's maskers: atlas regions or mask voxels.

Images are read in one pass (:mod:`capedjica.data.extraction`), several at a time. What such a pass does not
cover is left to nilearn's maskers, one image at a time: recordings that must be interpolated, unusual types
of numbers or compression, and damaged files, so that there is one description of damage. Series from either
way are equal to single precision.

A masker is fitted on public images alone, the atlas or the mask of the study, and never on a participant's
scan: a mask computed from participants' scans is a statistic across participants, which would have to be
released and charged.

**Grids.** The regions of an atlas are resampled to the grid of each recording, as nilearn does by default:
recorded values are not interpolated, and a region means the same everywhere. A region that contains no voxel
of a recording becomes a column of zeros instead of a missing column. The voxels of a mask are positions, so
in that case the recording is resampled to the grid of the mask.

**Volumes.** Only the first `LONGEST_SCAN` volumes are read. Confound strategies that censor volumes ("scrub",
and always the non-steady-state volumes at the beginning) remove them: they are interpolated for filtering,
then excluded, and the remaining volumes are concatenated. A voxel that was never recorded (NaN throughout, as
some programs write outside the brain) counts as zero. A voxel that is NaN only in some volumes makes the
recording unusable.
"""

from __future__ import annotations

import json
import math
import os
import threading
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.ica.basis import low_pass_within
from capedjica.algorithms.ica.scan_length import LONGEST_SCAN
from capedjica.data.extraction.cleaning import Cleaning
from capedjica.data.extraction.reduction import (
    Reduction,
    Smoother,
    VoxelReduction,
    label_reduction,
    map_reduction,
)
from capedjica.data.extraction.volumes import NotStreamedError, stored_volumes
from capedjica.data.layouts import entity_of
from capedjica.data.scans import Problem, Recording
from capedjica.tools.arrays import FloatArray, Scan

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

    from capedjica.data.features import FeatureTable

# Fraction of the public voxels that must be within the field of view; otherwise the space may be different.
LEAST_COVERAGE: Final = 0.5
_UNIT_SECONDS: Final = {"sec": 1.0, "msec": 1e-3, "usec": 1e-6, "unknown": 1.0}
# Plausible repetition times in seconds; a value outside this range has a different unit.
_SHORTEST, _LONGEST = 0.05, 30.0
_FEW_PLACES: Final = 5000
# Grids for which the features are kept.
_MOST_GRIDS: Final = 4
# Largest difference of affines that nilearn's extraction of regions accepts.
_EQUAL_AFFINES: Final = 1000 * float(np.finfo(np.float32).eps)
_LOCK: Final = threading.Lock()
# Masker options for maps.
_PLAIN: Final = {"standardize": None, "reports": False}
# Placeholder path of an image that is not in a file.
_MEMORY: Final = Path("image in memory")


class UnusableError(Exception):
    """Raised when a recording cannot be used; it never leaves the site."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("unusable recording")
        self.problems = list(problems)


class ImageFeatures(ABC):
    """Features of 4-D images.

    Parameters
    ----------
    table : FeatureTable
        Smoothing, cleaning and standardisation of each recording.
    key : bytes
        Hash of the table and of the public images.
    """

    basis: FloatArray | None = None
    # Whether the borders of regions are only approximate.
    approximate = False

    def __init__(self, table: FeatureTable, key: bytes) -> None:
        self.key = key
        self._table = table
        self._reductions: dict[tuple[Any, ...], Reduction] = {}

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of features D."""

    @property
    @abstractmethod
    def _support(self) -> Nifti1Image:
        """The public voxels, as a 3-D image that is zero elsewhere."""

    @cached_property
    def _places(self) -> FloatArray:
        """Positions in mm of a regular sample of the public voxels."""
        voxels = np.argwhere(np.asanyarray(self._support.dataobj))
        few = voxels[:: math.ceil(len(voxels) / _FEW_PLACES)]
        affine: FloatArray = self._support.affine
        return few @ affine[:3, :3].T + affine[:3, 3]

    @property
    @abstractmethod
    def _masker(self) -> Any:
        """A nilearn masker fitted on public images."""

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return the values of a 4-D image of maps in the features, (R, D); each map is treated as a volume.

        Parameters
        ----------
        image : Nifti1Image
            The maps, with finite values.
        nearest : bool
            When maps are resampled to the grid of a mask, use the nearest value for each voxel, as is
            appropriate for binary maps. Otherwise values are interpolated linearly.
        """
        with _one_at_a_time():
            return self._of_maps(image, nearest).astype(np.float64)

    @abstractmethod
    def _of_maps(self, image: Nifti1Image, nearest: bool) -> FloatArray:
        """Return the maps without smoothing or cleaning, because a map has no time dimension."""

    @abstractmethod
    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image."""

    def _columns(self, extracted: FloatArray, masker: Any) -> FloatArray:
        """Return the output of a masker with one column for each feature."""
        return extracted

    def series(self, recording: Recording) -> Scan:
        """Return (time, features); any exception means that the recording cannot be used."""
        image = _open(recording.path)
        found = list(self._header_problems(recording, image))
        if found:
            raise UnusableError(*found)
        confounds, kept = self._confounds(recording, image.shape[3])
        # Confounds of the volumes that are read, and the volumes that are kept.
        confounds = None if confounds is None else confounds.iloc[:LONGEST_SCAN].to_numpy()
        kept = None if kept is None else kept[kept < LONGEST_SCAN]
        cleaning = self._cleaning(self._repetition_time(recording, image), confounds, kept)
        return self._extract(recording.path, image, cleaning)

    def series_of(self, image: Nifti1Image) -> Scan:
        """Return (time, features) of an image in memory; raise UnusableError if it cannot be used."""
        _check_header(_MEMORY, image)
        return self._extract(_MEMORY, image, self._cleaning())

    def _cleaning(
        self, t_r: float | None = None, confounds: Any = None, kept: NDArray[np.int64] | None = None
    ) -> Cleaning:
        table = self._table
        return Cleaning(
            table.detrend, table.standardize, table.low_pass, table.high_pass, t_r, confounds, kept
        )

    def _extract(self, path: Path, image: Nifti1Image, cleaning: Cleaning) -> Scan:
        try:
            return self._in_one_pass(image, cleaning)
        except NotStreamedError:
            return self._by_masker(path, image, cleaning)

    def _in_one_pass(self, image: Nifti1Image, cleaning: Cleaning) -> Scan:
        volumes = stored_volumes(image, LONGEST_SCAN)
        with _one_at_a_time():
            operator = cleaning.operator(volumes.n_volumes)
            reduction = self._reduction(image)
        return cleaning.apply(reduction.reduce(volumes), operator)

    def _by_masker(self, path: Path, image: Nifti1Image, cleaning: Cleaning) -> Scan:
        with _one_at_a_time():
            masker = self._masker.set_params(t_r=cleaning.t_r)
            extracted = masker.transform(
                _in_memory(path, image), confounds=cleaning.confounds, sample_mask=cleaning.kept
            )
            return self._columns(extracted, masker).astype(np.float32)

    def needs_masker(self, image: str | os.PathLike[str] | Nifti1Image) -> bool:
        """Return whether nilearn is needed to read a usable image, judging by its header."""
        try:
            opened = _open(Path(image)) if isinstance(image, str | os.PathLike) else image
            stored_volumes(opened, LONGEST_SCAN)
            with _one_at_a_time():
                self._reduction(opened)
        except NotStreamedError:
            return True
        except Exception:
            return False
        return False

    def _reduction(self, image: Nifti1Image) -> Reduction:
        """Return the features on the grid of an image; raise NotStreamedError if it must be interpolated."""
        grid = (*image.shape[:3], image.affine.tobytes())
        if grid not in self._reductions:
            fwhm = self._table.smoothing_fwhm
            smoother = None if fwhm is None else Smoother.of_grid(fwhm, image.affine)
            if len(self._reductions) == _MOST_GRIDS:
                self._reductions.pop(next(iter(self._reductions)))
            self._reductions[grid] = self._new_reduction(image, smoother)
        return self._reductions[grid]

    @abstractmethod
    def _new_reduction(self, image: Nifti1Image, smoother: Smoother | None) -> Reduction:
        """Return the features on the grid of an image, of which only the header is used."""

    def problems(self, recording: Recording) -> list[Problem]:
        """Return the reasons why a recording cannot be used."""
        try:
            self.series(recording)
        except UnusableError as error:
            return error.problems
        except OSError as error:
            reason = error.strerror or "damaged"
            return [Problem(recording.path, f"cannot be read ({reason})", "a readable file")]
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            return [Problem(recording.path, f"nothing can be extracted ({why})", "a valid 4-D image")]
        return []

    def layout(self, recording: Recording) -> str:
        """Return a description of the grid of a recording."""
        image = _open(recording.path)
        sides = " x ".join(f"{side:.3g}" for side in _zooms(image)[:3])
        shape = " x ".join(map(str, image.shape[:3]))
        place = ", ".join(f"{place:.4g}" for place in image.affine[:3, 3])
        return f"a grid of {shape} voxels of {sides} mm from ({place})"

    def _header_problems(self, recording: Recording, image: Nifti1Image) -> Iterator[Problem]:
        """Yield problems of a recording that can be found before its volumes are read."""
        path, table = recording.path, self._table
        space = entity_of(path, "space")
        if table.space is not None and space not in (None, table.space):
            yield Problem(path, f"space {space}", f"{table.space}, as in the study")
        covered = coverage(self._places, image)
        if covered < LEAST_COVERAGE:
            yield Problem(
                path,
                f"a field of view with {covered:.0%} of the study's voxels",
                f"at least {LEAST_COVERAGE:.0%}; the image may be in a different space",
            )
        if table.confounds and recording.confounds is None:
            yield Problem(path, "no table of confounds next to it", "*_desc-confounds_timeseries.tsv")
        if self._filters and self._repetition_time(recording, image) is None:
            yield Problem(
                path,
                "no repetition time",
                f"RepetitionTime in {recording.sidecar.name}, or seconds in the header",
            )

    @property
    def _filters(self) -> bool:
        return self._table.low_pass is not None or self._table.high_pass is not None

    def _repetition_time(self, recording: Recording, image: Nifti1Image) -> float | None:
        return repetition_time(recording, image) if self._filters else None

    def _confounds(self, recording: Recording, n_volumes: int) -> tuple[Any, NDArray[np.int64] | None]:
        """Return the confounds required by the study, and the volumes that are kept."""
        if not self._table.confounds:
            return None, None
        from nilearn.interfaces.fmriprep import load_confounds

        assert recording.confounds is not None
        try:
            with _one_at_a_time():
                confounds, kept = load_confounds(str(recording.path), strategy=self._table.confounds)
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            expected = f"the confounds required by the study: {', '.join(self._table.confounds)}"
            raise UnusableError(
                Problem(recording.confounds, f"confounds that cannot be used ({why})", expected)
            ) from None
        _check_confounds(recording, len(confounds), n_volumes, n_volumes if kept is None else len(kept))
        return confounds, kept

    @property
    def _options(self) -> dict[str, Any]:
        """Options of nilearn's maskers."""
        table = self._table
        return {
            "smoothing_fwhm": table.smoothing_fwhm,
            "detrend": table.detrend,
            "standardize": "zscore_sample" if table.standardize else None,
            "low_pass": table.low_pass,
            "high_pass": table.high_pass,
            "reports": False,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_features={self.n_features})"


def _check_confounds(recording: Recording, n_rows: int, n_volumes: int, n_kept: int) -> None:
    assert recording.confounds is not None
    if n_rows != n_volumes:
        raise UnusableError(
            Problem(
                recording.confounds, f"{n_rows} rows", f"{n_volumes}, the volumes of {recording.path.name}"
            )
        )
    if not n_kept:
        raise UnusableError(Problem(recording.path, "no volume left after scrubbing", "less head motion"))


class Labels(ImageFeatures):
    """Mean time series of the regions of a label atlas (3-D)."""

    def __init__(
        self, atlas: Nifti1Image, table: FeatureTable, key: bytes, approximate: bool = False
    ) -> None:
        super().__init__(table, key)
        self._atlas, self.approximate = atlas, approximate
        self._labels = np.unique(np.asanyarray(atlas.dataobj))
        self._labels = self._labels[self._labels != 0]

    @property
    def n_features(self) -> int:
        """Number of regions."""
        return len(self._labels)

    @property
    def _support(self) -> Nifti1Image:
        return self._atlas

    @cached_property
    def _masker(self) -> Any:
        from nilearn.maskers import NiftiLabelsMasker

        return NiftiLabelsMasker(self._atlas, resampling_target="data", **self._options).fit()

    def _of_maps(self, image: Nifti1Image, nearest: bool) -> FloatArray:
        from nilearn.maskers import NiftiLabelsMasker

        masker = NiftiLabelsMasker(self._atlas, resampling_target="data", **_PLAIN).fit()
        return self._columns(masker.transform(image), masker)

    def _new_reduction(self, image: Nifti1Image, smoother: Smoother | None) -> Reduction:
        regions = _on_grid(self._atlas, image, "nearest")
        if not regions.any():
            raise NotStreamedError
        return label_reduction(regions, self._labels, smoother)

    def _columns(self, extracted: FloatArray, masker: Any) -> FloatArray:
        """Return a column for each region, with zeros if a recording contains no voxel of it."""
        present = [label for name, label in masker.region_ids_.items() if name != "background"]
        columns = np.zeros((len(extracted), self.n_features))
        columns[:, np.searchsorted(self._labels, present)] = extracted
        return columns

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image in which each region has its value."""
        regions = np.asanyarray(self._atlas.dataobj)
        inside = regions != 0
        values = np.zeros((*regions.shape, len(maps)), dtype=np.float32)
        values[inside] = maps.T[np.searchsorted(self._labels, regions[inside])]
        return _like(self._atlas, values)


class Maps(ImageFeatures):
    """Weights of the maps of a probabilistic atlas (4-D) in each volume, by least squares."""

    def __init__(self, atlas: Nifti1Image, table: FeatureTable, key: bytes) -> None:
        super().__init__(table, key)
        self._atlas = atlas

    @property
    def n_features(self) -> int:
        """Number of maps."""
        return int(self._atlas.shape[3])

    @cached_property
    def _support(self) -> Nifti1Image:
        return _like(self._atlas, np.asarray(np.any(self._atlas.dataobj, axis=3)))

    @cached_property
    def _masker(self) -> Any:
        from nilearn.maskers import NiftiMapsMasker

        return NiftiMapsMasker(self._atlas, resampling_target="data", **self._options).fit()

    def _of_maps(self, image: Nifti1Image, nearest: bool) -> FloatArray:
        from nilearn.maskers import NiftiMapsMasker

        masker = NiftiMapsMasker(self._atlas, resampling_target="data", **_PLAIN).fit()
        return np.asarray(masker.transform(image))

    def _new_reduction(self, image: Nifti1Image, smoother: Smoother | None) -> Reduction:
        return map_reduction(_on_grid(self._atlas, image, "linear"), smoother)

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image of weighted sums of the atlas's maps."""
        values = np.asanyarray(self._atlas.dataobj) @ maps.T
        return _like(self._atlas, values.astype(np.float32))


class Voxels(ImageFeatures):
    """Voxels of a mask, with smooth maps on its grid as the public basis."""

    def __init__(self, mask: Nifti1Image, table: FeatureTable, key: bytes) -> None:
        super().__init__(table, key)
        self._mask = mask
        self._inside = np.asanyarray(mask.dataobj) != 0

    @property
    def n_features(self) -> int:
        """Number of voxels."""
        return int(np.count_nonzero(self._inside))

    @cached_property
    def basis(self) -> FloatArray:  # type: ignore[override]
        """Low-pass cosines on the mask, with orthonormal rows."""
        return low_pass_within(self._inside)

    @property
    def _support(self) -> Nifti1Image:
        return self._mask

    @cached_property
    def _masker(self) -> Any:
        from nilearn.maskers import NiftiMasker

        return NiftiMasker(self._mask, **self._options).fit()

    def _of_maps(self, image: Nifti1Image, nearest: bool) -> FloatArray:
        from nilearn.image import resample_to_img

        how = "nearest" if nearest else "linear"
        there = resample_to_img(image, self._mask, interpolation=how, copy_header=True, force_resample=True)
        values: FloatArray = np.asarray(there.dataobj, dtype=np.float64)[self._inside].T
        return values

    def _new_reduction(self, image: Nifti1Image, smoother: Smoother | None) -> Reduction:
        if not _is_same_grid(self._mask, image):
            raise NotStreamedError
        return VoxelReduction(self._inside, smoother)

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image in which each voxel has its value."""
        values = np.zeros((*self._inside.shape, len(maps)), dtype=np.float32)
        values[self._inside] = maps.T
        return _like(self._mask, values)


# One image ------------------------------------------------------------------------------------------------


def _open(path: Path) -> Nifti1Image:
    """Open an image and read only its header; raise UnusableError unless it is 4-D."""
    import nibabel
    from nibabel.filebasedimages import ImageFileError

    if path.stat().st_size == 0:
        raise UnusableError(Problem(path, "an empty file", "a 4-D image"))
    try:
        image = nibabel.load(path)
    except OSError:
        raise
    except (ImageFileError, zlib.error, EOFError, ValueError):
        raise UnusableError(Problem(path, "not a NIfTI image", "a .nii or .nii.gz file")) from None
    _check_header(path, image)
    return image  # type: ignore[return-value]


def _check_header(path: Path, image: Any) -> None:
    shape = image.shape
    if len(shape) == 3:
        raise UnusableError(Problem(path, f"a single volume, shape {shape}", "a 4-D image (space and time)"))
    if len(shape) != 4 or 0 in shape:
        raise UnusableError(Problem(path, f"an image of shape {shape}", "a 4-D image (space and time)"))
    if image.get_data_dtype().kind not in "fiu":
        raise UnusableError(Problem(path, f"values of type {image.get_data_dtype()}", "real numbers"))
    affine = image.affine
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine)) < 1e-12:
        raise UnusableError(Problem(path, "a singular or non-finite affine", "an invertible affine"))


def _in_memory(path: Path, image: Nifti1Image) -> Nifti1Image:
    """Return the image with its volumes read once and validated."""
    try:
        stored = image.dataobj if image.shape[3] <= LONGEST_SCAN else image.dataobj[..., :LONGEST_SCAN]
        volumes = np.asanyarray(stored)
    except (EOFError, zlib.error, OSError, ValueError):
        expected = f"the {image.shape[3]} volumes stated in its header"
        raise UnusableError(Problem(path, "truncated or damaged", expected)) from None
    _check_finite(path, volumes)
    return _like(image, volumes)


def _check_finite(path: Path, volumes: NDArray[Any]) -> None:
    """Reject voxels that are NaN or infinite in some volumes but not in others."""
    if volumes.dtype.kind != "f":
        return
    finite = np.isfinite(volumes)
    if finite.all():
        return
    if not finite.any():
        raise UnusableError(Problem(path, "only NaN or infinite values", "finite numbers"))
    broken = ~finite[finite.any(axis=3)]
    if broken.any():
        bad = np.flatnonzero(broken.any(axis=0))
        found = f"volumes with NaN or infinite values ({len(bad)}), the first is {bad[0] + 1}"
        raise UnusableError(Problem(path, f"{found} of {volumes.shape[3]}", "finite numbers"))


def _is_same_grid(public: Nifti1Image, image: Nifti1Image) -> bool:
    """Return whether nilearn regards two grids as equal."""
    return public.shape[:3] == image.shape[:3] and np.allclose(public.affine, image.affine)


def _on_grid(public: Nifti1Image, image: Nifti1Image, interpolation: str) -> NDArray[Any]:
    """Return a public image on the grid of a recording, resampled as nilearn's maskers do if it differs."""
    if _is_same_grid(public, image):
        # Grids that differ more are equal for one part of a masker and different for another.
        if np.abs(public.affine - image.affine).max() > _EQUAL_AFFINES:
            raise NotStreamedError
        return np.asanyarray(public.dataobj)
    from nilearn.image import resample_img

    there = resample_img(
        public, interpolation=interpolation, target_shape=image.shape[:3], target_affine=image.affine
    )
    return np.asanyarray(there.dataobj)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one thread use nilearn, without its warnings about resampling.

    Statistics read subjects in several threads. A masker stores what it found in the last image, its memory
    use should be that of one image, and filters of warnings belong to all threads.
    """
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _like(image: Nifti1Image, values: NDArray[Any]) -> Nifti1Image:
    return new_image(values, image.affine)


def new_image(values: NDArray[Any], affine: FloatArray) -> Nifti1Image:
    """Return values on a grid; booleans are stored as 0 and 1, because NIfTI has no Boolean type."""
    from nibabel.nifti1 import Nifti1Image

    stored = values.astype(np.uint8) if values.dtype == bool else values
    return Nifti1Image(stored, affine, dtype=stored.dtype)  # type: ignore[no-untyped-call]


def scaled_to_peak(image: Nifti1Image) -> Nifti1Image:
    r"""Return an image of maps with each volume scaled to a largest absolute value of 1.

    A map has that scale in its features. With an atlas of maps :math:`a_d`, in any unit, it becomes the sum
    :math:`\sum_d m_d a_d(x)`, whose scale depends on the atlas: with z-values everything would exceed the
    colour range, and every voxel would be part of a peak. Signs are preserved; images of labels and voxels do
    not change.
    """
    values = np.asarray(image.dataobj, dtype=np.float32)
    heights = np.abs(values).max(axis=(0, 1, 2))
    return _like(image, values / np.where(heights == 0, np.float32(1), heights))


def _zooms(image: Nifti1Image) -> tuple[float, ...]:
    """Return the grid spacing: three values in space, and one in time if the header has it."""
    zooms: tuple[float, ...] = image.header.get_zooms()  # type: ignore[no-untyped-call]
    return zooms


def coverage(places: FloatArray, image: Nifti1Image) -> float:
    """Return the fraction of positions (n, 3), in mm, that lie within the grid of an image."""
    there = np.linalg.inv(image.affine)
    voxels = places @ there[:3, :3].T + there[:3, 3]
    within = (voxels >= -0.5) & (voxels <= np.array(image.shape[:3]) - 0.5)
    return float(within.all(axis=1).mean())


def repetition_time(recording: Recording, image: Nifti1Image) -> float | None:
    """Return the TR in seconds, from the sidecar or else the header; None if neither states it."""
    found = _sidecar_time(recording)
    if found is None:
        unit: str = image.header.get_xyzt_units()[1]  # type: ignore[no-untyped-call]
        found = float(_zooms(image)[3]) * _UNIT_SECONDS.get(unit, math.nan)
    return found if _SHORTEST <= found <= _LONGEST else None


def _sidecar_time(recording: Recording) -> float | None:
    try:
        found = json.loads(recording.sidecar.read_text(encoding="utf-8"))["RepetitionTime"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return float(found) if isinstance(found, int | float) else None
