"""The table ``[features]`` of a study: what every site makes of a recording, from public files alone."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]


class FeatureTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What the features are.

    Attributes
    ----------
    kind : {"columns", "atlas", "voxels"}
        The columns of tables as they are; regions of an atlas; voxels of a mask.
    atlas, atlas_sha256 : str, optional
        The image of the regions, labels (3-D) or maps (4-D), in a path relative to the study.toml, and its
        hash.
    mask, mask_sha256 : str, optional
        The image of the mask; without it that of the MNI152 template which nilearn brings along.
    voxel_size : float, optional
        Side of the voxels in mm, for kind "voxels".
    space : str, optional
        The template space that BIDS derivatives must be in.
    smoothing_fwhm : float, optional
        In mm.
    detrend, standardize : bool
        Take out a line; divide every feature by its standard deviation.
    low_pass, high_pass : float, optional
        In Hz; they need the repetition time of every recording.
    confounds : list of str
        Strategies of :func:`nilearn.interfaces.fmriprep.load_confounds`.
    """

    kind: Literal["columns", "atlas", "voxels"] = "columns"
    atlas: str | None = None
    atlas_sha256: str | None = None
    mask: str | None = None
    mask_sha256: str | None = None
    voxel_size: Positive | None = None
    space: str | None = None
    smoothing_fwhm: Positive | None = None
    detrend: bool = False
    standardize: bool = False
    low_pass: Positive | None = None
    high_pass: Positive | None = None
    confounds: tuple[str, ...] = ()
