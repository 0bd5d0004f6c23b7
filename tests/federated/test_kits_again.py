"""New kits for the same study: the earlier ones become useless, and what was approved stays."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from capedjica.coordinator.flare.federation import Federation
from capedjica.coordinator.flare.provisioning import provision_again
from capedjica.coordinator.flare.status import look
from capedjica.errors import InputError
from capedjica.flare import processes
from capedjica.flare.kit import PROTOCOL
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.approval.admission import problems
from capedjica.site.flare import kits
from capedjica.site.flare.migration import migrate
from capedjica.site.home import SiteHome
from capedjica.site.key_rotation import rotate_key
from capedjica.tools.locks import locked
from tests.federated.consortium import consortium
from tests.federated.sealed import certificate, days_from_now, unzip
from tests.support.in_process import run_main
from tests.support.small_study import make_study

pytest.importorskip("nvflare")


def approve(home, study, monkeypatch, capsys):
    kit = study.folder / "federation" / "kits" / f"{home.settings.name}.zip"
    return run_main(["site", "approve", str(kit), "--site", str(home.folder)], monkeypatch, capsys)


def signs(root, leaf):
    """Whether one certificate signed another."""
    root, leaf = map(x509.load_pem_x509_certificate, (root, leaf))
    try:
        leaf.verify_directly_issued_by(root)
    except InvalidSignature:
        return False
    return True


def test_a_new_root_for_the_same_study(study):
    folder = study.folder / "federation"
    before, seal = unzip(folder / "kits" / "s1.zip"), Federation.beside(study).seal
    federation = provision_again(study)
    now = unzip(folder / "kits" / "s1.zip")
    assert (federation.seal.study, federation.seal.host, federation.seal.port) == (
        seal.study,
        seal.host,
        seal.port,
    )
    assert now["study/study.toml"] == before["study/study.toml"]
    # The coordinator's key stays: sites have pinned it.
    labels = [json.loads(files["kit.json"]) for files in (before, now)]
    assert labels[0]["coordinator"] == labels[1]["coordinator"] == federation.key().public_key.hex()
    # Neither side takes the other for one of the study.
    old_root, new_root = before["startup/rootCA.pem"], now["startup/rootCA.pem"]
    server = (federation.server_kit / "startup" / "server.crt").read_bytes()
    assert signs(new_root, server)
    assert signs(new_root, now["startup/client.crt"])
    assert not signs(old_root, server)
    assert not signs(new_root, before["startup/client.crt"])
    # The old root's key is gone.
    assert not list(study.folder.glob(".sealing-*"))
    assert (folder.stat().st_mode & 0o777) == 0o711


def test_another_machine(study):
    seal = provision_again(study, "elsewhere.example.org", 9000).seal
    assert (seal.host, seal.port) == ("elsewhere.example.org", 9000)


def test_not_while_it_runs_nor_before_it_was_sealed(study, tmp_path):
    federation = Federation.beside(study)
    with (
        locked(federation.run_lock, "busy"),
        pytest.raises(InputError, match="is being run; create new kits when"),
    ):
        provision_again(study)
    other = make_study(tmp_path / "other")
    with pytest.raises(InputError, match="is not sealed"):
        provision_again(other)


def test_what_cannot_be_replaced_stays(study, monkeypatch):
    before = unzip(study.folder / "federation" / "kits" / "s1.zip")
    genuine = Path.rename

    def full(self, target):
        if self.name == "made":
            raise OSError(28, "No space left on device")
        return genuine(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        provision_again(study)
    assert unzip(study.folder / "federation" / "kits" / "s1.zip") == before


def test_the_command(study, monkeypatch, capsys):
    done = run_main(["study", "provision", str(study.folder), "--again"], monkeypatch, capsys)
    assert done.returncode == 0
    assert "All earlier kits have stopped working" in done.stdout
    assert study.hash.hex() in done.stdout
    assert "Port 8123 of localhost" in done.stdout
    done = run_main(["study", "provision", str(study.folder)], monkeypatch, capsys)
    assert done.returncode == 2
    assert "--host is missing" in done.stderr


def test_a_new_kit_replaces_the_old_and_the_approval_stays(home, study, monkeypatch, capsys):
    """Also of a study that has begun, whose scans changed since."""
    for other in find_sites(study, study.folder / "sites"):
        assert approve(other, study, monkeypatch, capsys).returncode == 0
    run_study(study, find_sites(study, study.folder / "sites"), study.folder / "run")
    np.save(home.data_path / "sub-00.npy", 2 * np.load(home.data_path / "sub-00.npy"))
    with home.open_ledger() as ledger:
        spent, entries = ledger.totals(), ledger.entries()
    before = unzip(study.folder / "federation" / "kits" / "s1.zip")
    provision_again(study)
    done = approve(home, study, monkeypatch, capsys)
    assert done.returncode == 0, done.stderr
    assert "It has already started and continues as approved, with this kit." in done.stdout
    kit = kits.find_kit(home).workspace / "startup"
    new = unzip(study.folder / "federation" / "kits" / "s1.zip")
    assert (kit / "client.key").read_bytes() == new["startup/client.key"] != before["startup/client.key"]
    with home.open_ledger() as ledger:
        assert (ledger.totals(), ledger.entries()) == (spent, entries)
    assert problems(home, study) == []


def test_a_kit_that_is_forgotten(home, study, monkeypatch, capsys):
    approve(home, study, monkeypatch, capsys)
    prefix = study.hash.hex()[:8]
    with monkeypatch.context() as patch:
        patch.setattr(processes, "running", lambda _: 1)
        with pytest.raises(
            InputError, match="connected to the server of this study; first run: capedjica site stop"
        ):
            kits.forget(home, prefix)
        with pytest.raises(InputError, match="connected to the server of 'A small study'; first run: capedj"):
            rotate_key(home)
    for strange in ("", "ffff"):
        with pytest.raises(InputError, match="expected exactly one"):
            kits.forget(home, strange)
    done = run_main(["site", "forget", prefix, str(home.folder)], monkeypatch, capsys)
    assert done.returncode == 0
    assert "The approval and the spending stay in the ledger" in done.stdout
    assert kits.installed(home) == []
    assert not (home.carrier_path / study.hash.hex()[:16]).exists()
    assert problems(home, study) == []


def test_an_upgrade_with_a_study_under_way_is_refused(home, study, monkeypatch, capsys):
    """Only if the protocol changed; the agent refuses as well, which a supervisor would start."""
    approve(home, study, monkeypatch, capsys)
    label = kits.find_kit(home).path / "kit.json"
    label.write_text(label.read_text().replace(f'"protocol": {PROTOCOL}', '"protocol": 1'))
    for command in ("start", "agent"):
        done = run_main(["site", command, str(home.folder)], monkeypatch, capsys)
        assert done.returncode == 2
        words = f"was made for version 1 of the protocol, this program speaks version {PROTOCOL}: all parties"
        assert words in done.stderr


def test_a_key_revoked_after_approval_keeps_a_site_from_starting(home, study, monkeypatch, capsys):
    approve(home, study, monkeypatch, capsys)
    peer = SiteHome.load(study.folder / "sites" / "s3").card().fingerprint
    file = home.folder / "site.toml"
    file.write_text(re.sub("# revoked = .*", f'revoked = ["{peer}"]', file.read_text()))
    done = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
    assert done.returncode == 2
    assert peer in done.stderr


# Kits and seals from before the network was kept apart


def make_old(home, study):
    """Turn a site's kit into one from before: all in one folder, not signed."""
    kit = kits.find_kit(home)
    old = home.folder / "kits" / kit.path.name
    old.parent.mkdir()
    kit.path.rename(old)
    for part in ("startup", "local"):
        (kit.workspace / part).rename(old / part)
    shutil.rmtree(kit.workspace)
    label = {"site": "s1", "study": study.hash.hex(), "capedjica": "0.1.0"}
    (old / "kit.json").write_text(json.dumps(label))
    return old


def make_old_seal(study):
    """Turn a study's seal into one from before, without the coordinator's key."""
    folder = study.folder / "federation"
    seal = json.loads((folder / "sealed.json").read_text()) | {"schema": 1, "capedjica": "0.1.0"}
    del seal["protocol"]
    (folder / "sealed.json").write_text(json.dumps(seal))
    (folder / "coordinator.pem").unlink()


def test_a_kit_from_before_is_put_aside_without_its_keys(home, study, monkeypatch, capsys):
    approve(home, study, monkeypatch, capsys)
    old = make_old(home, study)
    done = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
    assert done.returncode == 2
    assert "has no kit (to move old kits: capedjica site migrate)" in done.stderr
    done = run_main(["site", "migrate", str(home.folder)], monkeypatch, capsys)
    assert done.returncode == 0
    assert (
        "has not started: ask the coordinator for a new kit (capedjica study provision --again)"
        in done.stdout
    )
    aside = home.folder / "kits-before" / old.name
    assert not old.exists()
    assert {path.name for path in aside.iterdir()} == {"kit.json", "study"}
    assert not list(home.folder.rglob("client.key"))
    assert list(migrate(home)) == ["Site s1 has no old kits: nothing to do."]


def test_a_study_from_before_that_has_not_begun_is_sealed_and_approved_anew(home, study, monkeypatch, capsys):
    approve(home, study, monkeypatch, capsys)
    make_old(home, study)
    make_old_seal(study)
    with pytest.raises(InputError, match=r"schema must be 2, got 1\. .*capedjica study provision --again"):
        Federation.beside(study)
    done = run_main(["study", "provision", str(study.folder), "--again"], monkeypatch, capsys)
    assert done.returncode == 0, done.stderr
    federation = Federation.beside(study)
    assert (federation.seal.host, federation.seal.port) == ("localhost", 8123)
    assert federation.key_path.exists()
    assert list(migrate(home))
    done = approve(home, study, monkeypatch, capsys)
    assert done.returncode == 0, done.stderr
    assert kits.find_kit(home).label.coordinator == federation.key().public_key.hex()


@pytest.mark.parametrize("migrated", [True, False])
def test_a_study_begun_before_is_refused_and_its_ledger_still_counts(
    home, study, monkeypatch, capsys, migrated
):
    """Before and after its kit was put aside."""
    for other in find_sites(study, study.folder / "sites"):
        assert approve(other, study, monkeypatch, capsys).returncode == 0
    run_study(study, find_sites(study, study.folder / "sites"), study.folder / "run")
    make_old(home, study)
    spent = home.totals()
    assert spent.overall.n_releases > 0
    if migrated:
        (words,) = migrate(home)
        assert "was started by an earlier version and cannot continue" in words
        assert "stays in the ledger" in words
    provision_again(study)
    done = approve(home, study, monkeypatch, capsys)
    assert done.returncode == 2
    words = "site s1 started 'A small study' with an earlier version, and it cannot continue"
    assert words in done.stderr
    assert kits.installed(home) == []
    assert home.totals() == spent
    # The control: another site, which has no kit from before, goes on with its new one.
    other = SiteHome.load(study.folder / "sites" / "s2")
    assert approve(other, study, monkeypatch, capsys).returncode == 0


# Certificates that end


def ending(kit, days):
    (kit / "startup" / "rootCA.pem").write_bytes(certificate(days_from_now(days)))


@pytest.mark.parametrize(("days", "words"), [(20.5, "in 20 days"), (-1, "expired on")])
def test_a_site_is_warned(home, study, monkeypatch, capsys, days, words):
    approve(home, study, monkeypatch, capsys)
    command = ["site", "check", str(home.folder), "--study", str(study.folder)]
    assert "certificates" not in run_main(command, monkeypatch, capsys).stdout
    ending(kits.find_kit(home).workspace, days)
    for arguments in (command, command[:3]):
        done = run_main(arguments, monkeypatch, capsys)
        assert done.returncode == 0
        said = re.sub(r"\s+", " ", done.stdout)
        assert words in said
        assert "ask the coordinator for a new kit" in said
    facts = json.loads(run_main([*command, "--json"], monkeypatch, capsys).stdout)
    assert len(facts["warnings"]) == 1


def test_the_coordinator_is_warned(study, monkeypatch, capsys):
    assert look(study, study.folder / "run")["warnings"] == []
    ending(study.folder / "federation" / "server", 20.5)
    (warning,) = look(study, study.folder / "run")["warnings"]
    assert (
        "in 20 days; create new kits for all parties with: capedjica study provision STUDY --again" in warning
    )
    assert "in 20 days" in run_main(["status", str(study.folder)], monkeypatch, capsys).stdout

    def stop_here(*_):
        raise InputError("far enough")

    monkeypatch.setattr("capedjica.coordinator.flare.remote_run.run_federated", stop_here)
    done = run_main(["run", str(study.folder), "--engine", "flare"], monkeypatch, capsys)
    assert "Warning: the certificates of" in re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert "far enough" in done.stderr
    shutil.rmtree(study.folder / "federation")
    assert look(study, study.folder / "run")["warnings"] == []


@pytest.mark.full
def test_on_flare_an_earlier_kit_reaches_nobody(tmp_path):
    """Three sites with new kits make the study; the fourth, with its earlier kit, is never heard."""
    with consortium(tmp_path, started=False) as made:
        provision_again(made.study)
        for name in ("s1", "s2", "s3"):
            home = made.home(name)
            with kits.received(home, made.federation.site_kits / f"{name}.zip") as (_, keep):
                keep()
        made.start()
        state = made.run(wait=20.0)
        assert state.complete
        assert made.spent("s1") > 0
        assert made.spent("s4") == 0
