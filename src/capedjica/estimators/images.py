"""Extraction of time series from subjects given as paths or nibabel images, using public images only."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from capedjica.algorithms.ica.basis import low_pass_within
from capedjica.algorithms.parallel import one_thread
from capedjica.data.cache import SeriesCache
from capedjica.data.features import (
    ACROSS_PEOPLE,
    FeatureTable,
    PublicImage,
    image_features,
    public_image,
    read_public,
    read_regions,
)
from capedjica.data.images import ImageFeatures, Labels, Maps, UnusableError, Voxels
from capedjica.data.participants import joined
from capedjica.data.scans import Recording
from capedjica.errors import InputError
from capedjica.estimators.inputs import OnBad, Sites, name_sites
from capedjica.privacy import validate
from capedjica.tools.arrays import FloatArray, Scan

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

# Parameters by which nilearn's maskers receive a public image.
_PUBLIC_IMAGES: Final = ("mask_img", "labels_img", "maps_img", "seeds")
_COMPUTED: Final = (
    "NOT COVERED: the mask of the masker was computed from images. If participants are among them, it is a "
    "statistic across subjects that was charged to no release."
)


class Extractor(Protocol):
    """Extract time series from images, and convert maps to images."""

    @property
    def approximate(self) -> bool:
        """Whether the features are regions of a table of centres, which only locates columns."""

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Sentences that state what the guarantee does not cover."""

    @property
    def basis(self) -> FloatArray | None:
        """Public basis of smooth maps on the grid of the features."""

    @property
    def n_features(self) -> int:
        """Number of features D."""

    def series(self, image: Any) -> Scan:
        """Return the time series (time, features) of a path or an image."""

    def runs_in_threads(self, images: Iterable[Any]) -> bool:
        """Return whether threads read these images as fast as processes do."""

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image."""

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return the maps of a 4-D image resampled to the features, shape (R, D)."""


class FeatureExtractor:
    """Regions of an atlas or voxels of a mask, extracted as sites do in a study.

    Parameters
    ----------
    features : ImageFeatures
        Definition of the features.
    cache : SeriesCache, optional
        Cache for the time series of files.
    """

    not_covered = ()

    def __init__(self, features: ImageFeatures, cache: SeriesCache | None) -> None:
        self._features, self._cache = features, cache

    @property
    def basis(self) -> FloatArray | None:
        """Basis of smooth maps on the voxels of a mask; None for regions."""
        return self._features.basis

    @property
    def approximate(self) -> bool:
        """Whether the features are regions of a table of centres, which only locates columns."""
        return self._features.approximate

    @property
    def n_features(self) -> int:
        """Number of features D."""
        return self._features.n_features

    def series(self, image: Any) -> Scan:
        """Return the time series (time, features) of a path or an image."""
        if not isinstance(image, str | os.PathLike):
            return self._features.series_of(image)
        recording = Recording(Path(image))
        if self._cache is None:
            return self._features.series(recording)
        return self._cache.series(self._features, recording)

    def runs_in_threads(self, images: Iterable[Any]) -> bool:
        """Return whether no image needs nilearn, which only one thread can use."""
        return not any(map(self._features.needs_masker, images))

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image."""
        return self._features.image(maps)

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return the maps of a 4-D image resampled to the features, shape (R, D)."""
        return self._features.of_maps(image, nearest)


class MaskerExtractor:
    """A fitted nilearn masker, used unchanged."""

    approximate = False

    def __init__(self, masker: Any) -> None:
        self._masker = masker
        self._n_features = _n_features(masker)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """State that the guarantee does not cover a mask computed from images."""
        return () if _is_public(self._masker) else (_COMPUTED,)

    @property
    def basis(self) -> FloatArray | None:
        """Basis of smooth maps if the features are the voxels of a mask; None if they are regions."""
        if hasattr(self._masker, "labels_img_") or hasattr(self._masker, "maps_img_"):
            return None
        return low_pass_within(np.asanyarray(self._masker.mask_img_.dataobj) != 0)

    @property
    def n_features(self) -> int:
        """Number of features D."""
        return self._n_features

    def series(self, image: Any) -> Scan:
        """Return the time series (time, features) of a path or an image."""
        path = os.fspath(image) if isinstance(image, str | os.PathLike) else image
        series = np.asarray(self._masker.transform(path), dtype=np.float32)
        if series.ndim != 2:
            raise InputError("the image is a single volume; expected a 4-D image")
        return series

    def runs_in_threads(self, images: Iterable[Any]) -> bool:
        """Return False: a masker stores what it found in the last image."""
        return False

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image."""
        image: Nifti1Image = self._masker.inverse_transform(maps.astype(np.float32))
        return image

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return the maps of a 4-D image in the features, shape (R, D), without the masker's cleaning."""
        return self._plain.of_maps(image, nearest)

    @property
    def _plain(self) -> ImageFeatures:
        """The same features, defined by the masker's public image alone."""
        masker = self._masker
        regions: dict[str, type[Labels | Maps]] = {"labels_img_": Labels, "maps_img_": Maps}
        for name, made in regions.items():
            # A mask restricts regions in a way specific to nilearn.
            if getattr(masker, name, None) is not None and masker.mask_img is None:
                return made(getattr(masker, name), FeatureTable(kind="atlas"), b"")
        if getattr(masker, "mask_img_", None) is not None and not any(
            hasattr(masker, one) for one in regions
        ):
            return Voxels(masker.mask_img_, FeatureTable(kind="voxels"), b"")
        raise InputError(
            f"an image template cannot be converted to the features of this {type(masker).__name__}; give "
            "template as an array (networks, features)"
        )


@dataclass(frozen=True, eq=False)
class ImageOptions:
    """Image options of an estimator; None for options that were not given."""

    atlas: Any
    mask_img: Any
    masker: Any
    smoothing_fwhm: float | None
    standardize: bool | str | None
    memory: Any

    def open(self) -> Extractor | None:
        """Return the extractor defined by the public images, or None if none was given."""
        if self.masker is not None:
            for name in ("atlas", "mask_img", "smoothing_fwhm", "standardize", "memory"):
                if getattr(self, name) not in (None, False):
                    raise InputError(f"{name} must not be given with masker, which has its own settings")
            return MaskerExtractor(_fitted(self.masker))
        if self.atlas is None and self.mask_img is None:
            return None
        features = image_features(
            self._table(),
            _public(self.atlas, "atlas", read_regions),
            _public(self.mask_img, "mask_img", read_public),
        )
        return FeatureExtractor(features, _cache(self.memory))

    def _table(self) -> FeatureTable:
        if self.standardize not in (None, False, True, "zscore_sample"):
            raise InputError(f"standardize must be True, False or 'zscore_sample', got {self.standardize!r}")
        fwhm = self.smoothing_fwhm
        return FeatureTable(
            kind="voxels" if self.atlas is None else "atlas",
            smoothing_fwhm=None if fwhm is None else validate.positive("smoothing_fwhm", fwhm),
            standardize=bool(self.standardize),
        )


def _fitted(masker: Any) -> Any:
    """Return a fitted masker, fitting it on its public images if necessary."""
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if not hasattr(masker, "transform"):
        raise InputError(f"masker must be a nilearn masker, got {type(masker).__name__}")
    public = _is_public(masker)
    try:
        check_is_fitted(masker)
    except NotFittedError:
        if not public:
            raise InputError(
                f"masker has no mask, labels or maps and is not fitted; {ACROSS_PEOPLE}"
            ) from None
        return clone(masker).fit()
    if not public:
        warnings.warn(f"the mask of the masker was computed from images; {ACROSS_PEOPLE}", stacklevel=2)
    return masker


def _n_features(masker: Any) -> int:
    """Return the number of features of a masker according to its public images.

    nilearn overwrites ``n_elements_`` of a labels masker with the number of labels found in the last image.
    """
    labels = getattr(masker, "labels_img_", None)
    if labels is None or masker.mask_img is not None:
        return int(masker.n_elements_)
    return int(np.count_nonzero(np.unique(np.asanyarray(labels.dataobj)) != masker.background_label))


def _is_public(masker: Any) -> bool:
    """Return whether a masker was given its mask, labels or maps, rather than computing them from images."""
    return any(getattr(masker, name, None) is not None for name in _PUBLIC_IMAGES)


def _public(given: Any, what: str, read: Callable[[Path, str], PublicImage]) -> PublicImage | None:
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        return read(Path(given), what)
    if not hasattr(given, "dataobj"):
        raise InputError(f"{what} must be an image or a path, got {type(given).__name__}")
    return public_image(given, what)


def _cache(memory: Any) -> SeriesCache | None:
    """Return the cache in the given folder, or in that of a joblib ``Memory``."""
    folder = getattr(memory, "location", memory)
    return None if folder is None else SeriesCache(Path(folder))


def is_image(subject: Any) -> bool:
    """Return whether a subject is a path, a nibabel image, or a list of them (the runs of a participant)."""
    if isinstance(subject, list | tuple) and len(subject):
        return all(map(_is_one_image, subject))
    return _is_one_image(subject)


def _is_one_image(given: Any) -> bool:
    return isinstance(given, str | os.PathLike) or hasattr(given, "dataobj")


def series_of_sites(X: Sites, extractor: Extractor | None, on_bad: OnBad, n_jobs: int) -> Mapping[str, Any]:
    """Return sites in which every image is replaced by its series (time, features)."""
    if isinstance(X, list | tuple) and any(map(_is_one_image, X)):
        raise InputError("X must be a list of sites, each a list of subjects; got a list of images")
    sites = name_sites(X)
    places = [
        (name, m) for name, site in sites.items() for m, subject in enumerate(site) if is_image(subject)
    ]
    if not places:
        return sites
    if extractor is None:
        raise InputError(
            f"X contains images ({_described(sites, *places[0])}), but none of mask_img, atlas and masker is "
            f"given; {ACROSS_PEOPLE}"
        )
    if extractor.approximate:
        raise InputError(
            f"X contains images ({_described(sites, *places[0])}), but atlas is a table of centres, which "
            "only locates the columns of arrays; give the image of the atlas"
        )
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    read = delayed(_read)
    images = (run for name, m in places for run in _runs(sites[name][m]))
    way = "threads" if extractor.runs_in_threads(images) else "processes"
    with one_thread():
        series = Parallel(n_jobs=n_jobs, prefer=way)(
            read(sites[name][m], extractor, f"site {name}, subject {m}", on_bad) for name, m in places
        )
    extracted = dict(zip(places, series, strict=True))
    return {
        name: [extracted.get((name, m), subject) for m, subject in enumerate(site)]
        for name, site in sites.items()
    }


def _runs(subject: Any) -> Sequence[Any]:
    """Return the runs of a participant."""
    return subject if isinstance(subject, list | tuple) else [subject]


def _described(sites: Mapping[str, Any], name: str, number: int) -> str:
    """Describe which subject is an image; a path is shown as given, because it may not be a path at all."""
    given = sites[name][number]
    path = f" is the path {os.fspath(given)!r}" if isinstance(given, str | os.PathLike) else ""
    return f"site {name}, subject {number}{path}"


def _read(subject: Any, extractor: Extractor, where: str, on_bad: OnBad) -> Scan:
    """Return the time series of one subject; if unusable, an empty series or an error with the reason."""
    try:
        series = joined([extractor.series(run) for run in _runs(subject)])
        if series.shape[1] == extractor.n_features:
            return series
        why = f"{series.shape[1]} features; expected the {extractor.n_features} of the public images"
    except UnusableError as error:
        why = f"{error.problems[0].found}; expected {error.problems[0].expected}"
    except OSError as error:
        why = f"cannot be read ({error.strerror or 'damaged'})"
    except Exception as error:
        why = " ".join(str(error).split())
    if on_bad == "zero":
        return np.empty((0, extractor.n_features), dtype=np.float32)
    raise InputError(f"X: {where}: {why}")
