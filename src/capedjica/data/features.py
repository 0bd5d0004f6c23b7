"""The ``[features]`` table of a study: features computed from each recording, using public files only."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import msgspec
import numpy as np

from capedjica.algorithms.ica.scan_length import LONGEST_SCAN
from capedjica.data.centres import is_table, regions_of_centres
from capedjica.data.columns import Columns, RegionColumns
from capedjica.data.images import ImageFeatures, Labels, Maps, Voxels, new_image
from capedjica.data.participant_table import PARTICIPANT, PersonRows
from capedjica.data.scans import Features
from capedjica.errors import InputError
from capedjica.privacy import validate

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

# Numbers outside these limits are typing errors, or would need more memory than available.
Side = Annotated[float, msgspec.Meta(ge=1, le=50)]
Width = Annotated[float, msgspec.Meta(gt=0, le=100)]
Frequency = Annotated[float, msgspec.Meta(gt=0, le=100)]
# Upper limit for all counts.
MOST: Final = 10**9
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
# A brain has 70,000 voxels of 3 mm, and the smooth maps of the basis do not need a finer resolution.
MOST_VOXELS: Final = 100_000

# Those of nilearn's strategies that apply to standard fMRIPrep images.
CONFOUNDS: Final = ("motion", "high_pass", "wm_csf", "global_signal", "compcor", "scrub")
# Reason why masks are never computed from scans.
ACROSS_PEOPLE: Final = (
    "a mask computed from participants' images is a statistic across participants, which is charged to no "
    "release; give a public image, for example nilearn.datasets.load_mni152_brain_mask"
)
# Names by which nilearn's maskers are instructed to compute a mask.
_COMPUTED_MASKS: Final = ("background", "epi", "whole-brain-template", "gm-template", "wm-template")
# Columns of a table have no spatial positions, neighbours or sampling times.
_IMAGES_ONLY: Final = (
    "atlas", "mask", "voxel_size", "space", "smoothing_fwhm", "low_pass", "high_pass", "confounds",
)  # fmt: skip
# A row has no time dimension.
_SCANS_ONLY: Final = (*_IMAGES_ONLY, "detrend", "standardize", "scan_length", "image_shape")


class FeatureTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Definition of the features of a study.

    Attributes
    ----------
    kind : {"columns", "atlas", "voxels", "table"}
        Columns of time-series tables; regions of an atlas; voxels of a mask; or columns of one table that has
        a row per participant.
    atlas, atlas_sha256 : str, optional
        Image of the regions, labels (3-D) or maps (4-D), as a path relative to the study.toml, and its hash.
        For kind "columns", its regions are the columns in order, so that results have spatial positions; a
        table of the centres of the regions is then also possible.
    mask, mask_sha256 : str, optional
        Mask image; by default that of the MNI152 template distributed with nilearn.
    voxel_size : float, optional
        Side of the voxels in mm, for kind "voxels".
    space : str, optional
        Template space required of BIDS derivatives.
    smoothing_fwhm : float, optional
        Full width at half maximum of the smoothing, in mm.
    detrend, standardize : bool
        Remove a linear trend from every feature; divide it by its standard deviation.
    low_pass, high_pass : float, optional
        Cut-off frequencies in Hz; they require the repetition time of every recording.
    confounds : list of str
        Strategies of :func:`nilearn.interfaces.fmriprep.load_confounds`.
    n_features : int, optional
        Number of features: columns, regions or voxels.
    scan_length : int, optional
        Planned number of time points of a typical scan.
    image_shape : pair of int, optional
        Height and width, if the columns are the pixels of an image.
    columns : list of str
        Names of the columns, in order, for kind "table".
    """

    # Keys of files next to the study.toml; the hash of each is under the same name with "_sha256".
    public_keys: ClassVar[tuple[str, ...]] = ("atlas", "mask")

    kind: Literal["columns", "atlas", "voxels", "table"] = "columns"
    atlas: str | None = None
    atlas_sha256: str | None = None
    mask: str | None = None
    mask_sha256: str | None = None
    voxel_size: Side | None = None
    space: str | None = None
    smoothing_fwhm: Width | None = None
    detrend: bool = False
    standardize: bool = False
    low_pass: Frequency | None = None
    high_pass: Frequency | None = None
    confounds: tuple[str, ...] = ()
    n_features: Count | None = None
    scan_length: Annotated[int, msgspec.Meta(ge=2, le=LONGEST_SCAN)] | None = None
    image_shape: tuple[Count, Count] | None = None
    columns: tuple[str, ...] = ()


def feature_problems(table: FeatureTable) -> list[str]:
    """Return incompatible settings, without reading any file."""
    if table.kind == "table":
        return [*_row_problems(table)]
    return [*_kind_problems(table), *_cleaning_problems(table)]


def _row_problems(table: FeatureTable) -> Iterator[str]:
    for name in _SCANS_ONLY:
        if getattr(table, name):
            yield f"features.{name} is only for scans; features.kind is 'table'"
    if not table.columns:
        yield "features.columns must name the columns to analyse, because features.kind is 'table'"
    for name, times in Counter(table.columns).items():
        if not name.strip() or name != name.strip() or not name.isprintable():
            yield f"features.columns must be printable names on one line, got {name!r}"
        elif name == PARTICIPANT:
            yield f"features.columns must be numeric columns; {PARTICIPANT} identifies participants"
        elif times > 1:
            yield f"features.columns must name each column once, got {name!r} {times} times"


def _kind_problems(table: FeatureTable) -> Iterator[str]:
    if table.columns:
        yield f"features.columns is only for kind 'table'; features.kind is {table.kind!r}"
    if table.kind == "columns":
        for name in _IMAGES_ONLY:
            if name != "atlas" and getattr(table, name):
                yield f"features.{name} is only for images; features.kind is 'columns'"
        if table.atlas is not None and table.image_shape is not None:
            yield "features.atlas is only for columns that are regions; image_shape makes them pixels"
    elif table.kind == "atlas":
        if table.atlas is None:
            yield "features.atlas must name the image of the regions, because features.kind is 'atlas'"
        elif is_table(table.atlas):
            yield (
                f"features.atlas must be an image, because features.kind is 'atlas'; got {table.atlas!r}: "
                "tables of centres are only for columns, whose regions they locate"
            )
        if table.voxel_size is not None:
            yield "features.voxel_size is only for kind 'voxels'; features.kind is 'atlas'"
    else:
        if table.atlas is not None:
            yield "features.atlas is only for kind 'atlas'; features.kind is 'voxels'"
        if table.mask is None and table.voxel_size is None:
            yield "features.voxel_size must be given, in mm, if features.mask is not"
    if table.mask in _COMPUTED_MASKS:
        yield f"features.mask must be a file name, got {table.mask!r}; {ACROSS_PEOPLE}"


def _cleaning_problems(table: FeatureTable) -> Iterator[str]:
    if table.low_pass is not None and table.high_pass is not None and table.high_pass >= table.low_pass:
        yield f"features.high_pass ({table.high_pass}) must be below features.low_pass ({table.low_pass})"
    for name in table.confounds:
        if name not in CONFOUNDS:
            yield f"features.confounds must be among {', '.join(CONFOUNDS)}; got {name!r}"
    if "compcor" in table.confounds and "high_pass" not in table.confounds:
        yield "features.confounds: 'compcor' also requires 'high_pass'"


def open_features(table: FeatureTable, folder: str | os.PathLike[str], n_features: int | None) -> Features:
    """Return the features of a study; reject public files that differ from those of the study.

    Parameters
    ----------
    table : FeatureTable
        The ``[features]`` table of the study.
    folder : path
        Folder of the study.toml.
    n_features : int, optional
        Number of features according to the study; required for columns, which no public file counts.
    """
    found = feature_problems(table)
    if found:
        raise InputError(found[0])
    if table.kind == "columns":
        if n_features is None:
            raise InputError("n_features must be given: no public file determines the number of columns")
        return _open_columns(table, Path(folder), validate.count("n_features", n_features))
    rows = table.kind == "table"
    features = PersonRows(table.columns) if rows else _open_images(table, Path(folder))
    if n_features not in (None, features.n_features):
        made = {
            "atlas": "the atlas has {} regions",
            "voxels": "the mask has {} voxels",
            "table": "features.columns names {}",
        }[table.kind]
        raise InputError(f"features.n_features is {n_features}, but {made.format(features.n_features)}")
    return features


def _open_columns(table: FeatureTable, folder: Path, n_features: int) -> Columns:
    plain = Columns(n_features, table.detrend, table.standardize)
    if table.atlas is None:
        return plain
    return with_regions(plain, read_regions(folder / table.atlas, "atlas", table.atlas_sha256))


def with_regions(columns: Columns, atlas: PublicImage) -> RegionColumns:
    """Return columns located by the regions of an atlas; their numbers must be equal."""
    regions = image_features(FeatureTable(kind="atlas"), atlas, None)
    return RegionColumns(columns.n_features, columns.detrend, columns.standardize, regions=regions)


def count_features(table: FeatureTable, folder: str | os.PathLike[str]) -> int:
    """Return the number of features defined by the atlas, the mask or the named columns of a study."""
    return open_features(table, folder, None).n_features


def _open_images(table: FeatureTable, folder: Path) -> ImageFeatures:
    mask = None if table.mask is None else read_public(folder / table.mask, "mask", table.mask_sha256)
    atlas = None if table.atlas is None else read_public(folder / table.atlas, "atlas", table.atlas_sha256)
    return image_features(table, atlas, mask)


def image_features(table: FeatureTable, atlas: PublicImage | None, mask: PublicImage | None) -> ImageFeatures:
    """Return the features defined by public images; with an atlas, the mask restricts its regions."""
    key = _key(table, atlas, mask)
    if atlas is None:
        return Voxels(_voxels(mask, table.voxel_size), table, key)
    regions = _regions(atlas.image, mask)
    if len(regions.shape) == 4:
        return Maps(regions, table, key)
    return Labels(regions, table, key, approximate=atlas.approximate)


def _key(table: FeatureTable, atlas: PublicImage | None, mask: PublicImage | None) -> bytes:
    """Return a hash of the settings and of the content of the public files, independent of their paths."""
    plain = msgspec.to_builtins(table)
    # Settings that were added later and do not affect a series.
    for name in ("n_features", "scan_length", "image_shape", "columns"):
        del plain[name]
    for name, public in (("atlas", atlas), ("mask", mask)):
        plain |= {name: None, f"{name}_sha256": None if public is None else public.sha256}
    content = msgspec.msgpack.encode([plain, version("nilearn")], order="deterministic")
    return hashlib.sha256(content).digest()


# Public images --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublicImage:
    """A public image, the hash of its file, and whether it was made from a table of centres."""

    image: Nifti1Image
    sha256: str
    approximate: bool = False


def read_public(path: Path, what: str, expected: str | None = None) -> PublicImage:
    """Read an atlas or a mask; reject a file whose hash differs from the expected one."""
    digest = _digest(path, what, expected)
    import nibabel

    try:
        return PublicImage(_checked(nibabel.load(path), what), digest)
    except InputError:
        raise
    except Exception:
        raise InputError(f"{what} {path} is not a readable image") from None


def read_regions(path: Path, what: str, expected: str | None = None) -> PublicImage:
    """Read the regions of columns: an image like :func:`read_public`, or a table of their centres."""
    if not is_table(path):
        return read_public(path, what, expected)
    digest = _digest(path, what, expected)
    return PublicImage(regions_of_centres(path, what), digest, approximate=True)


def _digest(path: Path, what: str, expected: str | None) -> str:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror}; expected an image") from None
    check_digest(path, what, digest, expected)
    return digest


def check_digest(path: Path, what: str, digest: str, expected: str | None) -> None:
    """Reject a public file whose SHA-256 differs from the expected one, if any."""
    # defence: hash-of-public-files
    if expected is not None and digest != expected.lower():
        raise InputError(
            f"{what} {path} is not the file of the study: its SHA-256 is {digest}, expected {expected}"
        )


def public_image(image: Nifti1Image, what: str) -> PublicImage:
    """Return an atlas or a mask given as an image in memory."""
    checked = _checked(image, what)
    digest = hashlib.sha256(checked.affine.tobytes())
    digest.update(np.ascontiguousarray(checked.dataobj).tobytes())
    return PublicImage(checked, digest.hexdigest())


def _checked(image: Any, what: str) -> Nifti1Image:
    values = np.asanyarray(image.dataobj)
    if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise InputError(f"{what} must contain only finite numbers")
    return new_image(values, image.affine)


def _voxels(given: PublicImage | None, voxel_size: float | None) -> Nifti1Image:
    """Return the mask of the voxels, by default that of the MNI152 template."""
    if given is None:
        from nilearn.datasets import load_mni152_brain_mask

        mask: Nifti1Image = load_mni152_brain_mask()
    else:
        mask = given.image
    if len(mask.shape) != 3:
        raise InputError(f"mask must be 3-D, got shape {mask.shape}")
    inside = new_image(np.asanyarray(mask.dataobj) != 0, mask.affine)
    if voxel_size is not None:
        from nilearn.image import resample_img

        inside = resample_img(inside, target_affine=np.diag([voxel_size] * 3), interpolation="nearest")
    count = np.count_nonzero(np.asanyarray(inside.dataobj))
    if not 2 <= count <= MOST_VOXELS:
        raise InputError(
            f"mask must have between 2 and {MOST_VOXELS:,} voxels, got {count:,}; adjust voxel_size"
        )
    return inside


def _regions(atlas: Nifti1Image, mask: PublicImage | None) -> Nifti1Image:
    """Return the regions, restricted to the mask if one is given."""
    if len(atlas.shape) not in (3, 4):
        raise InputError(f"atlas must be 3-D (labels) or 4-D (maps), got shape {atlas.shape}")
    values = np.asanyarray(atlas.dataobj)
    if mask is not None:
        grid = mask.image
        if atlas.shape[:3] != grid.shape or not np.allclose(atlas.affine, grid.affine, atol=1e-3):
            affines = "equal" if np.allclose(atlas.affine, grid.affine) else "different"
            raise InputError(
                f"mask must be on the grid of the atlas; got shapes {grid.shape} and {atlas.shape[:3]}, "
                f"affines {affines}"
            )
        inside = np.asanyarray(grid.dataobj) != 0
        values = np.where(inside if values.ndim == 3 else inside[..., np.newaxis], values, 0)
    return new_image(_labels(values) if values.ndim == 3 else _maps(values), atlas.affine)


def _labels(values: Any) -> Any:
    rounded = np.rint(values).astype(np.int32)
    if (rounded != values).any() or (rounded < 0).any():
        raise InputError("atlas must contain non-negative integers, one for each region")
    count = len(np.unique(rounded[rounded != 0]))
    if count < 2:
        raise InputError(f"atlas must have at least 2 regions, got {count}")
    return rounded


def _maps(values: Any) -> Any:
    empty = np.flatnonzero(~values.any(axis=(0, 1, 2)))
    if values.shape[3] < 2:
        raise InputError(f"atlas must have at least 2 maps, got {values.shape[3]}")
    if empty.size:
        raise InputError(f"atlas: map {empty[0] + 1} is zero everywhere; remove it from the image")
    return values
