"""New kits for the same study: the earlier ones become useless, and what was approved stays."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from capedjica import __version__
from capedjica.coordinator.flare.federation import Federation
from capedjica.coordinator.flare.provisioning import provision_again
from capedjica.coordinator.flare.status import look
from capedjica.errors import InputError, ProtocolError
from capedjica.flare import processes
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.approval.participation import problems
from capedjica.site.flare import kits
from capedjica.site.flare.party import SiteParty
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
    # Neither side takes the other for one of the study.
    old_root, new_root = before["startup/rootCA.pem"], now["startup/rootCA.pem"]
    server = (federation.server_kit / "startup" / "server.crt").read_bytes()
    assert signs(new_root, server)
    assert signs(new_root, now["startup/client.crt"])
    assert not signs(old_root, server)
    assert not signs(new_root, before["startup/client.crt"])
    # The old root's key is gone.
    assert not list(study.folder.glob(".sealing-*"))
    assert (folder.stat().st_mode & 0o777) == 0o700


def test_another_machine(study):
    seal = provision_again(study, "elsewhere.example.org", 9000).seal
    assert (seal.host, seal.port) == ("elsewhere.example.org", 9000)


def test_not_while_it_runs_nor_before_it_was_sealed(study, tmp_path):
    federation = Federation.beside(study)
    with (
        locked(federation.run_lock, "busy"),
        pytest.raises(InputError, match="is being run: its kits can be made anew when it is not"),
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
    assert "All earlier kits are useless now" in done.stdout
    assert study.hash.hex() in done.stdout
    assert "port 8123 of localhost" in done.stdout
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
    assert "It has begun: it goes on as it was approved, with this kit." in done.stdout
    kit = kits.find_kit(home).path / "startup"
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
            InputError, match="connected by its kit of this study; first: capedjica site stop"
        ):
            kits.forget(home, prefix)
        with pytest.raises(InputError, match="connected to the server of 'A small study'; first: capedj"):
            rotate_key(home)
    for strange in ("", "ffff"):
        with pytest.raises(InputError, match="one is to be named"):
            kits.forget(home, strange)
    done = run_main(["site", "forget", prefix, str(home.folder)], monkeypatch, capsys)
    assert done.returncode == 0
    assert "What was approved and spent stays in the ledger" in done.stdout
    assert kits.installed(home) == []
    assert problems(home, study) == []


def test_an_upgrade_with_a_study_under_way_is_refused(home, study, monkeypatch, capsys):
    """By the command, and by the site's part in a run, which a client that was running would start."""
    approve(home, study, monkeypatch, capsys)
    kit = kits.find_kit(home).path
    label = kit / "kit.json"
    label.write_text(label.read_text().replace(__version__, "0.0.1"))
    done = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
    assert done.returncode == 2
    assert f"was made by capedjica 0.0.1, this is {__version__}: all parties must" in done.stderr
    with pytest.raises(ProtocolError, match="it does not take part"):
        SiteParty(study.hash.hex()).open(kit / "local")
    assert "was made by capedjica 0.0.1" in (home.folder / "site.log").read_text()


def test_a_key_revoked_after_approval_is_refused_by_the_sites_part(home, study, monkeypatch, capsys):
    approve(home, study, monkeypatch, capsys)
    peer = SiteHome.load(study.folder / "sites" / "s3").card().fingerprint
    file = home.folder / "site.toml"
    file.write_text(re.sub("# revoked = .*", f'revoked = ["{peer}"]', file.read_text()))
    with pytest.raises(ProtocolError, match="it does not take part"):
        SiteParty(study.hash.hex()).open(kits.find_kit(home).path / "local")
    log = (home.folder / "site.log").read_text()
    assert "site s3 of the study has a key that this site revoked" in log
    done = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
    assert done.returncode == 2
    assert peer in done.stderr


# Certificates that end


def ending(kit, days):
    (kit / "startup" / "rootCA.pem").write_bytes(certificate(days_from_now(days)))


@pytest.mark.parametrize(("days", "words"), [(20.5, "in 20 days"), (-1, "ended on")])
def test_a_site_is_warned(home, study, monkeypatch, capsys, days, words):
    approve(home, study, monkeypatch, capsys)
    command = ["site", "check", str(home.folder), "--study", str(study.folder)]
    assert "certificates" not in run_main(command, monkeypatch, capsys).stdout
    ending(kits.find_kit(home).path, days)
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
    assert "in 20 days; new kits for all: capedjica study provision STUDY --again" in warning
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
