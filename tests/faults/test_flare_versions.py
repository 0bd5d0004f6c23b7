"""An upgrade with a study under way."""

from __future__ import annotations

import pytest

from capedjica.errors import InputError
from capedjica.study.federated import processes
from tests.federated.consortium import consortium

pytestmark = pytest.mark.xdist_group("flare")


def test_a_run_of_another_version_is_refused_before_a_server_is_started(tmp_path):
    with consortium(tmp_path, started=False) as parties:
        with parties.run_folder.claim(parties.study):
            pass
        file = parties.run_folder.path / "run.json"
        file.write_text(file.read_text().replace('"capedjica": "', '"capedjica": "9'))
        with pytest.raises(InputError, match=r"begun by capedjica 9\S+ .* this is 0"):
            parties.run()
        assert processes.running(parties.federation.server_kit) is None
        assert not (parties.federation.server_kit / "console.log").exists()
