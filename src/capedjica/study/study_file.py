"""Read, validate, hash and write ``study.toml``, the agreement between all parties of a study."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.ica.basis import KEPT
from capedjica.algorithms.sequence import InSequence, Step
from capedjica.data.features import MOST, Count, FeatureTable, feature_problems, open_features
from capedjica.data.scans import Features
from capedjica.errors import CapedjicaError, InputError
from capedjica.mechanisms.contract import Contract, MaskName, MechanismName, Stage
from capedjica.mechanisms.release import MAX_BLOCK_WORDS
from capedjica.mechanisms.terms import DELTA, RESERVE, Terms
from capedjica.privacy.wording import Guarantee
from capedjica.securesum.identity import PublicIdentity
from capedjica.study import schema_1
from capedjica.study.analyses import AnalysisTable, IcaTable, Setting, provider, table_class
from capedjica.study.canonical import canonical
from capedjica.study.planned_releases import planned_releases
from capedjica.study.public_files import WithFiles, file_names, file_problems, with_hashes
from capedjica.tools.atomic_files import write_whole, writing
from capedjica.tools.toml import check_schema, listed, parse_toml, problems, toml_value

SCHEMA: Final = 2
MAX_TITLE: Final = 500
MOST_ANALYSES: Final = 20
Several = Annotated[int, msgspec.Meta(ge=2, le=MOST)]
# Budgets outside these limits are assumed to be typing errors.
LEAST_EPSILON, MOST_EPSILON = 1e-9, 1e9
Epsilon = Annotated[float, msgspec.Meta(ge=LEAST_EPSILON, le=MOST_EPSILON)]
_FEATURE_COMMENTS: Final = {
    "n_features": "Features per time point: columns, voxels or regions, the same at every site.",
    "scan_length": "Planned number of time points of a typical scan; scans may be shorter or longer.",
    "image_shape": "Shape [height, width] of the image whose pixels are the columns; the public basis is "
    "smooth cosines.",
    "atlas": "Atlas image, stored next to this file: labels (3-D) or maps (4-D).",
    "atlas_sha256": "SHA-256 of the atlas, which must be the same at every site.",
    "mask": "Mask image, stored next to this file.",
    "mask_sha256": "SHA-256 of the mask, which must be the same at every site.",
    "voxel_size": "Voxel size in mm.",
    "space": "Template space required of BIDS derivatives.",
    "smoothing_fwhm": "FWHM in mm of the spatial smoothing of each volume.",
    "detrend": "Remove a linear trend from each feature of a scan.",
    "standardize": "Divide each feature of a scan by its standard deviation.",
    "low_pass": "Low-pass cutoff in Hz, applied to each scan.",
    "high_pass": "High-pass cutoff in Hz, applied to each scan.",
    "confounds": "nilearn strategies for the regression of fMRIPrep confounds out of each scan.",
    "columns": "Names of the columns of the table that has one row per participant.",
}
_NOTHING: Final = (
    "analysis: the study would release nothing, because a template without group_maps only repeats the "
    "template; set group_maps = true, or add an analysis of its networks, such as their mean connectivity"
)
# A basis with more pixels would be useless: its coefficients would not fit into a release.
_MOST_PIXELS: Final = int(math.sqrt(2 * MAX_BLOCK_WORDS) / KEPT**2)


class PrivacyTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The table ``[privacy]``: the budget and the mechanism.

    Attributes
    ----------
    epsilon : float
        Largest privacy cost per participant, for all releases in total; required unless nothing is private.
    delta : float
        Delta of the guarantee.
    mechanism : str
        "cape": correlated noise, no trusted party. "conventional": independent noise of each site. "local":
        each site alone. "pooled" and "none" require trust in the aggregator.
    masking : str
        "uniform": masks uniform over the whole ring. "paper": Gaussian masks, for comparison.
    n_colluding : int or "third"
        Sites that may collude with the aggregator without breaking the guarantee; "third" is
        max(1, ceil(S/3) - 1) of S sites.
    threshold : int
        Number of sites that must stay to the end of a release; by default more than two thirds.
    reserve : float
        Fraction of the budget reserved for releases repeated after a site was lost or the run was
        interrupted.
    insecure_noise : bool
        Noise from a fixed seed, to repeat a run exactly: not private.
    """

    epsilon: Epsilon | None = None
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] = DELTA
    mechanism: MechanismName = "cape"
    masking: MaskName = "uniform"
    n_colluding: Annotated[int, msgspec.Meta(ge=0, le=MOST)] | Literal["third"] = "third"
    threshold: Several | None = None
    reserve: Annotated[float, msgspec.Meta(ge=0, lt=1)] = RESERVE
    insecure_noise: bool = False


class SiteTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One site: an element of ``[[sites]]``.

    Attributes
    ----------
    name : str
        Name of the site, as on its card.
    subjects : int
        Number of participants enrolled, which is public.
    card : str
        The site's public key, as ``capedjica site init`` prints it.
    epsilon : float
        Largest privacy cost per participant of this site, if it differs from that of the study.
    """

    name: str
    subjects: Count
    card: str
    epsilon: Epsilon | None = None


class _Frame(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of a ``study.toml`` except its analyses."""

    schema: int = SCHEMA
    title: str
    features: FeatureTable = FeatureTable()
    privacy: PrivacyTable
    sites: tuple[SiteTable, ...] = ()


class StudyFile(_Frame, frozen=True, kw_only=True):
    """The content of a ``study.toml``, with its analyses in order.

    Attributes
    ----------
    schema : int
        Version of this format. Files of schema 1 are still read.
    title : str
        Title of the study, on one line.
    features : FeatureTable
        Features computed from each scan, by the same public rules at every site.
    privacy : PrivacyTable
        Budget and mechanism.
    sites : list
        The sites, at least two in a study that runs.
    analyses : list
        One table ``[analysis]``, or several ``[[analysis]]``, which run in this order; ``kind`` selects the
        fields.
    """

    analyses: tuple[AnalysisTable, ...] = msgspec.field(name="analysis")

    @property
    def with_files(self) -> tuple[WithFiles, ...]:
        """The tables that may name public files."""
        return (self.features, *self.analyses)

    @property
    def participant_columns(self) -> tuple[str, ...]:
        """The columns of ``participants.tsv`` used in group comparisons; empty in most studies."""
        return tuple(dict.fromkeys(name for table in self.analyses for name in table.participant_columns))

    @property
    def networks(self) -> IcaTable | None:
        """The first analysis that estimates brain networks."""
        return next((table for table in self.analyses if isinstance(table, IcaTable)), None)


def read_study_file(path: str | os.PathLike[str]) -> StudyFile:
    """Read a ``study.toml`` of any schema; raise an InputError that lists all its problems."""
    file = Path(path)
    table = parse_toml(file, "expected a study.toml or its folder")
    found: list[str] = []
    if check_schema(file, schema_1.with_schema(table), 1, SCHEMA) == 1:
        found, table = schema_1.problems(table), schema_1.upgraded(table)
    found = found or content_problems(table)
    if found:
        raise InputError(listed(str(file), found))
    try:
        return to_content(table)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"{file}: {error}") from None


def content_problems(table: dict[str, Any]) -> list[str]:
    """Return the problems of each table of a study, checked separately."""
    frame, analyses = _apart(table)
    found = problems(frame, _Frame)
    if not analyses:
        found.append("analysis is missing; expected one [analysis] table, or several [[analysis]] tables")
    if len(analyses) > MOST_ANALYSES:
        found.append(f"analysis: expected at most {MOST_ANALYSES} analyses, got {len(analyses)}")
    for number, analysis in enumerate(analyses, start=1):
        where = _place(number, len(analyses))
        if not isinstance(analysis, dict):
            found.append(f"analysis: expected a table, got {str(analysis)[:60]!r}")
            continue
        try:
            found += problems(analysis, table_class(analysis.get("kind", "ica")), where)
        except InputError as error:
            found.append(str(error).replace("analysis.", where, 1))
    return found


def _place(number: int, n_analyses: int) -> str:
    """Return the prefix of the keys of an analysis, with its number if there are several."""
    return f"analysis[{number}]." if n_analyses > 1 else "analysis."


def _apart(table: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the content without the analyses, and the analyses as a list."""
    analyses = table.get("analysis", [])
    frame = {key: value for key, value in table.items() if key != "analysis"}
    return frame, list(analyses) if isinstance(analyses, list | tuple) else [analyses]


def to_content(table: dict[str, Any]) -> StudyFile:
    """Convert tables that passed :func:`content_problems` to the content of a study."""
    frame, analyses = _apart(table)
    plain = msgspec.convert(frame, _Frame)
    tables = [msgspec.convert(one, table_class(one.get("kind", "ica"))) for one in analyses]
    return StudyFile(
        **{field: getattr(plain, field) for field in plain.__struct_fields__}, analyses=tuple(tables)
    )


@dataclass(frozen=True, eq=False)
class StudyStep:
    """One analysis of a study: its table, its setting, the analysis and its stages in the contract."""

    table: AnalysisTable
    setting: Setting
    analysis: Analysis[Any]
    stages: range

    @property
    def name(self) -> str:
        """Name of the analysis."""
        return self.table.called


@dataclass(frozen=True, eq=False)
class Study:
    """A study: the content of its ``study.toml`` and everything derived from it.

    Attributes
    ----------
    content : StudyFile
        Content of the ``study.toml``.
    folder : Path
        Folder of the public files of the study: an atlas, a mask or a template.
    """

    content: StudyFile
    folder: Path = Path()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Study:
        """Read and validate a ``study.toml``, given its path or that of its folder."""
        file = study_path(path)
        study = cls(read_study_file(file), file.parent)
        found = study.problems()
        if found:
            raise InputError(listed(str(file), found))
        return study

    def problems(self) -> list[str]:
        """Return all problems that prevent the study from running."""
        found = [*self.draft_problems(), *_too_few(self.content.sites)] or _refusals(self._roster)
        return found or _refusals(lambda: self.features) or _refusals(self._check_releases)

    def draft_problems(self) -> list[str]:
        """Return the problems that adding sites cannot solve, without opening the public files."""
        content = self.content
        return content_problems(msgspec.to_builtins(content)) or [
            *_title_problems(content.title),
            *_feature_problems(content.features),
            *_name_problems(content),
            *self._analysis_problems(),
            *_site_problems(content.sites),
            *_refusals(self._budgets),
        ]

    def _analysis_problems(self) -> list[str]:
        n_analyses = len(self.content.analyses)
        return [
            problem.replace("analysis.", _place(number, n_analyses))
            for number, (table, setting) in enumerate(self._settings, start=1)
            for problem in (*table.problems(setting), *file_problems(table, "analysis."))
        ]

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of every value of the study, independent of comments and the order of keys.

        The public files are covered through their own hashes, an analysis of another package through the
        name and version of that package, and values derived from theory through their constants.
        """
        # Converted as if read from a file, where 2 and 2.0 are the same number.
        content = to_content(msgspec.to_builtins(self.content))
        if content.schema == 1:
            return schema_1.hash_of(content)
        foreign = {table.kind: provider(table.kind) for table in content.analyses if provider(table.kind)}
        constants = {table.called: table.constants for table in content.analyses if table.constants}
        besides = [msgspec.msgpack.encode(own, order="deterministic") for own in (foreign, constants) if own]
        return hashlib.sha256(b"".join([b"capedjica/study/2", canonical(content), *besides])).digest()

    @cached_property
    def features(self) -> Features:
        """The features computed from each scan."""
        return open_features(self.content.features, self.folder, self.content.features.n_features)

    def varied(self, **changes: Any) -> Study:
        """Return a study with changed content and the same features, which are not opened again."""
        other = Study(msgspec.structs.replace(self.content, **changes), self.folder)
        other.__dict__["features"] = self.features
        return other

    @cached_property
    def _settings(self) -> list[tuple[AnalysisTable, Setting]]:
        """Each analysis with its setting."""
        tables, found = self.content.analyses, []
        for number, (table, share) in enumerate(zip(tables, _shares(tables), strict=True)):
            earlier = {other.called: other for other in tables[:number]}
            noise = self._noise(share) if table.releases else 0.0
            setting = Setting(
                self.content.features, lambda: self.features, noise, earlier, self.folder, self._enrolled
            )
            found.append((table, setting))
        return found

    @property
    def _enrolled(self) -> dict[str, int]:
        return {site.name: site.subjects for site in self.content.sites}

    def _noise(self, share: float) -> float:
        try:
            return self._terms.mean_noise([site.subjects for site in self.content.sites], share)
        except CapedjicaError:  # invalid budgets are reported elsewhere
            return 0.0

    @cached_property
    def steps(self) -> tuple[StudyStep, ...]:
        """The analyses in order."""
        steps, first = [], 0
        for table, setting in self._settings:
            analysis = table.open(setting)
            last = first + len(analysis.stages())
            steps.append(StudyStep(table, setting, analysis, range(first, last)))
            first = last
        return tuple(steps)

    @cached_property
    def analysis(self) -> Analysis[Any]:
        """The only analysis, or the sequence of all analyses."""
        if len(self.steps) == 1:
            return self.steps[0].analysis
        shares = _shares(self.content.analyses)
        return InSequence(
            tuple(
                Step(step.name, share, step.analysis) for step, share in zip(self.steps, shares, strict=True)
            )
        )

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Sentences about what the analyses exclude from the guarantee, or what it assumes of them."""
        return tuple(dict.fromkeys(words for table in self.content.analyses for words in table.not_covered))

    def guarantee(self, site: str | None = None) -> Guarantee:
        """Return the guarantee and its assumptions, for a site or for the site with the largest budget."""
        return replace(self.contract.guarantee(site), not_covered=self.not_covered)

    @property
    def networks(self) -> StudyStep | None:
        """The first analysis that estimates brain networks."""
        return next((step for step in self.steps if isinstance(step.table, IcaTable)), None)

    def results_folder(self, step: StudyStep) -> str:
        """Return the subfolder of a run with the results of an analysis; empty for a single analysis."""
        return step.name if len(self.steps) > 1 else ""

    @property
    def fewest_timepoints(self) -> int:
        """Minimum number of time points that every analysis can use."""
        return max(table.fewest_timepoints(setting) for table, setting in self._settings)

    @cached_property
    def contract(self) -> Contract:
        """The contract between aggregator and sites, bound to the hash of this study."""
        self._budgets()
        return self._terms.contract(
            self.content.title,
            self._cards(),
            [site.subjects for site in self.content.sites],
            self.analysis.stages(),
            agreement=self.hash,
        )

    def _check_releases(self) -> None:
        """Raise InputError if a planned release is impossible."""
        _check_sizes(self.analysis.stages())
        planned_releases(self.contract)

    @cached_property
    def _terms(self) -> Terms:
        privacy = self.content.privacy
        given = self._epsilons()
        return Terms(
            epsilon=None if privacy.mechanism == "none" else given,
            delta=privacy.delta,
            mechanism=privacy.mechanism,
            masking=privacy.masking,
            n_colluding=privacy.n_colluding,
            threshold=privacy.threshold,
            reserve=privacy.reserve,
            insecure_noise=privacy.insecure_noise,
        )

    def _cards(self) -> list[PublicIdentity]:
        return [PublicIdentity.from_card(site.card) for site in self.content.sites]

    def _roster(self) -> None:
        self._terms.roster(self._cards())

    def _epsilons(self) -> Mapping[str, float]:
        privacy, sites = self.content.privacy, self.content.sites
        given = {site.name: privacy.epsilon if site.epsilon is None else site.epsilon for site in sites}
        return {name: epsilon for name, epsilon in given.items() if epsilon is not None}

    def _budgets(self) -> None:
        """Raise InputError if a budget is missing, or given without effect."""
        given = self._epsilons()
        if self.content.privacy.mechanism == "none":
            if given:
                raise InputError(
                    "privacy.epsilon must not be given for mechanism 'none', which is not private; remove it"
                )
            return
        missing = [site.name for site in self.content.sites if site.name not in given]
        if missing:
            raise InputError(
                f"privacy.epsilon is missing, and site {missing[0]} has no epsilon either; give one of them"
            )

    @property
    def n_subjects(self) -> int:
        """Number of subjects of all sites."""
        return sum(site.subjects for site in self.content.sites)


def study_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a ``study.toml``, given its path or that of its folder."""
    return Path(path) / "study.toml" if Path(path).is_dir() else Path(path)


def changes(earlier: StudyFile, later: StudyFile) -> list[str]:
    """Return one line for each value that differs between two versions of a study."""
    before, now = (_flat(msgspec.to_builtins(content)) for content in (earlier, later))
    return [
        f"{key}: {_shown(before.get(key))} changed to {_shown(now.get(key))}"
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
    """Write a commented ``study.toml`` atomically; refuse an invalid study or an existing file.

    The public files are in ``folder``, by default that of the file to be written. Missing hashes are filled
    in. A ``draft`` may still lack sites.
    """
    file = study_path(path)
    home = file.parent if folder is None else Path(folder)
    content = msgspec.structs.replace(
        content,
        features=with_hashes(content.features, home),
        analyses=tuple(with_hashes(table, home) for table in content.analyses),
    )
    study = Study(content, home)
    found = study.draft_problems() if draft else study.problems()
    if found:
        raise InputError(listed("the study", found))
    text = schema_1.text_of(content) if content.schema == 1 else _text(content)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text.encode(), new=True)


def _text(content: StudyFile) -> str:
    given = [
        {
            field.encode_name: value
            for field in msgspec.structs.fields(table)
            if (value := getattr(table, field.name)) != field.default or field.encode_name == "kind"
        }
        for table in content.analyses
    ]
    return (
        _templates()
        .get_template("study.toml.jinja")
        .render(
            study=content,
            analyses=list(zip(content.analyses, given, strict=True)),
            feature_comments=_FEATURE_COMMENTS,
        )
    )


def site_block(site: SiteTable) -> str:
    """Return the lines of a ``study.toml`` for one site, including the empty line before them."""
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


def _title_problems(title: str) -> list[str]:
    """Return the problems of a title; control characters could manipulate a terminal."""
    if not title.strip():
        return ["title is empty; expected a short description of the study"]
    if len(title) > MAX_TITLE or not title.isprintable():
        return [f"title must be one line of at most {MAX_TITLE} printable characters"]
    return []


def _feature_problems(table: FeatureTable) -> list[str]:
    found = [*feature_problems(table), *file_problems(table)]
    if table.kind != "table":
        found += [
            f"features.{key} is missing"
            for key in ("n_features", "scan_length")
            if getattr(table, key) is None
        ]
    if table.image_shape is None:
        return found
    if table.kind != "columns":
        found.append(
            "features.image_shape is only allowed for kind 'columns', where columns are pixels; features of "
            f"kind {table.kind!r} have their own grid"
        )
    pixels, shape = math.prod(table.image_shape), list(table.image_shape)
    if pixels != table.n_features:
        found.append(
            f"features.image_shape {shape} has {pixels} pixels, but features.n_features is {table.n_features}"
        )
    if pixels > _MOST_PIXELS:
        found.append(f"features.image_shape must have at most {_MOST_PIXELS} pixels, got {pixels}")
    return found


def _name_problems(content: StudyFile) -> list[str]:
    """Return the problems of the names and shares of the analyses."""
    tables = content.analyses
    if content.schema == 1 and not (len(tables) == 1 and schema_1.had(tables[0])):
        return ["schema 1 allows one analysis of kind 'ica'; other analyses require schema = 2"]
    names = file_names(content.with_files)
    found = [
        f"analysis: the results of {table.called!r} would replace the file of that name; choose another name"
        for table in tables
        if table.called in names
    ]
    found += [
        f"analysis: {times} analyses have the name {name!r}; give each its own name (name = ...)"
        for name, times in Counter(table.called for table in tables).items()
        if times > 1
    ]
    found += [
        f"analysis: {table.called!r} releases nothing, so it must not have a share of the budget; got "
        f"{table.share:g}"
        for table in tables
        if table.share is not None and not table.releases
    ]
    tables = tuple(table for table in tables if table.releases)
    if not tables:
        return [*found, _NOTHING]
    given = [table.share for table in tables if table.share is not None]
    total, some = math.fsum(given), len(given) < len(tables)
    if total > 1 + 1e-9 or (some and given and total > 1 - 1e-9):
        found.append(
            f"analysis: shares must leave a part of the budget for every analysis; got {total:.9g} in total"
        )
    elif not some and total < 1 - 1e-9:
        found.append(
            f"analysis: shares must add up to 1, or at least one must be omitted; got {total:.9g} in total"
        )
    return found


def _shares(tables: Sequence[AnalysisTable]) -> list[float]:
    """Return the share of the budget of each analysis: as given, or an equal part of the rest.

    An analysis that releases nothing has no share.
    """
    spending = [table for table in tables if table.releases]
    given = [table.share for table in spending if table.share is not None]
    others = len(spending) - len(given)
    rest = max(0.0, 1 - math.fsum(given)) / max(1, others)
    return [0.0 if not table.releases else rest if table.share is None else table.share for table in tables]


def _check_sizes(stages: Iterable[Stage]) -> None:
    """Raise InputError if a release has more numbers than fit into a block."""
    for query in (stage.query for stage in stages):
        if query.size > MAX_BLOCK_WORDS:
            raise InputError(
                f"release '{query.label}' would have {query.size:,} numbers; at most {MAX_BLOCK_WORDS:,} are "
                "possible. Use fewer features, for example the regions of an atlas"
            )


def _too_few(sites: Sequence[SiteTable]) -> list[str]:
    if len(sites) >= 2:
        return []
    return [f"sites: expected at least 2 sites, got {len(sites)}; add one with `capedjica study add-site`"]


def _site_problems(sites: Sequence[SiteTable]) -> list[str]:
    found = []
    for name, times in Counter(site.name for site in sites).items():
        if times > 1:
            found.append(f"sites: {times} sites have the name {name!r}; site names must be unique")
    for number, site in enumerate(sites, start=1):
        where = f"sites[{number}].card"
        try:
            named = PublicIdentity.from_card(site.card).name
        except InputError as error:
            found.append(f"{where}: {error}")
            continue
        if named != site.name:
            found.append(f"{where} belongs to site {named!r}, but the name given is {site.name!r}")
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
    """Return the leaves of nested tables by their dotted keys; sites are keyed by name."""
    if isinstance(value, dict):
        items = [(f"{where}.{key}".lstrip("."), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        items = [(f"{where}.{item.get('name', i)}", item) for i, item in enumerate(value, start=1)]
    else:
        return {where: value}
    return {key: leaf for place, item in items for key, leaf in _flat(item, place).items()}


def _shown(value: Any) -> str:
    return "nothing" if value is None else toml_value(value)
