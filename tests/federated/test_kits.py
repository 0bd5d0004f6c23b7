"""Kits as a site receives them: only its own, signed, whole, of this protocol, nothing beside its folder."""

import json
import os
import shutil
import stat
import zipfile
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.flare import processes
from capedjica.flare.certificates import check_certificates, validity
from capedjica.flare.kit import COMMUNICATION, PROTOCOL, SITE_CLASS
from capedjica.securesum.identity import Identity
from capedjica.site.approval.participation import approve
from capedjica.site.flare import kits
from tests.federated.sealed import (
    altered,
    certificate,
    days_from_now,
    lying_zip,
    rezip,
    signed,
    unzip,
    with_member,
)
from tests.support.in_process import run_main


@pytest.fixture
def site(sealed):
    """A site without a kit, and the file of its kit."""
    _, federation, homes = sealed
    yield homes["s1"], federation.site_kits / "s1.zip"
    for folder in (kits.kits_folder(homes["s1"]), homes["s1"].carrier_path):
        shutil.rmtree(folder, ignore_errors=True)


def refused(home, kit):
    """Return why a kit is not taken; nothing of it may be left."""
    outside = {path for path in home.folder.parent.rglob("*") if "studies" not in path.parts}
    with pytest.raises(InputError) as error, kits.received(home, kit):
        pass
    assert kits.installed(home) == []
    assert list(kits.kits_folder(home).iterdir()) == []
    assert {path for path in home.folder.parent.rglob("*") if "studies" not in path.parts} == outside
    return str(error.value)


def keep(home, kit):
    with kits.received(home, kit) as (study, keep_it):
        keep_it()
    return study


# A good one


def test_a_kit_is_kept_in_two_places_where_nobody_else_reads_it(sealed, site):
    """The study and the label are the agent's; the key of the network is the carrier's alone."""
    home, file = site
    study = keep(home, file)
    assert study.hash == sealed[0].hash
    kit = kits.find_kit(home)
    assert kit.path == home.folder / "studies" / study.hash.hex()[:16]
    assert kit.workspace == home.folder / "carrier" / study.hash.hex()[:16]
    assert kit.server() == "localhost:8002"
    assert kit.label.coordinator == Identity.load(sealed[1].key_path).public_key.hex()
    assert {stat.S_IMODE(path.stat().st_mode) for path in (kit.path, kit.path.parent, kit.workspace)} == {
        0o700
    }
    files = [path for path in kit.path.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {path.name for path in kit.path.iterdir()} == {"kit.json", "study"}
    assert stat.S_IMODE((kit.workspace / "startup" / "client.key").stat().st_mode) == 0o600
    key = unzip(file)["startup/client.key"]
    assert [path.name for path in home.folder.rglob("*") if path.is_file() and path.read_bytes() == key] == [
        "client.key"
    ]


def test_the_same_kit_again_changes_nothing(site):
    home, file = site
    keep(home, file)

    def when():
        folders = (kits.kits_folder(home), home.carrier_path)
        return {path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*")}

    before = when()
    keep(home, file)
    after = when()
    assert {path: after[path] for path in before if path.is_file()} == {
        path: when for path, when in before.items() if path.is_file()
    }
    assert after.keys() == before.keys()


def test_a_kit_made_anew_for_the_same_study_replaces_the_first(site, tmp_path, monkeypatch):
    home, file = site
    keep(home, file)
    newer = signed(
        file,
        tmp_path / "s1.zip",
        lambda files: files.update({"startup/client.crt": certificate(days_from_now(700))}),
        port=9000,
    )
    monkeypatch.setattr(processes, "running", lambda kit: 1)
    with pytest.raises(
        InputError, match="connected to the server of this study; first run: capedjica site stop"
    ):
        keep(home, newer)
    monkeypatch.undo()
    keep(home, newer)
    (kit,) = kits.installed(home)
    assert (kit.workspace / "startup" / "client.crt").read_bytes() == unzip(newer)["startup/client.crt"]
    assert kit.server() == "localhost:9000"
    reach = (kit.workspace / "startup" / "fed_client.json").read_text()
    assert "localhost:9000" in reach
    assert "8002" not in reach


def test_a_kit_that_is_not_kept_leaves_nothing(site):
    home, file = site
    with kits.received(home, file):
        pass
    assert list(kits.kits_folder(home).iterdir()) == []


def test_a_study_without_a_kit_is_taken_too(sealed, site):
    study, _, _ = sealed
    with kits.received(site[0], study.folder) as (given, keep_it):
        keep_it()
    assert given.hash == study.hash
    assert kits.installed(site[0]) == []


# Those that are refused


def test_the_kit_of_another_site_is_refused(sealed, site):
    home, file = site
    assert refused(home, file.with_name("s2.zip")).endswith("is the kit of site s2, but this is site s1")


def test_a_kit_of_another_protocol_names_both(site, tmp_path):
    home, file = site
    words = refused(home, signed(file, tmp_path / "kit.zip", protocol=9))
    assert f"was made for version 9 of the protocol, this program speaks version {PROTOCOL}" in words
    assert words.endswith("all parties of a study must speak the same")


CHANGES = {
    "another server": lambda files: files.update(
        {"kit.json": files["kit.json"].replace(b'"localhost"', b'"evil.example.org"')}
    ),
    "another port": lambda files: files.update({"kit.json": files["kit.json"].replace(b"8002", b"8003")}),
    "another certificate": lambda files: files.update(
        {"startup/client.crt": certificate(days_from_now(700))}
    ),
    "another root": lambda files: files.update({"startup/rootCA.pem": certificate(days_from_now(700))}),
    "another key": lambda files: files.update({"startup/client.key": b"x"}),
    "another coordinator": lambda files: files.update(
        {
            "kit.json": json.dumps(
                json.loads(files["kit.json"]) | {"coordinator": Identity.generate().public_key.hex()}
            ).encode()
        }
    ),
    "no signature": lambda files: files.update(
        {"kit.json": json.dumps(json.loads(files["kit.json"]) | {"signature": ""}).encode()}
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_kit_that_was_changed_on_its_way_is_refused(site, tmp_path, what):
    home, file = site
    before = unzip(file)
    kit = altered(file, tmp_path / "kit.zip", CHANGES[what])
    assert unzip(kit) != before
    words = refused(home, kit)
    assert words.endswith("is not signed by the coordinator it names, so it was modified; ask for it again")


def test_the_kit_of_another_coordinator_is_refused_once_one_was_approved(site, tmp_path):
    """Who comes first is pinned; a new kit of the same coordinator is welcome."""
    home, file = site
    keep(home, file)
    pinned = kits.find_kit(home).label.key.fingerprint
    stranger = Identity.generate()
    other = signed(file, tmp_path / "kit.zip", key=stranger, host="evil.example.org")
    with pytest.raises(InputError) as error:
        keep(home, other)
    assert "is signed by a different coordinator than the kit that site s1 approved" in str(error.value)
    assert f"expected {pinned}" in str(error.value)
    assert stranger.public("x").fingerprint in str(error.value)
    assert kits.find_kit(home).server() == "localhost:8002"
    keep(home, signed(file, tmp_path / "kit.zip", host="other.example.org"))
    assert kits.find_kit(home).server() == "other.example.org:8002"


def test_a_study_that_is_over_needs_no_new_kit_and_is_not_joined_again(site, tmp_path, monkeypatch, capsys):
    home, file = site
    keep(home, file)
    (kits.find_kit(home).path / "over.txt").write_text("2026-01-01\n")
    keep(home, file)
    with pytest.raises(InputError, match=r"the coordinator has ended this study .*; it needs no new kit"):
        keep(home, signed(file, tmp_path / "kit.zip", port=9000))
    started = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
    assert (started.returncode, started.stdout) == (2, "")
    assert "the coordinator ended 'A small study' on 2026-01-01; nothing to start" in started.stderr
    code, (facts,) = status_of(home, monkeypatch, capsys)
    assert (code, facts["state"]) == (10, "stopped")
    assert facts["words"] == "not running; the coordinator ended the study on 2026-01-01"


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "study/../../evil",
        "startup/../../evil",
        "/etc/evil",
        "//evil",
        "C:\\evil",
        "startup\\..\\evil",
        "evil",
        "custom/evil.py",
        "local/resources.json",
        "local/log_config.json",
        "local/custom/evil.py",
        "startup/sub_start.sh",
        "startup/fed_client.json",
        "transfer/evil",
        ".hidden",
        "",
        ".",
        "kit.json/..",
    ],
)
def test_a_file_beside_its_place_is_refused(site, tmp_path, name):
    home, file = site
    assert "is not a kit: it contains" in refused(home, with_member(file, tmp_path / "kit.zip", name))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_what_is_no_file_is_refused(site, tmp_path, kind):
    home, file = site
    kit = with_member(file, tmp_path / "kit.zip", "study/link", b"/etc/passwd", kind | 0o777)
    assert refused(home, kit).endswith("is not a kit: it contains 'study/link'")


def test_a_kit_that_is_too_large_is_refused(site, tmp_path, monkeypatch):
    home, file = site
    monkeypatch.setattr(kits, "_MOST_BYTES", 1 << 20)
    bomb = with_member(file, tmp_path / "kit.zip", "study/bomb", bytes(1 << 20))
    assert refused(home, bomb).endswith("is not a kit: expected at most 200 files and 1 MiB")


def test_a_kit_of_too_many_files_is_refused(site, tmp_path):
    home, file = site
    files = unzip(file) | {f"study/{n}": b"" for n in range(200)}
    assert refused(home, rezip(files, tmp_path / "kit.zip")).endswith(
        "is not a kit: expected at most 200 files and 512 MiB"
    )


def test_a_file_larger_than_it_says_is_not_unpacked(site, tmp_path, monkeypatch):
    """A bomb that lies: 30 MB of zeros that claim to be 10 bytes."""
    home, file = site
    (tmp_path / "kit.zip").write_bytes(lying_zip(unzip(file), "study/bomb", bytes(30_000_001), 10))
    unpacked, real = [], zipfile.ZipFile.extractall

    def extract(archive, into):
        try:
            real(archive, into)
        finally:
            unpacked.extend(path.stat().st_size for path in into.rglob("*"))

    monkeypatch.setattr(zipfile.ZipFile, "extractall", extract)
    assert "cannot be unpacked: Bad CRC-32" in refused(home, tmp_path / "kit.zip")
    assert 0 < max(unpacked) < 10_000


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_the_usual_packing_is_unpacked(site, tmp_path, method):
    home, file = site
    shutil.copy(file, tmp_path / "kit.zip")
    with zipfile.ZipFile(tmp_path / "kit.zip", "a", method) as archive:
        archive.writestr("study/odd", b"x" * 1000)
    assert "is not a kit: it contains 'study/odd'" in refused(home, tmp_path / "kit.zip")


def test_what_is_no_zip_is_refused(site, tmp_path):
    home, _ = site
    for content in (b"", b"PK\x03\x04", b"hello", bytes(1000)):
        (tmp_path / "kit.zip").write_bytes(content)
        assert "kit.zip cannot be unpacked: " in refused(home, tmp_path / "kit.zip")
    missing = "absent.zip cannot be unpacked: No such file or directory; expected a kit (NAME.zip)"
    assert missing in refused(home, tmp_path / "absent.zip")
    (tmp_path / "folder.zip").mkdir()
    assert "cannot be unpacked: " in refused(home, tmp_path / "folder.zip")


def test_another_zip_is_refused(site, tmp_path):
    home, _ = site
    kit = rezip({"results.csv": b""}, tmp_path / "kit.zip")
    assert refused(home, kit).endswith("is not a kit: it lacks kit.json")


def test_what_flare_may_do_at_a_site_is_decided_by_the_site(site):
    """Whatever a coordinator would like: no other classes, no code, no commands, no streams of logs."""
    home, file = site
    keep(home, file)
    local = kits.find_kit(home).workspace / "local"
    names = {"resources.json", "authorization.json", "log_config.json", "comm_config.json"}
    assert {path.name for path in local.iterdir()} == names
    assert json.loads((local / "comm_config.json").read_text()) == COMMUNICATION
    resources = json.loads((local / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == [SITE_CLASS]
    assert resources["allow_log_streaming"] is False
    assert not any("stream" in one["path"].lower() for one in resources["components"])
    allowed = json.loads((local / "authorization.json").read_text())["permissions"]
    powers = {power for power, who in allowed["project_admin"].items() if who != "none"}
    assert powers == {"submit_job", "manage_job", "view"}
    assert allowed["org_admin"] == allowed["lead"] == allowed["member"] == {}


@pytest.mark.parametrize(
    "label",
    [
        {"host": "localhost:8002 evil"},
        {"host": "evil\x1b[2J"},
        {"host": ""},
        {"host": "a" * 65},
        {"host": "../x"},
        {"port": 0},
        {"port": 65536},
        {"port": -1},
    ],
)
def test_a_kit_that_does_not_say_where_the_server_is_is_refused(site, tmp_path, label):
    home, file = site
    words = refused(home, signed(file, tmp_path / "kit.zip", **label))
    assert "has no valid server address" in words
    assert words.isprintable()


def test_what_flare_runs_is_written_at_the_site(site):
    """Nothing of what a coordinator sends is run: scripts and settings are those of the site's own FLARE."""
    home, file = site
    keep(home, file)
    startup = kits.find_kit(home).workspace / "startup"
    assert (startup / "sub_start.sh").exists()
    assert not any(name.endswith((".sh", ".py")) for name in unzip(file))
    reach = json.loads((startup / "fed_client.json").read_text())
    assert reach["servers"][0]["service"] == {"scheme": "tcp", "target": "localhost:8002"} or (
        "localhost:8002" in json.dumps(reach["servers"])
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_a_damaged_kit_is_refused_in_words(site, tmp_path, data):
    """Cut off, or with some bytes changed: refused, or else none the worse for it."""
    home, file = site
    content = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(0, 3))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "kit.zip").write_bytes(content)
    with suppress(InputError), kits.received(home, tmp_path / "kit.zip") as (study, _):
        assert study.folder.is_relative_to(home.folder)
    assert list(kits.kits_folder(home).iterdir()) == []


@pytest.mark.parametrize(
    "label",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"site": "\xff"}',
        b"[" * 100_000,
        b'{"site": "s1", "study": "x", "capedjica": "1", "more": 1}',
        b'{"site": "s1", "study": "ff", "capedjica": "0.1.0"}',
    ],
)
def test_a_label_that_cannot_be_read_is_refused(site, tmp_path, label):
    home, file = site
    kit = altered(file, tmp_path / "kit.zip", lambda files: files.update({"kit.json": label}))
    assert "is not a kit of this version: " in refused(home, kit)


@pytest.mark.parametrize("key", ["", "ff", "zz" * 32])
def test_a_label_without_a_key_is_refused(site, tmp_path, key):
    home, file = site

    def rewrite(files):
        files["kit.json"] = json.dumps(json.loads(files["kit.json"]) | {"coordinator": key}).encode()

    words = refused(home, altered(file, tmp_path / "kit.zip", rewrite))
    assert "kit" in words


def test_a_kit_whose_study_was_changed_is_refused(site, tmp_path):
    home, file = site

    def raise_epsilon(files):
        text = files["study/study.toml"]
        files["study/study.toml"] = text.replace(b"epsilon = 10.0", b"epsilon = 19.0")
        assert files["study/study.toml"] != text

    kit = altered(file, tmp_path / "kit.zip", raise_epsilon)
    assert "but its label names" in refused(home, kit)


@pytest.mark.parametrize(
    "name",
    ["startup/rootCA.pem", "startup/client.crt", "startup/client.key", "study"],
)
def test_a_kit_that_is_not_complete_is_refused(site, tmp_path, name):
    home, file = site

    def remove(files):
        for path in [path for path in files if path.startswith(name)]:
            del files[path]

    assert name in refused(home, altered(file, tmp_path / "kit.zip", remove))


@pytest.mark.parametrize("name", ["startup/client.crt", "startup/rootCA.pem"])
def test_a_certificate_that_is_none_is_refused(site, tmp_path, name):
    home, file = site
    kit = signed(file, tmp_path / "kit.zip", lambda files: files.update({name: b"-----BEGIN\xff"}))
    assert "certificates" in refused(home, kit)


# Certificates that end


@pytest.mark.parametrize("name", ["startup/client.crt", "startup/rootCA.pem"])
def test_an_expired_kit_is_refused(site, tmp_path, name):
    home, file = site
    old = certificate(days_from_now(-1))
    words = refused(home, signed(file, tmp_path / "kit.zip", lambda files: files.update({name: old})))
    assert f"expired on {days_from_now(-1).date()}" in words
    assert "the study must be provisioned again" in words


def test_a_kit_warns_in_its_last_month_and_not_before(site):
    home, file = site
    keep(home, file)
    kit = kits.find_kit(home)
    end = validity(kit.workspace)[1]
    day = days_from_now(1) - days_from_now(0)
    assert end > days_from_now(300)
    assert check_certificates(kit.workspace) is None
    assert check_certificates(kit.workspace, end - 31 * day) is None
    warning = check_certificates(kit.workspace, end - 29.5 * day)
    assert warning is not None
    assert warning.endswith("in 29 days")
    with pytest.raises(InputError, match="expired on"):
        check_certificates(kit.workspace, end)


def test_a_kit_from_the_future_says_that_the_clock_is_slow(site):
    home, file = site
    keep(home, file)
    with pytest.raises(InputError, match=r"the clock of this machine shows .*; set the clock"):
        check_certificates(kits.find_kit(home).workspace, days_from_now(-1))


# Commands at the site


def test_a_site_without_a_kit_is_told_what_to_do(site, monkeypatch, capsys):
    home, _ = site
    ended = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
    assert ended.returncode == 2
    assert "site s1 has no kit; first run: capedjica site approve KIT.zip" in ended.stderr
    ended = run_main(["site", "stop", str(home.folder)], monkeypatch, capsys)
    assert (ended.returncode, ended.stdout) == (0, "Site s1 was not running.\n")


def test_a_site_does_not_start_what_it_has_not_approved(site, monkeypatch, capsys):
    home, file = site
    keep(home, file)
    ended = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
    assert ended.returncode == 2
    assert "it has not approved 'A small study'" in ended.stderr
    assert not (kits.find_kit(home).path / "supervisor.pid").exists()


def test_a_site_does_not_start_with_scans_that_changed_since_approval(site, monkeypatch, capsys):
    home, file = site
    study = keep(home, file)
    approve(home, study)
    first = sorted(home.data_path.iterdir())[0]
    kept = first.read_bytes()
    try:
        first.write_bytes(kept[:-8] + bytes(8))
        ended = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
    finally:
        first.write_bytes(kept)
    assert ended.returncode == 2
    assert "to use the current data, approve the study again" in ended.stderr


def test_join_checks_approves_and_starts(site, monkeypatch, capsys, tmp_path):
    """One command for the three, by relative paths; the first that cannot be done ends it."""
    home, file = site
    shutil.copy(file, tmp_path / "s1.zip")
    monkeypatch.chdir(tmp_path)
    name = os.path.relpath(home.folder, tmp_path)
    study = run_main(["site", "join", "study.toml", name, "--yes"], monkeypatch, capsys)
    assert study.returncode == 2
    assert "is not a kit (NAME.zip)" in study.stderr
    first = sorted(home.data_path.iterdir())[0]
    away = first.rename(tmp_path / first.name)
    try:
        refused = run_main(["site", "join", "s1.zip", name, "--yes"], monkeypatch, capsys)
    finally:
        away.rename(first)
    assert refused.returncode == 2, refused.stdout
    assert kits.installed(home) == []
    joined = run_main(["site", "join", "s1.zip", name, "--yes"], monkeypatch, capsys)
    try:
        assert joined.returncode == 0, joined.stderr
        said = " ".join(joined.stdout.split())
        assert said.index("usable") < said.index("Site s1 approved") < said.index("Site s1 takes part in")
        assert processes.running(kits.find_kit(home).path.resolve()) is not None
    finally:
        assert run_main(["site", "stop", name], monkeypatch, capsys).returncode == 0


def status_of(home, monkeypatch, capsys):
    ended = run_main(["site", "status", str(home.folder), "--json"], monkeypatch, capsys)
    return ended.returncode, json.loads(ended.stdout)


def test_status_tells_what_is_not_connected(site, monkeypatch, capsys):
    """No kit; a kit that does not run; one that runs and finds no server; one that cannot be used."""
    home, file = site
    assert status_of(home, monkeypatch, capsys) == (10, [])
    said = run_main(["site", "status", str(home.folder)], monkeypatch, capsys).stdout
    assert said == "Site s1 has no kit; first run: capedjica site approve KIT.zip\n"
    approve(home, keep(home, file))
    code, (facts,) = status_of(home, monkeypatch, capsys)
    assert (code, facts["state"], facts["spent"]["releases"]) == (10, "stopped", 0)
    started = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
    assert started.returncode == 0, started.stderr
    assert "The carrier, the program with network access, is confined by" in started.stdout
    assert "Not connected yet: the server at localhost:8002 does not answer." in started.stdout
    try:
        code, (facts,) = status_of(home, monkeypatch, capsys)
        assert (code, facts["state"]) == (11, "connecting")
        assert facts["agent"].endswith("no question yet")
        again = run_main(["site", "start", str(home.folder)], monkeypatch, capsys)
        assert (again.returncode, again.stdout) == (2, "")
        assert "site s1 already takes part in 'A small study', as process" in again.stderr
        assert facts["carrier"].startswith("confined by ")
        said = run_main(["site", "status", str(home.folder)], monkeypatch, capsys).stdout
        assert "not connected yet: the server does not answer" in said
        # By any name of the same folder.
        monkeypatch.chdir(home.folder.parent)
        for name in (home.folder.name, f"./{home.folder.name}/", f"../{home.folder.parent.name}/s1"):
            ended = run_main(["site", "status", name, "--json"], monkeypatch, capsys)
            (facts,) = json.loads(ended.stdout)
            assert (ended.returncode, facts["state"]) == (11, "connecting"), name
        assert "epsilon 0 of 10 in 0 releases" in said
    finally:
        assert run_main(["site", "stop", str(home.folder)], monkeypatch, capsys).returncode == 0
    label = kits.find_kit(home).path / "kit.json"
    label.write_text(label.read_text().replace('"localhost"', '"local host"'))
    code, (facts,) = status_of(home, monkeypatch, capsys)
    assert (code, facts["state"]) == (10, "unusable")
    assert "has no valid server address" in facts["words"]


def test_the_command_refuses_the_kit_of_another_site(site, monkeypatch, capsys):
    home, file = site
    other = str(file.with_name("s3.zip"))
    ended = run_main(["site", "approve", other, "--site", str(home.folder)], monkeypatch, capsys)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "is the kit of site s3, but this is site s1" in ended.stderr


def test_a_kit_is_found_by_the_beginning_of_its_study(sealed, site):
    home, file = site
    keep(home, file)
    name = sealed[0].hash.hex()
    assert kits.find_kit(home, name[:6]).label.study == name
    assert kits.find_kit(home, "A small study").label.study == name
    with pytest.raises(InputError, match=rf"no kits .* Its kits: 'A small study' \({name[:16]}\)"):
        kits.forget(home, "A small")
    with pytest.raises(InputError, match="site s1 has no kit of study ffffffff"):
        kits.find_kit(home, "ffffffff")
    later = shutil.copytree(kits.find_kit(home).path, home.folder / "studies" / "later")
    os.utime(later, (2e9, 2e9))
    assert [kit.path for kit in kits.installed(home)] == [later, home.folder / "studies" / name[:16]]
