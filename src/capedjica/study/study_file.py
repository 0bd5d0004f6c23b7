"""``study.toml``: what all parties of a study agree on and nothing else; a site approves its hash."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from capedjica.algorithms.basis import low_pass
from capedjica.algorithms.capedjica import PaperMethod
from capedjica.algorithms.method import Method
from capedjica.algorithms.subject import SubjectMethod
from capedjica.errors import CapedjicaError, InputError
from capedjica.mechanisms.contract import Contract, MaskName, MechanismName
from capedjica.privacy import validate
from capedjica.securesum import PublicIdentity, Roster
from capedjica.securesum.parameters import default_threshold
from capedjica.study.toml import listed, read_toml

SCHEMA: Final = 1
MethodName = Literal["subject", "paper"]


class AnalysisTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What is computed: the table ``[analysis]``."""

    method: MethodName = "subject"
    n_components: int
    n_features: int
    scan_length: int
    image_shape: tuple[int, int] | None = None
    max_iter: int | None = None


class PrivacyTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What it may cost: the table ``[privacy]``."""

    epsilon: float | None = None
    delta: float = 1e-5
    mechanism: MechanismName = "cape"
    mask: MaskName = "uniform"
    n_colluding: int | Literal["third"] = "third"
    threshold: int | None = None
    reserve: float = 0.0
    insecure_noise: bool = False


class SiteTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One site: an element of ``[[sites]]``."""

    name: str
    subjects: int
    card: str
    epsilon: float | None = None


class StudyFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of a ``study.toml``."""

    schema: int = SCHEMA
    title: str
    analysis: AnalysisTable
    privacy: PrivacyTable
    sites: tuple[SiteTable, ...]


@dataclass(frozen=True, eq=False)
class Study:
    """A study as agreed on: its description and everything that follows from it."""

    content: StudyFile

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Study:
        """Read and check a ``study.toml``, given itself or its folder."""
        file = Path(path) / "study.toml" if Path(path).is_dir() else Path(path)
        study = cls(read_toml(file, StudyFile))
        found = study.problems()
        if found:
            raise InputError(listed(str(file), found))
        return study

    def problems(self) -> list[str]:
        """Return everything that keeps the study from being run, in words."""
        content = self.content
        if content.schema != SCHEMA:
            return [f"schema must be {SCHEMA}, got {content.schema}: made for another version of capedjica"]
        found = [*_analysis_problems(content.analysis), *_site_problems(content.sites)]
        if not content.title.strip():
            found.append("title must say what the study is about, got nothing")
        return found or _refusals(lambda: (self.method.stages(), self.contract))

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of the content: comments and the order of keys do not count, every value does."""
        content = msgspec.msgpack.encode(msgspec.to_builtins(self.content), order="deterministic")
        return hashlib.sha256(b"capedjica/study/1" + content).digest()

    @cached_property
    def method(self) -> Method:
        """The analysis."""
        table = self.content.analysis
        if table.method == "paper":
            iterations = {} if table.max_iter is None else {"max_iter": table.max_iter}
            return PaperMethod(table.n_features, table.n_components, **iterations)
        rotations = {} if table.max_iter is None else {"n_rotations": table.max_iter}
        basis = None if table.image_shape is None else low_pass(table.image_shape)
        return SubjectMethod(
            table.n_features, table.n_components, table.scan_length, basis=basis, **rotations
        )

    @cached_property
    def contract(self) -> Contract:
        """What aggregator and sites hold each other to; bound to the hash of this description."""
        content, privacy = self.content, self.content.privacy
        return Contract(
            title=content.title,
            roster=self._roster(),
            subjects=tuple(site.subjects for site in content.sites),
            stages=self.method.stages(),
            epsilon=self._budgets(),
            delta=privacy.delta,
            mechanism=privacy.mechanism,
            mask=privacy.mask,
            reserve=privacy.reserve,
            insecure_noise=privacy.insecure_noise,
            agreement=self.hash,
        )

    def _roster(self) -> Roster:
        sites, privacy = self.content.sites, self.content.privacy
        colluding = validate.colluding(privacy.n_colluding, len(sites))
        least = (len(sites) + colluding) // 2 + 1
        threshold = privacy.threshold or max(default_threshold(len(sites)), least)
        return Roster(tuple(PublicIdentity.from_card(site.card) for site in sites), threshold, colluding)

    def _budgets(self) -> tuple[float, ...]:
        privacy, sites = self.content.privacy, self.content.sites
        given = [privacy.epsilon if site.epsilon is None else site.epsilon for site in sites]
        if privacy.mechanism == "none":
            if any(epsilon is not None for epsilon in given):
                raise InputError("privacy.epsilon must not be given: mechanism 'none' gives no privacy")
            return ()
        missing = [site.name for site, epsilon in zip(sites, given, strict=True) if epsilon is None]
        if missing:
            raise InputError(f"privacy.epsilon is missing, and site {missing[0]} has none of its own")
        return tuple(
            validate.positive("privacy.epsilon", epsilon) for epsilon in given if epsilon is not None
        )

    @property
    def n_subjects(self) -> int:
        """Subjects of all sites."""
        return sum(site.subjects for site in self.content.sites)

    def changes_from(self, earlier: Study) -> list[str]:
        """Return in words what is different from an earlier version."""
        before, now = (_flat(msgspec.to_builtins(study.content)) for study in (earlier, self))
        return [
            f"{key}: {_shown(before.get(key))} became {_shown(now.get(key))}"
            for key in dict.fromkeys([*before, *now])
            if before.get(key) != now.get(key)
        ]


def write_study(path: str | os.PathLike[str], content: StudyFile) -> None:
    """Write a commented ``study.toml``, whole or not at all and never over a file; refuse a bad study."""
    file = Path(path)
    found = Study(content).problems()
    if found:
        raise InputError(listed("the study", found))
    environment = Environment(
        autoescape=False,  # noqa: S701 (TOML; every value goes through the filter)
        loader=PackageLoader("capedjica.study"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["toml"] = lambda value: json.dumps(value, ensure_ascii=False)
    text = environment.get_template("study.toml.jinja").render(study=content)
    draft = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        os.link(draft, file)
    except FileExistsError:
        raise InputError(f"{file} exists already and is not overwritten") from None
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)


def _analysis_problems(table: AnalysisTable) -> list[str]:
    found = []
    for key, least in (("n_components", 2), ("n_features", 2), ("scan_length", 2), ("max_iter", 1)):
        value = getattr(table, key)
        if value is not None and value < least:
            found.append(f"analysis.{key} must be at least {least}, got {value}")
    if table.n_components > table.n_features:
        found.append(
            f"analysis.n_components must be at most n_features, {table.n_features}; got {table.n_components}"
        )
    if table.n_components > table.scan_length:
        found.append(
            f"analysis.n_components must be at most scan_length, {table.scan_length}; "
            f"got {table.n_components}"
        )
    if table.image_shape is not None and math.prod(table.image_shape) != table.n_features:
        found.append(f"analysis.image_shape {list(table.image_shape)} has not {table.n_features} pixels")
    return found


def _site_problems(sites: Sequence[SiteTable]) -> list[str]:
    found = []
    if len(sites) < 2:
        found.append(f"sites must be at least 2, got {len(sites)}")
    for number, site in enumerate(sites, start=1):
        where = f"sites[{number}] ({site.name})"
        if site.subjects < 1:
            found.append(f"{where}.subjects must be at least 1, got {site.subjects}")
        try:
            named = PublicIdentity.from_card(site.card).name
        except InputError as error:
            found.append(f"{where}.card: {error}")
            continue
        if named != site.name:
            found.append(f"{where}.card is that of site {named}")
    return found


def _refusals(make: Any) -> list[str]:
    try:
        make()
    except CapedjicaError as error:
        return [str(error)]
    return []


def _flat(value: Any, where: str = "") -> dict[str, Any]:
    """Return the leaves of nested tables by their place; sites by their name."""
    if isinstance(value, dict):
        items = [(f"{where}.{key}".lstrip("."), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        items = [(f"{where}.{item.get('name', i)}", item) for i, item in enumerate(value, start=1)]
    else:
        return {where: value}
    return {key: leaf for place, item in items for key, leaf in _flat(item, place).items()}


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)
