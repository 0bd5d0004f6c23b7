"""``study.toml``: what all parties of a study agree on and nothing else; a site approves its hash."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from capedjica.algorithms.ica.basis import KEPT, low_pass
from capedjica.algorithms.ica.paper_method import PaperMethod
from capedjica.algorithms.ica.scan_length import LONGEST_SCAN
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.method import Method
from capedjica.data.features import FeatureTable, feature_problems, open_features
from capedjica.data.scans import Features
from capedjica.errors import CapedjicaError, InputError
from capedjica.mechanisms.contract import Contract, MaskName, MechanismName, Stage
from capedjica.mechanisms.release import MAX_BLOCK_WORDS
from capedjica.mechanisms.variance import mean_noise
from capedjica.privacy import gaussian_mu, validate
from capedjica.securesum.identity import PublicIdentity
from capedjica.securesum.parameters import Roster, default_threshold
from capedjica.study.planned_releases import planned_releases
from capedjica.study.public_files import file_problems, with_hashes
from capedjica.tools.toml import listed, problems, read_toml, toml_value

SCHEMA: Final = 1
MethodName = Literal["subject", "paper"]
# No study has more of anything that is counted.
MOST: Final = 10**9
MOST_ITERATIONS: Final = 10**6
MAX_TITLE: Final = 500
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Several = Annotated[int, msgspec.Meta(ge=2, le=MOST)]
# A budget beyond these is a slip of the keyboard.
LEAST_EPSILON, MOST_EPSILON = 1e-9, 1e9
Epsilon = Annotated[float, msgspec.Meta(ge=LEAST_EPSILON, le=MOST_EPSILON)]
_FEATURE_COMMENTS: Final = {
    "atlas": "The image of the regions, beside this file: labels (3-D) or maps (4-D).",
    "atlas_sha256": "Its hash: every site must have the same.",
    "mask": "The image of the mask, beside this file.",
    "mask_sha256": "Its hash: every site must have the same.",
    "voxel_size": "Side of the voxels, in mm.",
    "space": "The template space that BIDS derivatives must be in.",
    "smoothing_fwhm": "Each volume is smoothed, in mm.",
    "detrend": "A straight line is taken out of every feature of a scan.",
    "standardize": "Every feature of a scan is divided by its standard deviation.",
    "low_pass": "Faster changes are taken out of every scan, in Hz.",
    "high_pass": "Slower changes are taken out of every scan, in Hz.",
    "confounds": "What fMRIPrep found to be noise is taken out of every scan, by nilearn's strategies.",
    "columns": "The columns of the table that has a row per person, by their names.",
}
# The matrix of a basis with more pixels would be of no use: a release could not hold what it keeps.
_MOST_PIXELS: Final = int(math.sqrt(2 * MAX_BLOCK_WORDS) / KEPT**2)


class AnalysisTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What is computed: the table ``[analysis]``."""

    method: MethodName = "subject"
    n_components: Several
    n_features: Several
    scan_length: Annotated[int, msgspec.Meta(ge=2, le=LONGEST_SCAN)]
    image_shape: tuple[Count, Count] | None = None
    max_iter: Annotated[int, msgspec.Meta(ge=1, le=MOST_ITERATIONS)] | None = None


class PrivacyTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What it may cost: the table ``[privacy]``."""

    epsilon: Epsilon | None = None
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-5
    mechanism: MechanismName = "cape"
    mask: MaskName = "uniform"
    n_colluding: Annotated[int, msgspec.Meta(ge=0, le=MOST)] | Literal["third"] = "third"
    threshold: Several | None = None
    # Enough for one rotation that is lost at the very end, at 2.5% more noise.
    reserve: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.05
    insecure_noise: bool = False


class SiteTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One site: an element of ``[[sites]]``."""

    name: str
    subjects: Count
    card: str
    epsilon: Epsilon | None = None


class StudyFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of a ``study.toml``."""

    schema: int = SCHEMA
    title: str
    analysis: AnalysisTable
    features: FeatureTable = FeatureTable()
    privacy: PrivacyTable
    sites: tuple[SiteTable, ...] = ()


@dataclass(frozen=True, eq=False)
class Study:
    """A study as agreed on: its description and everything that follows from it.

    Attributes
    ----------
    content : StudyFile
        The description.
    folder : Path
        Where the public files that it names are, an atlas or a mask.
    """

    content: StudyFile
    folder: Path = Path()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Study:
        """Read and check a ``study.toml``, given itself or its folder."""
        file = study_path(path)
        study = cls(read_toml(file, StudyFile, SCHEMA), file.parent)
        found = study.problems()
        if found:
            raise InputError(listed(str(file), found))
        return study

    def problems(self) -> list[str]:
        """Return everything that keeps the study from being run, in words."""
        found = [*self.draft_problems(), *_too_few(self.content.sites)] or _refusals(self._roster)
        return found or _refusals(lambda: self.features) or _refusals(self._check_releases)

    def draft_problems(self) -> list[str]:
        """Return what is wrong however many sites are still to come; the public files are not opened."""
        content = self.content
        return problems(msgspec.to_builtins(content), StudyFile) or [
            *_title_problems(content.title),
            *_analysis_problems(content.analysis),
            *_feature_problems(content),
            *_site_problems(content.sites),
            *_refusals(self._budgets),
        ]

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of the content: comments and the order of keys do not count, every value does.

        The files that it names count through their own hashes. Features that are the columns of tables are
        left out, as is all that a study without images does not say.
        """
        # As read back from a file, where 2 and 2.0 are the same number.
        content = msgspec.to_builtins(msgspec.convert(msgspec.to_builtins(self.content), StudyFile))
        if self.content.features == FeatureTable():
            del content["features"]
        plain = msgspec.msgpack.encode(content, order="deterministic")
        return hashlib.sha256(b"capedjica/study/1" + plain).digest()

    @cached_property
    def features(self) -> Features:
        """What a scan is made into."""
        return open_features(self.content.features, self.folder, self.content.analysis.n_features)

    def varied(self, **changes: Any) -> Study:
        """Return a study with other content but the same features, which are not opened again."""
        other = Study(msgspec.structs.replace(self.content, **changes), self.folder)
        other.__dict__["features"] = self.features
        return other

    @cached_property
    def method(self) -> Method:
        """The analysis."""
        table = self.content.analysis
        if table.method == "paper":
            iterations = {} if table.max_iter is None else {"max_iter": table.max_iter}
            return PaperMethod(
                table.n_features, table.n_components, **iterations, scan_length=table.scan_length
            )
        basis = self.features.basis if table.image_shape is None else low_pass(table.image_shape)
        return SubjectMethod(
            table.n_features,
            table.n_components,
            table.scan_length,
            self._mean_noise(),
            table.max_iter,
            basis,
        )

    def _mean_noise(self) -> float:
        privacy, budgets = self.content.privacy, self._budgets()
        if not budgets:
            return 0.0
        subjects = [site.subjects for site in self.content.sites]
        n_colluding = validate.colluding(privacy.n_colluding, len(subjects))
        mu = gaussian_mu(min(budgets), privacy.delta)
        return mean_noise(mu, subjects, n_colluding, privacy.mechanism, privacy.mask)

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

    def _check_releases(self) -> None:
        """Refuse releases that no site would make."""
        _check_sizes(self.method.stages())
        planned_releases(self.contract)

    def _roster(self) -> Roster:
        sites, privacy = self.content.sites, self.content.privacy
        colluding = validate.colluding(privacy.n_colluding, len(sites))
        least = (len(sites) + colluding) // 2 + 1
        threshold = max(default_threshold(len(sites)), least)
        if privacy.threshold is not None:
            threshold = privacy.threshold
        return Roster(tuple(PublicIdentity.from_card(site.card) for site in sites), threshold, colluding)

    def _budgets(self) -> tuple[float, ...]:
        privacy, sites = self.content.privacy, self.content.sites
        given = {site.name: privacy.epsilon if site.epsilon is None else site.epsilon for site in sites}
        if privacy.mechanism == "none":
            if any(epsilon is not None for epsilon in given.values()):
                raise InputError("privacy.epsilon must not be given: mechanism 'none' gives no privacy")
            return ()
        missing = [name for name, epsilon in given.items() if epsilon is None]
        if missing:
            raise InputError(f"privacy.epsilon is missing, and site {missing[0]} has none of its own")
        return tuple(float(epsilon) for epsilon in given.values() if epsilon is not None)

    @property
    def n_subjects(self) -> int:
        """Subjects of all sites."""
        return sum(site.subjects for site in self.content.sites)


def study_path(path: str | os.PathLike[str]) -> Path:
    """Return where a ``study.toml`` is, given itself or its folder."""
    return Path(path) / "study.toml" if Path(path).is_dir() else Path(path)


def changes(earlier: StudyFile, later: StudyFile) -> list[str]:
    """Return in words what became different between two versions of a study."""
    before, now = (_flat(msgspec.to_builtins(content)) for content in (earlier, later))
    return [
        f"{key}: {_shown(before.get(key))} became {_shown(now.get(key))}"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]


def write_study(
    path: str | os.PathLike[str],
    content: StudyFile,
    folder: str | os.PathLike[str] | None = None,
    *,
    draft: bool = False,
) -> None:
    """Write a commented ``study.toml``, whole or not at all and never over a file; refuse a bad study.

    Its public files are in ``folder``, by default in that of the file to be written; hashes that are missing
    are filled in. A ``draft`` may still lack sites.
    """
    file = study_path(path)
    home = file.parent if folder is None else Path(folder)
    content = msgspec.structs.replace(content, features=with_hashes(content.features, home))
    study = Study(content, home)
    found = study.draft_problems() if draft else study.problems()
    if found:
        raise InputError(listed("the study", found))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        template = _templates().get_template("study.toml.jinja")
        _write_new(file, template.render(study=content, feature_comments=_FEATURE_COMMENTS))
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from None


def site_block(site: SiteTable) -> str:
    """Return the lines of a ``study.toml`` about one site, the empty one before them too."""
    return _templates().get_template("study_site.toml.jinja").render(site=site, first=False)


@cache
def _templates() -> Environment:
    environment = Environment(
        autoescape=False,  # noqa: S701 (TOML; every value goes through the filter)
        loader=PackageLoader("capedjica.study"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["toml"] = toml_value
    return environment


def _write_new(file: Path, text: str) -> None:
    """Write a file under another name, then link it to its own, which fails when that is taken."""
    draft = file.with_name(f".{file.name}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        os.link(draft, file)
    except FileExistsError:
        raise InputError(f"{file} exists already and is not overwritten") from None
    finally:
        draft.unlink(missing_ok=True)


def _title_problems(title: str) -> list[str]:
    """Return what a ledger would not take for a title; a terminal would obey some of it."""
    if not title.strip():
        return ["title must say what the study is about, got nothing"]
    if len(title) > MAX_TITLE or not title.isprintable():
        return [f"title must be text on one line, of at most {MAX_TITLE} printable characters"]
    return []


def _analysis_problems(table: AnalysisTable) -> list[str]:
    found = []
    for key in ("n_features", "scan_length"):
        most = getattr(table, key)
        if table.n_components > most:
            found.append(f"analysis.n_components must be at most {key}, {most}; got {table.n_components}")
    if table.image_shape is None:
        return found
    pixels, shape = math.prod(table.image_shape), list(table.image_shape)
    if pixels != table.n_features:
        found.append(f"analysis.image_shape {shape} has {pixels} pixels, n_features is {table.n_features}")
    if pixels > _MOST_PIXELS:
        found.append(f"analysis.image_shape must have at most {_MOST_PIXELS} pixels, got {pixels}")
    return found


def _feature_problems(content: StudyFile) -> list[str]:
    found = [*feature_problems(content.features), *file_problems(content.features)]
    if content.features.kind != "columns" and content.analysis.image_shape is not None:
        found.append(
            "analysis.image_shape is for tables whose columns are pixels; features of kind "
            f"{content.features.kind!r} have a grid of their own"
        )
    return found


def _check_sizes(stages: Iterable[Stage]) -> None:
    """Refuse releases of more numbers than fit into a block."""
    for query in (stage.query for stage in stages):
        if query.size > MAX_BLOCK_WORDS:
            raise InputError(
                f"'{query.label}' would have {query.size:,} numbers, more than the {MAX_BLOCK_WORDS:,} of a "
                "release: analyse fewer features, regions of an atlas for example"
            )


def _too_few(sites: Sequence[SiteTable]) -> list[str]:
    if len(sites) >= 2:
        return []
    return [
        f"sites must be at least 2, got {len(sites)}; `capedjica study add-site` adds one to a study.toml"
    ]


def _site_problems(sites: Sequence[SiteTable]) -> list[str]:
    found = []
    for name, times in Counter(site.name for site in sites).items():
        if times > 1:
            found.append(f"sites: {times} of them have the name {name!r}")
    for number, site in enumerate(sites, start=1):
        where = f"sites[{number}].card"
        try:
            named = PublicIdentity.from_card(site.card).name
        except InputError as error:
            found.append(f"{where}: {error}")
            continue
        if named != site.name:
            found.append(f"{where} is that of site {named}, not of {site.name!r}")
    return found


def _refusals(*attempts: Callable[[], object]) -> list[str]:
    found = []
    for attempt in attempts:
        try:
            attempt()
        except CapedjicaError as error:
            found.append(str(error))
    return found


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
    return "nothing" if value is None else toml_value(value)
