"""Web pages of a site and of a study, served as they are; commands are loaded once for all tests."""

import shutil

import pytest

from capedjica.web.commands import Commands
from capedjica.web.site_pages import SitePages
from capedjica.web.study_pages import StudyPages
from tests.support.small_study import make_study
from tests.web.client import Client, Served


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """The commands of a role, loaded once."""
    loaded = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield lambda role: loaded.setdefault(role, Commands(role))
        for one in loaded.values():
            one.close()


@pytest.fixture(scope="session")
def sealed_template(tmp_path_factory):
    """A small study and its sites, which approve nothing by themselves; changed by no test."""
    folder = tmp_path_factory.mktemp("template") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        make_study(folder, simulated=False)
    return folder


@pytest.fixture
def study(sealed_template, tmp_path):
    """The folder of a study of its own for a test that changes it."""
    shutil.copytree(sealed_template, tmp_path / "study")
    for file in tmp_path.glob("study/sites/*/site.toml"):
        file.write_text(file.read_text().replace(str(sealed_template), str(tmp_path / "study")))
    return tmp_path / "study"


@pytest.fixture
def home(study):
    """The folder of one of its sites."""
    return study / "sites" / "s1"


@pytest.fixture
def served(home, commands):
    """The pages of that site, served."""
    with Served(SitePages(home, commands("site"))) as served:
        yield served


@pytest.fixture
def client(served):
    """A browser that has opened them."""
    client = Client(served)
    client.open()
    return client


@pytest.fixture
def coordinator(study, commands):
    """A browser that has opened the pages of the study."""
    with Served(StudyPages(study, commands("study"))) as served:
        client = Client(served)
        client.open()
        yield client
