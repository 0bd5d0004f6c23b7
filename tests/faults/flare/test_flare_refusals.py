"""What is refused before anything runs: an upgrade with a study under way, and paths FLARE would split."""

from __future__ import annotations

import pytest

from capedjica.errors import InputError
from capedjica.flare import processes
from capedjica.mechanisms.messages import VERSION
from tests.federated.consortium import consortium


def test_a_run_of_another_version_is_refused_before_a_server_is_started(tmp_path):
    with consortium(tmp_path, started=False) as parties:
        with parties.run_folder.claim(parties.study):
            pass
        file = parties.run_folder.path / "run.json"
        written = file.read_text()
        assert f'"protocol": {VERSION}' in written
        file.write_text(written.replace(f'"protocol": {VERSION}', '"protocol": 9'))
        with pytest.raises(InputError, match=r"begun by version 9 of the protocol .* cannot go on"):
            parties.run()
        assert processes.running(parties.place("server")) is None
        assert not processes.log(parties.place("server"), "server").exists()


@pytest.mark.parametrize("name", ["our site", "site#1", "site's", "a\\b"])
def test_a_path_that_flare_would_not_understand_is_refused(tmp_path, name):
    place = tmp_path / name
    place.mkdir()
    program = processes.Program("carrier", ("true",), str(place))
    for begin in (processes.start, processes.supervise):
        with pytest.raises(InputError, match="does not support paths with spaces"):
            begin(place, [program])
    assert list(place.iterdir()) == []
