"""One small run of every kind of study, made once, and every page that is made of them."""

import msgspec
import pytest

from capedjica.study.local_reporting import write_local_report
from capedjica.study.reporting import comparison_report, run_report
from capedjica.study.running import find_sites, run_study
from capedjica.study.study_file import Study, write_study
from tests.study.small_scans import make_scans
from tests.study.small_study import changed, make_study

# Whether a table of regions and one of pixels are the same is told by the study alone.
KINDS = ("pixels", "regions", "brains")


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """Four sites with tables; runs of pixels, of regions, by the paper's method, and two without privacy."""
    folder = tmp_path_factory.mktemp("tables")
    study = make_study(folder)
    run(study, folder, "pixels")
    for name, analysis in {
        "regions": {"image_shape": None},
        "paper": {"method": "paper", "max_iter": 4},
    }.items():
        run(with_analysis(study, folder / f"{name}.toml", name, **analysis), folder, name)
    run(changed(study, folder / "none.toml", title="none", mechanism="none", epsilon=None), folder, "none")
    seeded = changed(study, folder / "seeded.toml", title="seeded", insecure_noise=True)
    run(seeded, folder, "seeded", 7)
    return folder


def with_analysis(study, path, title, **analysis):
    content = msgspec.structs.replace(
        study.content, title=title, analysis=msgspec.structs.replace(study.content.analysis, **analysis)
    )
    write_study(path, content)
    return Study.load(path)


def run(study, folder, name, seed=None):
    run_study(study, find_sites(study, folder / "sites"), folder / name, seed)


@pytest.fixture(scope="session")
def brains(tmp_path_factory):
    """Three sites with scans, and a run of the voxels of a mask."""
    folder = tmp_path_factory.mktemp("brains")
    run(make_scans(folder), folder, "brains")
    return folder


@pytest.fixture(scope="session")
def runs(tables, brains):
    """The folder of a run by its kind."""
    return {"pixels": tables / "pixels", "regions": tables / "regions", "brains": brains / "brains"}


@pytest.fixture(scope="session")
def pages(runs, tables, brains, tmp_path_factory):
    """The file of every kind of page."""
    folder = tmp_path_factory.mktemp("pages")
    found = {kind: folder / f"{kind}.html" for kind in KINDS}
    for kind, path in found.items():
        run_report(runs[kind]).save_as_html(path)
    found["not private"] = folder / "none.html"
    run_report(tables / "none").save_as_html(found["not private"])
    found["compared"] = folder / "compared.html"
    truth = tables / "truth" / "mixing.npy"
    comparison_report([tables / "pixels", tables / "none"], truth).save_as_html(found["compared"])
    home = find_sites(Study.load(brains), brains / "sites")[0]
    found["of a site"] = write_local_report(brains / "brains", home)
    return found
