"""What was made or begun by another version of the package is used; by another of the protocol, refused."""

import json

import msgspec
import pytest

from capedjica.coordinator.flare.federation import Federation
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.errors import InputError
from capedjica.flare.kit import Label
from capedjica.mechanisms.messages import VERSION
from capedjica.site.flare import kits
from capedjica.study.study_file import Study
from tests.federated.sealed import altered
from tests.one_machine.test_local_run import Interrupt, ledger_sums, run
from tests.support.small_study import make_study
from tests.vectors.test_transcript import set_package_version


@pytest.fixture
def interrupted(tmp_path):
    """A run that was interrupted after three means."""
    study = make_study(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, study, "run", watcher=Interrupt(3))
    return tmp_path


def rewrite_state(folder, **changes):
    file = folder / "run" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_run_begun_by_another_package_goes_on(interrupted):
    rewrite_state(interrupted, capedjica="0.0.1")
    run(interrupted, Study.load(interrupted), "run")
    state = RunFolder(interrupted / "run").state()
    assert (state.complete, state.resumed, state.capedjica) == (True, 1, "0.0.1")


@pytest.mark.parametrize("protocol", [1, VERSION + 1])
def test_a_run_of_another_protocol_is_refused_and_spends_nothing(interrupted, protocol):
    study = Study.load(interrupted)
    before = ledger_sums(study, interrupted)
    rewrite_state(interrupted, protocol=protocol)
    words = f"begun by version {protocol} of the protocol .* cannot go on by version {VERSION}"
    with pytest.raises(InputError, match=words):
        run(interrupted, study, "run")
    assert ledger_sums(study, interrupted) == before


def received(home, kit):
    with kits.received(home, kit) as (study, _):
        return study


def test_a_kit_made_by_another_package_is_taken(sealed, monkeypatch):
    """Whichever package the coordinator has, and whichever the site: a kit names neither."""
    study, federation, homes = sealed
    kit = federation.site_kits / "s1.zip"
    assert set_package_version(monkeypatch, "999.0.0")
    assert received(homes["s1"], kit).hash == study.hash
    assert Federation.beside(study).seal.study == federation.seal.study
    assert "capedjica" not in Label.__struct_fields__


@pytest.mark.parametrize("protocol", [1, VERSION + 1])
def test_a_kit_of_another_protocol_is_refused_in_words_that_name_both(sealed, tmp_path, protocol):
    _, federation, homes = sealed

    def age(files):
        label = msgspec.json.decode(files["kit.json"], type=Label)
        files["kit.json"] = msgspec.json.encode(msgspec.structs.replace(label, protocol=protocol))

    kit = altered(federation.site_kits / "s1.zip", tmp_path / "s1.zip", age)
    words = f"version {protocol} of the protocol, this program speaks version {VERSION}"
    with pytest.raises(InputError, match=words):
        received(homes["s1"], kit)
