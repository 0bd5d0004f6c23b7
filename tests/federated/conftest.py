"""One sealed study for all tests that only read it."""

import pytest

from capedjica.study.federated.provisioning import provision
from capedjica.study.running import find_sites
from tests.study.small_study import make_study


@pytest.fixture(scope="session")
def sealed(tmp_path_factory):
    """A study, its federation and the homes of its sites, which approve nothing by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        study = make_study(tmp_path_factory.mktemp("sealed"), simulated=False)
    federation = provision(study, "localhost", 8002)
    homes = {home.settings.name: home for home in find_sites(study, study.folder / "sites")}
    return study, federation, homes
