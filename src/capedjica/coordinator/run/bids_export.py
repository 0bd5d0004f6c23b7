"""``capedjica bids-export``: results of a complete run as BIDS derivatives, without any message to a site.

::

    OUT/dataset_description.json
        README.md
        group.html                                                   the report
        group/space-MNI152NLin2009cAsym_desc-ICA_components.nii.gz   maps, one volume per component
              desc-ICA_metrics.tsv                                   stability and grade of each
              desc-NAME_TABLE.tsv                                    tables of other analyses

Names and sidecars: :mod:`capedjica.report.derivatives`. There are no time courses, which no site releases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from capedjica.coordinator.run.labelling import placed_features
from capedjica.coordinator.run.report import result_tables, run_report
from capedjica.coordinator.run.results import approximate, picture, scale
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.data.centres import APPROXIMATE
from capedjica.report.derivatives import (
    GROUP,
    File,
    check_new,
    frame_files,
    label,
    maps_files,
    metrics_files,
    named,
    privacy_of,
    table_files,
    whole_folder,
    write_files,
)
from capedjica.study.reliability_file import read_reliability
from capedjica.study.study_file import Study, StudyStep
from capedjica.tools.atomic_files import writing

_README: Final = """\
# {title}

Results of a study with capedjica across several sites, estimated from the participants of all of them. The
files describe no single participant; the sidecar of each file states its privacy guarantee:

{statement}

`group.html` is the report of the study.
"""
# Names of the analyses in files; others have the name that the study gives them.
_DESCRIPTIONS: Final = {"ica": "ICA", "pca": "PCA"}


def export_run(run: Path, out: Path, regions: Path | None = None) -> list[str]:
    """Write the results of a complete run as BIDS derivatives; return the names of the files.

    Parameters
    ----------
    run : Path
        Folder of a complete run, or its unpacked ``results.zip``.
    out : Path
        Folder to create. It appears when it is complete.
    regions : Path, optional
        Image of the regions of the tables' columns, if the study does not have one.
    """
    check_new(out)
    report = run_report(run, regions).html  # raises if the run is not complete
    study, folder = Study.load(run), RunFolder(run)
    privacy = folder.read_json("privacy.json", dict[str, Any])
    title = study.content.title
    files = [
        *frame_files(title, _README.format(title=title, statement=privacy["statement"])),
        *_group_files(folder, study, privacy_of(privacy), regions),
        (f"{GROUP}.html", report.encode()),
    ]
    with whole_folder(out) as draft, writing(out):
        write_files(draft, files)
    return [name for name, _ in files]


def _group_files(
    folder: RunFolder, study: Study, privacy: Mapping[str, Any], regions: Path | None
) -> Iterator[File]:
    for step in study.steps:
        about = {
            "Study": study.content.title,
            "StudyHash": study.hash.hex(),
            "Analysis": step.table.summary(step.setting),
            "Privacy": privacy,
        }
        described = _described(study, step)
        if folder.holds([_file(study, step, "maps.npy")]):
            yield from _maps_of(folder, study, step, {"desc": described}, about, regions)
        for table in result_tables(folder, study, step):
            yield from table_files(f"{GROUP}/{named({'desc': described}, label(table.name))}", table, about)


def _described(study: Study, step: StudyStep) -> str:
    """Return the value of ``desc``: the kind of the analysis, or its name if that is not unique."""
    kinds = [other.table.kind for other in study.steps]
    usual = _DESCRIPTIONS.get(step.table.kind) if kinds.count(step.table.kind) == 1 else None
    return usual or label(step.name)


def _file(study: Study, step: StudyStep, name: str) -> str:
    return str(Path(study.results_folder(step)) / name)


def _maps_of(
    folder: RunFolder,
    study: Study,
    step: StudyStep,
    entities: dict[str, str],
    about: dict[str, Any],
    regions: Path | None,
) -> Iterator[File]:
    """Yield the maps of one analysis, with less noise where the run wrote that, and their table."""
    reliability = read_reliability(folder.path, study, step)
    warned = {"Warning": reliability.banner} if reliability.banner else {}
    spaced = entities | {"space": study.content.features.space or ""}
    features = placed_features(study, regions)
    for name, more, words in (
        ("maps", "", "Maps of the group, one per component"),
        ("maps_denoised", "Denoised", "Maps with reduced noise; use the others for inference"),
    ):
        if folder.holds([file := _file(study, step, f"{name}.npy")]):
            maps = folder.read_array(file)
            place = named(spaced | {"desc": entities["desc"] + more}, "components")
            borders = f" {APPROXIMATE}" if approximate(features) else ""
            said = {"Description": f"{words}. {scale(study).capitalize()}.{borders}", **about, **warned}
            yield from maps_files(f"{GROUP}/{place}", maps, picture(features, maps), said)
    names = getattr(step.table, "template_names", None) or ()
    yield from metrics_files(f"{GROUP}/{named(entities, 'metrics')}", reliability, names, about | warned)
