"""Studies of every kind of analysis on disk, small enough to run in a second or two."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from capedjica.site.home import SiteHome
from capedjica.study.study_file import PrivacyTable, SiteTable, Study, StudyFile, write_study
from tests.support.drafts import ANALYSES, GROUPS, PUBLIC_KNOWLEDGE

SIZES = (6, 9, 7, 8)
LENGTH = 60
MIXING = np.random.default_rng(0).standard_normal((3, 6))


def write_people(
    folder: Path, size: int, rng: np.random.Generator, rows: bool, compared: bool = False
) -> None:
    """Write a table with a row per person, or a scan of each, or both to have them compared."""
    folder.mkdir()
    names = [f"sub-{number:02d}" for number in range(size)]
    if rows or compared:
        lines = ["participant_id\tage\tvolume\tdx"]
        for name in names:
            age, volume, label = rng.uniform(20, 80), rng.uniform(0, 3), rng.integers(0, 2)
            lines.append(f"{name}\t{age:.3f}\t{volume:.3f}\t{label}")
        (folder / "participants.tsv").write_text("\n".join(lines) + "\n")
    if rows:
        return
    for name in names:
        np.save(folder / f"{name}.npy", (rng.laplace(size=(LENGTH, 3)) @ MIXING).astype(np.float32))


def make_kind(folder: Path, kind: str, content: StudyFile | None = None, **privacy) -> Study:
    """Write four sites and the study of a kind into ``folder``; return it as it is read back."""
    kinds = ANALYSES | PUBLIC_KNOWLEDGE | GROUPS
    features, analyses = kinds[kind] if content is None else (content.features, content.analyses)
    rows, rng, sites = features.kind == "table", np.random.default_rng(1), []
    for number, size in enumerate(SIZES, start=1):
        place, name = folder / "sites" / f"s{number}", f"s{number}"
        home = SiteHome.create(
            place, name, 50.0, 20.0, 1e-5, data_kind="table" if rows else "files", simulated=True
        )
        write_people(home.data_path, size, rng, rows, any(table.participant_columns for table in analyses))
        sites.append(SiteTable(name=name, subjects=size, card=home.card().card))
    if any(getattr(table, "template", None) for table in analyses):
        np.save(folder / "template.npy", MIXING + 0.3 * np.eye(3, 6))
    write_study(
        folder / "study.toml",
        StudyFile(
            title=f"A small study: {kind}",
            features=features,
            analyses=analyses,
            privacy=PrivacyTable(**{"epsilon": 10.0} | privacy),
            sites=tuple(sites),
        ),
    )
    return Study.load(folder)


def results_of(folder: Path) -> dict[str, bytes]:
    """Every array and table that a run left, by name."""
    found = [*folder.rglob("*.npy"), *folder.rglob("*.csv")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(found)}


def as_plain(study: Study) -> dict:
    return msgspec.to_builtins(study.content)
