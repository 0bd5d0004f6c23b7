"""Schema 1 of ``study.toml``, from before there were several kinds of analyses: conversion and hash.

A study that was approved by its schema 1 hash keeps that hash, whatever its representation in memory.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capedjica.tools.toml import suggestion, toml_value

if TYPE_CHECKING:
    from capedjica.study.analyses.base import AnalysisTable
    from capedjica.study.study_file import StudyFile

# Keys of [features] that schema 1 had in [analysis].
_MOVED: Final = ("n_features", "scan_length", "image_shape")
_ANALYSIS: Final = ("method", "n_components", "max_iter")
_FEATURES: Final = (
    *("kind", "atlas", "atlas_sha256", "mask", "mask_sha256", "voxel_size", "space", "smoothing_fwhm"),
    *("detrend", "standardize", "low_pass", "high_pass", "confounds"),
)
_PRIVACY: Final = (
    *("epsilon", "delta", "mechanism", "mask", "n_colluding", "threshold", "reserve", "insecure_noise"),
)
_SITE: Final = ("name", "subjects", "card", "epsilon")


def with_schema(table: dict[str, Any]) -> dict[str, Any]:
    """Return a file without a schema as schema 1 if its keys are in the tables of schema 1."""
    analysis = table.get("analysis")
    before = isinstance(analysis, dict) and any(key in analysis for key in _MOVED)
    return {"schema": 1} | table if before else table


def problems(table: dict[str, Any]) -> list[str]:
    """Return the problems of [analysis] under schema 1, such as unknown keys."""
    analysis = table.get("analysis")
    if not isinstance(analysis, dict):
        return ["analysis must be one table; several require schema = 2"] if analysis is not None else []
    known = (*_ANALYSIS, *_MOVED)
    unknown = [key for key in analysis if key not in known]
    return [f"analysis.{key[:60]} is not a key of schema 1; {suggestion(key, known)}" for key in unknown]


def upgraded(table: dict[str, Any]) -> dict[str, Any]:
    """Return a file of schema 1 in the current layout; invalid values stay invalid."""
    analysis, features, privacy = (table.get(key, {}) for key in ("analysis", "features", "privacy"))
    if not all(isinstance(part, dict) for part in (analysis, features, privacy)):
        return table
    moved = {key: analysis[key] for key in _MOVED if key in analysis}
    renamed = {"masking" if key == "mask" else key: value for key, value in privacy.items()}
    return table | {
        "schema": 1,
        "analysis": {key: value for key, value in analysis.items() if key not in _MOVED},
        "features": features | moved,
        **({"privacy": renamed} if privacy else {}),
    }


def had(table: AnalysisTable) -> bool:
    """Return whether an analysis existed in schema 1, so that the schema 1 hash covers all of it."""
    return table.kind == "ica" and getattr(table, "method", "") in ("subject", "paper")


def plain(content: StudyFile) -> dict[str, Any]:
    """Return all values of a schema 1 study in the layout of schema 1."""
    now = msgspec.to_builtins(content)
    (ica,), features = now["analysis"], now["features"]
    privacy = now["privacy"] | {"mask": now["privacy"]["masking"]}
    return {
        "schema": 1,
        "title": content.title,
        "analysis": {key: ica[key] for key in _ANALYSIS} | {key: features[key] for key in _MOVED},
        "features": {key: features[key] for key in _FEATURES},
        "privacy": {key: privacy[key] for key in _PRIVACY},
        "sites": [{key: site[key] for key in _SITE} for site in now["sites"]],
    }


def hash_of(content: StudyFile) -> bytes:
    """Return the schema 1 hash, which omits [features] for unprocessed table columns."""
    words = plain(content)
    if all(value in (None, False, "columns", (), []) for value in words["features"].values()):
        del words["features"]
    encoded = msgspec.msgpack.encode(words, order="deterministic")
    return hashlib.sha256(b"capedjica/study/1" + encoded).digest()


def text_of(content: StudyFile) -> str:
    """Return a schema 1 file as text, without comments."""
    words = plain(content)
    lines = [f"schema = 1\ntitle = {toml_value(words['title'])}"]
    tables = [(f"[{name}]", words[name]) for name in ("analysis", "features", "privacy")]
    for heading, table in [*tables, *(("[[sites]]", site) for site in words["sites"])]:
        given = {key: value for key, value in table.items() if value is not None}
        lines += ["", heading, *(f"{key} = {toml_value(value)}" for key, value in given.items())]
    return "\n".join(lines) + "\n"
