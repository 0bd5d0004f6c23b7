"""One small run of every kind of study, and every page made of them: made once, and changed by nobody."""

import fcntl
import os

import msgspec
import pytest

from capedjica.coordinator.run.report import comparison_report, run_report
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.results.page import write_local_report
from capedjica.study.study_file import Study, write_study
from tests.support.drafts import with_ica
from tests.support.small_scans import make_scans
from tests.support.small_study import changed, make_study

KINDS = ("pixels", "regions", "brains")


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """Return ``shared(name, make)``: a folder that all processes of a test run see and one of them makes."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name, make):
        with open(place / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (place / name / "made").exists():
                (place / name).mkdir()
                make(place / name)
                (place / name / "made").touch()
        return place / name

    return folder


@pytest.fixture(scope="session")
def tables(shared):
    """Four sites with tables; runs of pixels, of regions, by the paper's method, and two without privacy."""
    return shared("tables", make_tables)


def make_tables(folder):
    study = make_study(folder)
    run(study, folder, "pixels")
    regions = with_analysis(study, folder / "regions.toml", "regions", image_shape=None)
    run(regions, folder, "regions")
    run(with_analysis(study, folder / "paper.toml", "paper", method="paper", max_iter=4), folder, "paper")
    run(changed(study, folder / "none.toml", title="none", mechanism="none", epsilon=None), folder, "none")
    seeded = changed(study, folder / "seeded.toml", title="seeded", insecure_noise=True)
    run(seeded, folder, "seeded", 7)


def with_analysis(study, path, title, **analysis):
    content = msgspec.structs.replace(with_ica(study.content, **analysis), title=title)
    write_study(path, content)
    return Study.load(path)


def run(study, folder, name, seed=None):
    run_study(study, find_sites(study, folder / "sites"), folder / name, seed)


@pytest.fixture(scope="session")
def brains(shared):
    """Three sites with scans, a run of the voxels of a mask, and the page of a site."""
    return shared("brains", make_brains)


def make_brains(folder):
    study = make_scans(folder)
    run(study, folder, "brains")
    write_local_report(folder / "brains", find_sites(study, folder / "sites")[0])


@pytest.fixture(scope="session")
def runs(tables, brains):
    """The folder of a run by its kind."""
    return {"pixels": tables / "pixels", "regions": tables / "regions", "brains": brains / "brains"}


@pytest.fixture(scope="session")
def pages(shared, runs, tables, brains):
    """The file of every kind of page."""

    def make(folder):
        for kind in KINDS:
            run_report(runs[kind]).save_as_html(folder / f"{kind}.html")
        run_report(tables / "none").save_as_html(folder / "not private.html")
        both, truth = [tables / "pixels", tables / "none"], tables / "truth" / "mixing.npy"
        comparison_report(both, truth).save_as_html(folder / "compared.html")

    folder = shared("pages", make)
    (local,) = brains.glob("sites/*/results/*/report.html")
    return {path.stem: path for path in folder.glob("*.html")} | {"of a site": local}
