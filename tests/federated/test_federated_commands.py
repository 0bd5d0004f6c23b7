"""What the coordinator's commands refuse before any process is started or anything is spent."""

import json
import socket
from datetime import timedelta

import pytest

from capedjica.coordinator.flare.provisioning import provision
from capedjica.flare import processes
from capedjica.flare.certificates import validity
from tests.federated.consortium import own_port
from tests.federated.sealed import certificate, days_from_now
from tests.support.in_process import run_main
from tests.support.small_study import make_study


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path)


@pytest.fixture
def refused(study, monkeypatch, capsys):
    """Run a study on FLARE, which must not begin; return why."""

    def start(*_, **__):
        raise AssertionError("a process was started")

    def run(*options):
        monkeypatch.setattr(processes, "start", start)
        ended = run_main(["run", str(study.folder), "--engine", "flare", *options], monkeypatch, capsys)
        assert ended.returncode == 2
        assert len(ended.stderr.splitlines()) == 1
        assert not (study.folder / "run").exists()
        assert all(not home.joinpath("ledger.sqlite").exists() for home in (study.folder / "sites").iterdir())
        return ended.stderr

    return run


def test_there_is_nothing_to_resume(refused):
    assert "contains no run to resume; start one without --resume" in refused("--resume")


def test_sites_are_not_folders_of_this_machine(refused):
    assert "--sites is for sites on this machine" in refused("--sites", "sites")


def test_a_study_has_to_be_sealed(refused):
    assert "'A small study' is not sealed" in refused()


def test_seeded_noise_has_to_be_agreed_on(study, refused):
    provision(study, "localhost", own_port())
    assert "study.toml does not set insecure_noise = true" in refused("--insecure-noise-seed", "7")


def test_a_port_in_use_is_refused(study, refused):
    port = own_port()
    provision(study, "localhost", port)
    with socket.create_server(("127.0.0.1", port)):
        assert f"port {port} of this machine is in use by another program" in refused()


def test_expired_certificates_of_the_server_are_refused(study, refused):
    federation = provision(study, "localhost", own_port())
    (federation.server_kit / "startup" / "server.crt").write_bytes(certificate(days_from_now(-3)))
    assert "the study must be provisioned again" in refused()
    assert validity(federation.server_kit)[1] < days_from_now(0) - timedelta(days=2)


def test_status_of_a_study_that_is_not_sealed(study, monkeypatch, capsys):
    ended = run_main(["status", str(study.folder), "--json"], monkeypatch, capsys)
    facts = json.loads(ended.stdout)
    assert (ended.returncode, facts["state"], facts["n_done"]) == (10, "not sealed", 0)
    assert [site["connected"] for site in facts["sites"]] == [False] * 4


def test_status_of_a_run_whose_server_is_gone(sealed, tmp_path, monkeypatch, capsys):
    """What was under way when the server vanished was interrupted, whatever its last words say."""
    (tmp_path / "progress.json").write_text('{"phase": "running", "updated": "2026-01-01T00:00:00+00:00"}')
    arguments = ["status", str(sealed[0].folder), "--out", str(tmp_path)]
    ended = run_main(arguments, monkeypatch, capsys)
    assert ended.returncode == 12
    assert "interrupted; last update at 2026-01-01T00:00:00+00:00" in ended.stdout
    assert "localhost:8002, not running" in ended.stdout


def test_status_of_damaged_progress_is_an_error_in_one_line(sealed, tmp_path, monkeypatch, capsys):
    (tmp_path / "progress.json").write_bytes(b"\xff")
    ended = run_main(["status", str(sealed[0].folder), "--out", str(tmp_path)], monkeypatch, capsys)
    assert ended.returncode == 2
    assert "is not a valid progress file of a run" in ended.stderr


def test_status_of_a_complete_run_whose_kits_were_removed(study, monkeypatch, capsys):
    """After a study its kits are deleted; where its sites were is still told."""
    run = study.folder / "run"
    assert run_main(["run", str(study.folder)], monkeypatch, capsys).returncode == 0
    (run / "progress.json").write_text(
        '{"phase": "complete", "present": ["s1", "s2", "s3"], "lost": {"s4": "no reply"}, "updated": "noon"}'
    )
    for given in (study.folder, run):
        ended = run_main(["status", str(given), "--json"], monkeypatch, capsys)
        facts = json.loads(ended.stdout)
        assert (ended.returncode, facts["words"]) == (0, "complete since noon")
        assert facts["server"] == "none: no federation folder with its study"
        words = ["took part"] * 3 + ["did not finish: no reply"]
        assert [site["words"] for site in facts["sites"]] == words


def test_status_of_the_folder_of_a_run_finds_the_server(study, monkeypatch, capsys):
    run, port = study.folder / "run", own_port()
    assert run_main(["run", str(study.folder)], monkeypatch, capsys).returncode == 0
    provision(study, "localhost", port)
    (run / "progress.json").write_text('{"phase": "complete", "present": ["s1"], "updated": "noon"}')
    ended = run_main(["status", str(run), "--json"], monkeypatch, capsys)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["server"] == f"localhost:{port}, not running"
