"""One sealed study for all tests that only read it."""

import shutil

import pytest

from capedjica.coordinator.flare.provisioning import provision
from capedjica.one_machine.local_run import find_sites
from capedjica.site.approval.participation import approve
from capedjica.site.flare import kits
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from tests.support.small_study import make_study


@pytest.fixture(scope="session")
def sealed(tmp_path_factory):
    """A study, its federation and the homes of its sites, which approve nothing by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        study = make_study(tmp_path_factory.mktemp("sealed"), simulated=False)
    federation = provision(study, "localhost", 8002)
    homes = {home.settings.name: home for home in find_sites(study, study.folder / "sites")}
    return study, federation, homes


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A sealed study that nobody touches: to make keys and certificates takes a while."""
    folder = tmp_path_factory.mktemp("template") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        provision(make_study(folder, simulated=False), "localhost", 8123)
    return folder


@pytest.fixture
def study(template, tmp_path, monkeypatch):
    """A sealed study of its own for a test that changes it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    for file in tmp_path.glob("sites/*/site.toml"):
        file.write_text(file.read_text().replace(str(template), str(tmp_path)))
    return Study.load(tmp_path)


@pytest.fixture
def home(study):
    """One of its sites, without a kit."""
    return SiteHome.load(study.folder / "sites" / "s1")


@pytest.fixture
def ready(study, home):
    """The same site, with its kit, which it approved."""
    with kits.received(home, study.folder / "federation" / "kits" / "s1.zip") as (given, keep):
        approve(home, given)
        keep()
    return home
