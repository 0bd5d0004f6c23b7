"""FLARE as it is, told by a dishonest server or a dishonest site to hand over a site's files."""

import json

import pytest

from capedjica.site.participants.enrolment import enrolment_path
from capedjica.tools.confinement import landlock
from tests.attacks.flare.attacked import REACHABLE, add_part, serving, soon, start_unconfined
from tests.federated.consortium import consortium

SHUT, OPEN = "s1", "s3"
WAYS = {"command", "cookie"}
DENIED = "Permission denied"


def secrets_of(home):
    """Return what no carrier may read: key, ledger, who is enrolled, and a scan."""
    scan = sorted(home.data_path.iterdir())[0]
    # Of simulated people nobody is enrolled.
    enrolment_path(home).write_text("left_out = {}\n")
    return [home.identity_path, home.ledger_path, enrolment_path(home), scan]


@pytest.mark.skipif(landlock.abi() == 0, reason="this system has no Landlock")
def test_flare_itself_cannot_hand_over_a_sites_files(tmp_path, monkeypatch):
    """Both ways obtain the key of the site without a boundary, and "Permission denied" of the other."""
    monkeypatch.setenv("PYTHONPATH", REACHABLE)
    with consortium(tmp_path, started=False) as parties:
        wanted = {name: [str(path) for path in secrets_of(parties.home(name))] for name in (SHUT, OPEN)}
        burglars = {"server": parties.federation.server_kit, "s2": parties.kit("s2").workspace}
        for workspace in burglars.values():
            add_part(workspace, "burglar.Burglar", {"wanted": wanted, "out": str(workspace / "loot.json")})
        parties.start(SHUT, "s2")
        start_unconfined(parties, OPEN)
        with serving(parties):
            loot = {who: obtained(workspace) for who, workspace in burglars.items()}
        for who in burglars:
            for path in secrets_of(parties.home(OPEN)):
                check_obtained(loot[who][OPEN][str(path)], path.read_bytes())
            for path in secrets_of(parties.home(SHUT)):
                check_denied(loot[who][SHUT][str(path)])
        check_log((parties.kit(SHUT).workspace / "log.txt").read_text(), wanted[SHUT])


def obtained(workspace):
    out = workspace / "loot.json"
    soon(out.exists, f"the burglar in {workspace} has tried all")
    return json.loads(out.read_text())


def check_obtained(said, content):
    """By the cookie everything, by the command what is text."""
    assert content.hex() in said["cookie"]
    if content.isascii():
        assert content.decode() in said["command"]


def check_denied(said):
    assert said.keys() == WAYS
    assert DENIED in said["command"]
    # The answer could not be packed, and never came.
    assert said["cookie"] == "timeout: "


def check_log(log, files):
    for file in files:
        assert f"PermissionError: [Errno 13] {DENIED}: {file!r}" in log
