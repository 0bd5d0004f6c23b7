"""Images as researchers hand them in: paths or images of nibabel, made into series by public images alone."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from capedjica.algorithms.ica.basis import low_pass_within
from capedjica.data.cache import SeriesCache
from capedjica.data.features import (
    ACROSS_PEOPLE,
    FeatureTable,
    PublicImage,
    image_features,
    public_image,
    read_public,
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

# By which parameters nilearn's maskers are given one.
_PUBLIC_IMAGES: Final = ("mask_img", "labels_img", "maps_img", "seeds")
_COMPUTED: Final = (
    "NOT COVERED: the mask of the masker was computed from images. If participants are among them, it is a "
    "statistic across people that no release paid for."
)


class Extractor(Protocol):
    """What makes series of images, and images of maps."""

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What of its making no guarantee covers, in sentences."""

    @property
    def basis(self) -> FloatArray | None:
        """Smooth maps on the grid of the features."""

    @property
    def n_features(self) -> int:
        """D."""

    def series(self, image: Any) -> Scan:
        """Return (time, features) of a path or an image."""

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image."""

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return what a 4-D image of maps is in the features, (R, D)."""


class FeatureExtractor:
    """Regions of an atlas or voxels of a mask, as sites extract them in a study.

    Parameters
    ----------
    features : ImageFeatures
        The features.
    cache : SeriesCache, optional
        Where series of files are kept.
    """

    not_covered = ()

    def __init__(self, features: ImageFeatures, cache: SeriesCache | None) -> None:
        self._features, self._cache = features, cache

    @property
    def basis(self) -> FloatArray | None:
        """Smooth maps on the voxels of a mask, None for regions."""
        return self._features.basis

    @property
    def n_features(self) -> int:
        """D."""
        return self._features.n_features

    def series(self, image: Any) -> Scan:
        """Return (time, features) of a path or an image."""
        if not isinstance(image, str | os.PathLike):
            return self._features.series_of(image)
        recording = Recording(Path(image))
        if self._cache is None:
            return self._features.series(recording)
        return self._cache.series(self._features, recording)

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image."""
        return self._features.image(maps)

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return what a 4-D image of maps is in the features, (R, D)."""
        return self._features.of_maps(image, nearest)


class MaskerExtractor:
    """A fitted masker of nilearn, used as it is."""

    def __init__(self, masker: Any) -> None:
        self._masker = masker
        self._n_features = _n_features(masker)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Say where a mask comes from that the guarantee does not cover."""
        return () if _is_public(self._masker) else (_COMPUTED,)

    @property
    def basis(self) -> FloatArray | None:
        """Smooth maps where the features are the voxels of a mask, None where they are regions."""
        if hasattr(self._masker, "labels_img_") or hasattr(self._masker, "maps_img_"):
            return None
        return low_pass_within(np.asanyarray(self._masker.mask_img_.dataobj) != 0)

    @property
    def n_features(self) -> int:
        """D."""
        return self._n_features

    def series(self, image: Any) -> Scan:
        """Return (time, features) of a path or an image."""
        path = os.fspath(image) if isinstance(image, str | os.PathLike) else image
        series = np.asarray(self._masker.transform(path), dtype=np.float32)
        if series.ndim != 2:
            raise InputError("a single volume; expected a 4-D image")
        return series

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image."""
        image: Nifti1Image = self._masker.inverse_transform(maps.astype(np.float32))
        return image

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return what a 4-D image of maps is in the features, (R, D), without the masker's cleaning."""
        return self._plain.of_maps(image, nearest)

    @property
    def _plain(self) -> ImageFeatures:
        """The same features by the masker's public image alone."""
        masker = self._masker
        regions = {"labels_img_": Labels, "maps_img_": Maps}
        for name, made in regions.items():
            # A mask cuts regions, in nilearn's own way.
            if getattr(masker, name, None) is not None and masker.mask_img is None:
                return made(getattr(masker, name), FeatureTable(kind="atlas"), b"")
        if getattr(masker, "mask_img_", None) is not None and not any(
            hasattr(masker, one) for one in regions
        ):
            return Voxels(masker.mask_img_, FeatureTable(kind="voxels"), b"")
        raise InputError(
            f"what an image is to this {type(masker).__name__} cannot be told: give template as an array "
            "(networks, features)"
        )


@dataclass(frozen=True, eq=False)
class ImageOptions:
    """What an estimator was told about images; None where it was not."""

    atlas: Any
    mask_img: Any
    masker: Any
    smoothing_fwhm: float | None
    standardize: bool | str | None
    memory: Any

    def open(self) -> Extractor | None:
        """Return what makes series of images from public ones, None where none was given."""
        if self.masker is not None:
            for name in ("atlas", "mask_img", "smoothing_fwhm", "standardize", "memory"):
                if getattr(self, name) not in (None, False):
                    raise InputError(f"{name} must not be given beside masker, which has its own settings")
            return MaskerExtractor(_fitted(self.masker))
        if self.atlas is None and self.mask_img is None:
            return None
        features = image_features(
            self._table(), _public(self.atlas, "atlas"), _public(self.mask_img, "mask_img")
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
    """Return a masker that is fitted, on its public images if it was not yet."""
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if not hasattr(masker, "transform"):
        raise InputError(f"masker must be one of nilearn's, got {type(masker).__name__}")
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
        warnings.warn(f"the mask of masker was computed from images; {ACROSS_PEOPLE}", stacklevel=2)
    return masker


def _n_features(masker: Any) -> int:
    """Return how many features a masker has by its public images.

    nilearn changes ``n_elements_`` of a masker of labels to what the last image held of them.
    """
    labels = getattr(masker, "labels_img_", None)
    if labels is None or masker.mask_img is not None:
        return int(masker.n_elements_)
    return int(np.count_nonzero(np.unique(np.asanyarray(labels.dataobj)) != masker.background_label))


def _is_public(masker: Any) -> bool:
    """Tell whether a masker was given its mask, labels or maps, rather than computed them from images."""
    return any(getattr(masker, name, None) is not None for name in _PUBLIC_IMAGES)


def _public(given: Any, what: str) -> PublicImage | None:
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        return read_public(Path(given), what)
    if not hasattr(given, "dataobj"):
        raise InputError(f"{what} must be an image or the path of one, got {type(given).__name__}")
    return public_image(given, what)


def _cache(memory: Any) -> SeriesCache | None:
    """Return the cache in a folder, which joblib's Memory may name."""
    folder = getattr(memory, "location", memory)
    return None if folder is None else SeriesCache(Path(folder))


def is_image(subject: Any) -> bool:
    """Tell whether a subject is an image: a path, one of nibabel's, or a list of them, a person's runs."""
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
            f"X holds images ({_described(sites, *places[0])}), but neither mask_img nor atlas nor masker is "
            f"given; {ACROSS_PEOPLE}"
        )
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    read = delayed(_read)
    series = Parallel(n_jobs=n_jobs)(
        read(sites[name][m], extractor, f"site {name}, subject {m}", on_bad) for name, m in places
    )
    extracted = dict(zip(places, series, strict=True))
    return {
        name: [extracted.get((name, m), subject) for m, subject in enumerate(site)]
        for name, site in sites.items()
    }


def _described(sites: Mapping[str, Any], name: str, number: int) -> str:
    """Return which subject is an image; a path as it was given, because it may be no path at all."""
    given = sites[name][number]
    path = f" is the path {os.fspath(given)!r}" if isinstance(given, str | os.PathLike) else ""
    return f"site {name}, subject {number}{path}"


def _read(subject: Any, extractor: Extractor, where: str, on_bad: OnBad) -> Scan:
    """Return the series of one person; of one that cannot be used nothing, or an error that says why."""
    runs: Sequence[Any] = subject if isinstance(subject, list | tuple) else [subject]
    try:
        series = joined([extractor.series(run) for run in runs])
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
    raise InputError(f"{where}: {why}")
