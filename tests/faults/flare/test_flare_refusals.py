"""What is refused before anything runs: an upgrade with a study under way, and paths FLARE would split."""

from __future__ import annotations

import pytest

from capedjica.errors import InputError
from capedjica.flare import processes
from tests.federated.consortium import consortium


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


@pytest.mark.parametrize("name", ["our site", "site#1", "site's", "a\\b"])
def test_a_path_that_flare_would_not_understand_is_refused(tmp_path, name):
    kit = tmp_path / name
    kit.mkdir()
    for begin in (processes.start, processes.supervise):
        with pytest.raises(InputError, match="cannot work with a path"):
            begin(kit, "client", "s1")
    assert list(kit.iterdir()) == []
