"""The pages of a site: what a data manager does, and what they do with what cannot be done."""

import html
import io
import os
import re
import shutil
import zipfile

import numpy as np
import pytest

from capedjica.coordinator.flare.provisioning import provision
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.home import SiteHome
from capedjica.site.participants.enrolment import read_enrolment
from capedjica.study.study_file import Study
from capedjica.web.site_pages import SitePages
from capedjica.web.uploads import Uploads, unpack_results
from tests.support.command_lines import parse
from tests.support.small_study import changed
from tests.web.client import Client, Served

SCRIPT = "<img src=x onerror=alert(1)>"


def files_of(folder):
    """Every file with its content, to see that nothing was changed."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-wal", "-shm", ".lock"))
    }


def offered(client, path):
    return client.act("/studies", "/studies/offer", path=str(path))


def phrase(answer):
    return re.search(r"type: ((?:approve|revoke) [0-9a-f]{8})", answer.words)[1]


def approve(client, path, **fields):
    shown = offered(client, path)
    key = shown.path.rpartition("/")[2]
    given = {"offer": key, "confirm": phrase(shown)} | fields
    return client.act(shown.path, "/studies/approve", **given)


def spent(home):
    totals = SiteHome.load(home).totals()
    return [] if totals is None else list(totals.studies.values())


def test_every_page_shows_the_site_the_commands_and_what_leaves(client, home):
    for page, command in {
        "/": "capedjica site show",
        "/cohort": "capedjica site check",
        "/studies": "capedjica site approve",
        "/ledger": "capedjica ledger show",
        "/withdrawals": "capedjica site withdraw",
        "/results": "capedjica site results",
    }.items():
        before = files_of(home)
        answer = client.get(page)
        assert answer.status == 200
        assert "What leaves this building" in answer.words
        assert command in answer.words
        assert files_of(home) == before


def test_every_command_that_is_shown_exists(client, coordinator, study):
    approve(client, study)
    revocation = re.search(r'href="[^"]*(/studies/revoke/[0-9a-f]+)"', client.get("/studies").html)[1]
    pages = {client: [*(path for path, _ in client.served.pages.links()), revocation]}
    pages[coordinator] = [path for path, _ in coordinator.served.pages.links()]
    lines = [
        html.unescape(line)
        for user, paths in pages.items()
        for path in paths
        for line in re.findall(r"<code>(capedjica [^<]+)</code>", user.get(path).html)
    ]
    assert len(lines) > 20
    for line in lines:
        parse(line)


def test_a_site_is_made(tmp_path, commands):
    with Served(SitePages(tmp_path / "north", commands("site"))) as served:
        client = Client(served)
        client.open()
        assert "no site in" in client.get("/").words
        limits = {"total_epsilon": "4", "study_epsilon": "2", "delta": "1e-5", "kind": "auto"}
        for wrong in (
            {"total_epsilon": "many"},
            {"total_epsilon": "-1"},
            {"kind": "x"},
            {"data": "/no/such"},
        ):
            answer = client.act("/", "/new", **({"name": "north"} | limits | wrong))
            assert "Not done" in answer.words, wrong
            assert not (tmp_path / "north").exists()
        answer = client.act("/", "/new", name="--help", **limits)
        assert "must not begin with a dash" in answer.words
        answer = client.act("/", "/new", name="north", **limits)
        assert "Done" in answer.words
        assert "capedjica site init north" in answer.words
        assert SiteHome.load(tmp_path / "north").policy.total.epsilon == 4
        assert "Fingerprint" in client.get("/").words


def test_scans_are_checked_and_enrolled_and_names_are_text(client, home):
    np.save(home / "data" / f"sub-{SCRIPT}.npy", np.full((60, 100), np.nan))
    answer = client.act("/cohort", "/cohort/check")
    assert answer.path == "/cohort"
    assert "usable 6 of 7" in answer.words
    assert SCRIPT in answer.words
    assert SCRIPT not in answer.html
    answer = client.act("/cohort", "/cohort/enrol")
    assert "enrolled 6 participants" in answer.words
    assert SCRIPT not in answer.html
    shown = client.get("/cohort")
    assert SCRIPT in shown.words
    assert SCRIPT not in shown.html
    assert "6 participants, enrolled" in shown.words
    again = client.act("/cohort", "/cohort/enrol")
    assert "Not done" in again.words
    answer = client.act("/cohort", "/cohort/enrol", again="yes", participants="00 01 sub-02")
    assert "enrolled 3 participants" in answer.words
    assert len(read_enrolment(SiteHome.load(home)).enrolled) == 3


def test_a_study_is_read_compared_approved_and_revoked(client, home, study):
    shown = offered(client, study / "study.toml")
    assert "Who takes part" in shown.words
    assert SiteHome.load(home).card().fingerprint in shown.words
    assert "(your own key)" in shown.words
    key = shown.path.rpartition("/")[2]
    peers = Study.load(study).contract.roster.sites
    before = files_of(home)
    wrong = {"offer": key, "confirm": phrase(shown), "said_1": peers[2].fingerprint}
    answer = client.act(shown.path, "/studies/approve", **wrong)
    assert answer.status == 400
    assert "not the one in this study" in answer.words
    wrong = {"offer": key, "confirm": phrase(shown), "said_coordinator": "abcd"}
    assert "the coordinator read out" in client.act(shown.path, "/studies/approve", **wrong).words
    for confirm in ("", "approve", "approve 00000000", "revoke " + phrase(shown).split()[1]):
        answer = client.act(shown.path, "/studies/approve", offer=key, confirm=confirm)
        assert answer.status == 400
        assert "nothing was changed" in answer.words
    assert files_of(home) == before
    right = {"offer": key, "confirm": phrase(shown), "said_1": peers[1].fingerprint.upper()}
    answer = client.act(shown.path, "/studies/approve", **right)
    assert "approved 'A small study'" in answer.words
    (one,) = spent(home)
    assert not one.revoked
    listed = client.get("/studies")
    assert "Revoke" in listed.words
    link = re.search(r'href="[^"]*(/studies/revoke/[0-9a-f]+)"', listed.html)[1]
    page = client.get(link)
    assert "A revocation is permanent" in page.words
    assert phrase(page) == f"revoke {Study.load(study).hash.hex()[:8]}"
    number = page.hidden("study")
    answer = client.act(link, "/studies/revoke", study=number, confirm="revoke")
    assert answer.status == 400
    assert not spent(home)[0].revoked
    answer = client.act(link, "/studies/revoke", study=number, confirm=phrase(page))
    assert "revoked its approval" in answer.words
    assert spent(home)[0].revoked
    refused = offered(client, study / "study.toml")
    assert "This site cannot approve it" in refused.words
    assert 'name="confirm"' not in refused.html


def test_cards_of_other_sites_are_compared_with_the_study(client, home, study):
    toml = ("study.toml", (study / "study.toml").read_bytes())
    own, other = ((study / "sites" / name / f"{name}.card").read_bytes() for name in ("s2", "s3"))
    shown = client.act("/studies", "/studies/offer", files=[toml, ("s2.card", own)])
    assert "same as on the card that you added" in shown.words
    forged = other.replace(b" s3 ", b" s2 ")
    stranger = other.replace(b" s3 ", b" nobody ")
    for wrong in (forged, stranger, b"no card", b"\xff"):
        answer = client.act("/studies", "/studies/offer", files=[toml, ("s2.card", wrong)])
        assert answer.status == 400
        assert "capedjica-web-" not in answer.words
    assert (
        "another key in this study"
        in client.act("/studies", "/studies/offer", files=[toml, ("s2.card", forged)]).words
    )
    assert not SiteHome.load(home).has_ledger


def test_a_study_beyond_the_limits_is_refused_in_words(client, home, study):
    text = (home / "site.toml").read_text()
    (home / "site.toml").write_text(re.sub(r"study_epsilon = .*", "study_epsilon = 1.0", text))
    shown = offered(client, study)
    assert "This site cannot approve it" in shown.words
    assert 'name="confirm"' not in shown.html
    key = shown.path.rpartition("/")[2]
    digest = Study.load(study).hash.hex()
    answer = client.act(shown.path, "/studies/approve", offer=key, confirm=f"approve {digest[:8]}")
    assert "Not done" in answer.words
    assert spent(home) == []


def test_a_title_is_text(client, home, study):
    hostile = changed(
        Study.load(study), study / "hostile.toml", title=f"{SCRIPT}</pre><script>alert(2)</script>"
    )
    answer = approve(client, study / "hostile.toml")
    assert hostile.content.title in answer.words
    for page in ("/", "/studies", "/ledger", "/cohort"):
        text = client.get(page).html
        assert "<img" not in text
        assert "<script>" not in text
        assert "&lt;img" in text


def test_what_changed_after_it_was_shown_is_not_approved(client, home, study):
    """A private copy of what was shown is approved, whoever can write to the original."""
    shown = offered(client, study / "study.toml")
    changed(Study.load(study), study / "other.toml", title="Another study")
    shutil.copy(study / "other.toml", study / "study.toml")
    key = shown.path.rpartition("/")[2]
    answer = client.act(shown.path, "/studies/approve", offer=key, confirm=phrase(shown))
    assert "approved 'A small study'" in answer.words
    assert [one.title for one in spent(home)] == ["A small study"]


def test_a_changed_copy_is_not_approved(client, home, study):
    shown = offered(client, study / "study.toml")
    key = shown.path.rpartition("/")[2]
    copy = client.served.pages._offers[key].path
    assert copy.parent != study
    other = changed(Study.load(study), study / "other.toml", title="Another study")
    shutil.copy(study / "other.toml", copy)
    answer = client.act(shown.path, "/studies/approve", offer=key, confirm=phrase(shown))
    assert "nothing was approved" in answer.words
    assert spent(home) == []
    # All digits of the hash are passed on: a beginning can be made to collide.
    assert client.served.pages._offers[key].terms["hash"] in answer.words
    assert other.hash.hex() in answer.words
    assert re.search(r"--hash [0-9a-f]{64} --yes", answer.words)


def test_a_kit_signed_by_another_coordinator_is_not_approved(client, home, study, tmp_path):
    """The same study, sealed by another key, in place of the kit that was shown."""
    kit = provision(Study.load(study), "localhost", 8123).site_kits / "s1.zip"
    shown = offered(client, kit)
    key = shown.path.rpartition("/")[2]
    shutil.copytree(study, tmp_path / "forged", ignore=shutil.ignore_patterns("federation"))
    forged = provision(Study.load(tmp_path / "forged"), "localhost", 8123).site_kits / "s1.zip"
    shutil.copy(forged, client.served.pages._offers[key].path)
    answer = client.act(shown.path, "/studies/approve", offer=key, confirm=phrase(shown))
    assert "--coordinator expected a kit signed with the key" in answer.words
    assert spent(home) == []
    assert "approved 'A small study'" in approve(client, kit).words


def test_files_that_a_study_names_are_copied_and_no_others(tmp_path):
    folder = tmp_path / "joint"
    (folder / "maps").mkdir(parents=True)
    for name in ("maps/atlas.nii", "mask.nii", "key.pem"):
        (folder / name).write_text(name)
    (folder / "study.toml").write_text(
        'title = "key.pem"\n[features]\natlas = "maps/atlas.nii"\natlas_sha256 = "0"\n'
        '[[analysis]]\nmask = "mask.nii"\nmask_sha256 = "0"\n'
        '[[analysis]]\nmask = "../outside"\nmask_sha256 = "0"\n'
    )
    (tmp_path / "outside").write_text("x")
    os.mkfifo(folder / "pipe.zip")
    uploads = Uploads()
    try:
        copy = uploads.copy(folder)
        copies = {str(one.relative_to(copy.parent)) for one in copy.parent.rglob("*") if one.is_file()}
        assert copies == {"study.toml", "maps/atlas.nii", "mask.nii"}
        for wrong in (folder / "pipe.zip", folder / "maps", folder / "none.zip"):
            with pytest.raises(InputError):
                uploads.copy(wrong)
        assert len(list(copy.parent.parent.iterdir())) == 1
    finally:
        uploads.close()


def test_a_path_of_an_unknown_user(client):
    for page, action, field in (
        ("/studies", "/studies/offer", "path"),
        ("/results", "/results/make", "path"),
    ):
        answer = client.act(page, action, what="report", **{field: "~nosuchuser/x"})
        assert answer.status == 400
        assert "unknown user" in answer.words


def test_files_that_are_no_kit(client, home):
    before = files_of(home)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../escaped", "x")
    for name, content in [
        ("north.zip", b"not a zip"),
        ("north.zip", packed.getvalue()),
        ("study.toml", b"\xff\xfe"),
        ("study.toml", b"title = 3"),
        ("picture.png", b"\x89PNG"),
        ("north.zip", b""),
    ]:
        answer = client.act("/studies", "/studies/offer", files=[(name, content)])
        assert answer.status == 400, name
        assert "Not done" in answer.words
        assert "capedjica-web-" not in answer.words
    for name in (
        "../../site.toml",
        "a b.zip",
        f"{SCRIPT}.zip",
        "-x.zip",
        ".zip",
        "x" * 200 + ".zip",
        "a\\b.zip",
    ):
        answer = client.act("/studies", "/studies/offer", files=[(name, b"x")])
        assert answer.status == 400, name
        assert "Rename the file" in answer.words, name
        assert SCRIPT not in answer.html
    two = [("a.zip", b"x"), ("b.zip", b"x")]
    assert client.act("/studies", "/studies/offer", files=two).status == 400
    assert client.act("/studies", "/studies/offer").status == 400
    assert client.act("/studies", "/studies/offer", path="/no/such/file.zip").status == 400
    assert client.act("/studies", "/studies/offer", path="--help").status == 400
    assert {name for name in files_of(home) if name not in before} == set()


def test_two_pages_at_once(client, home, study):
    """The second window was opened before the first one acted: its form is refused."""
    first = offered(client, study)
    second = client.get(first.path)
    own = {"form_token": second.hidden("form_token"), "seen": second.hidden("seen")}
    fields = own | {"offer": first.path.rpartition("/")[2], "confirm": phrase(first)}
    assert "Done" in client.post("/studies/approve", fields).words
    answer = client.post("/cohort/enrol", own)
    assert answer.status == 409
    assert "Reload the page" in answer.words
    assert not (home / "enrolled.toml").exists()


def test_a_second_action_waits_for_the_first(client, served):
    desk = served.pages.desk
    job = desk.start("Wait", ["site", "status", "--watch", str(served.pages.folder)], back="/", seen="0")
    try:
        page = client.get("/cohort")
        assert "Running: Wait" in page.words
        own = {"form_token": page.hidden("form_token"), "seen": page.hidden("seen")}
        answer = client.post("/cohort/enrol", own)
        assert answer.status == 409
        assert "another action is running" in answer.words
        answer = client.post(f"/jobs/{job.id}/interrupt", own)
        assert "Not done" in answer.words
        assert "interrupted" in answer.words
    finally:
        job.running.interrupt()
    assert desk.under_way is None


def test_a_withdrawal(client, home, study):
    approve(client, study)
    answer = client.act("/withdrawals", "/withdrawals/add", participant="sub-00", confirm="sub-01")
    assert answer.status == 400
    assert not (home / "withdrawn.toml").exists()
    for name in ("", "--yes", "sub-99"):
        answer = client.act("/withdrawals", "/withdrawals/add", participant=name, confirm=name)
        assert "Not done" in answer.words
        assert not (home / "withdrawn.toml").exists()
    answer = client.act("/withdrawals", "/withdrawals/add", participant="00", confirm="00")
    assert "no study reads their data" in answer.words
    # The name is on the page, and in no address.
    assert "sub-00" not in answer.path
    assert "sub-00" in client.get("/withdrawals").words


@pytest.fixture
def done(study):
    """The same study after a run on one machine."""
    given = Study.load(study)
    homes = find_sites(given, study / "sites")
    for one in homes:
        from capedjica.site.approval.participation import approve as agree

        agree(one, given)
    run_study(given, homes, study / "run")
    return study / "run"


def test_ledger_outbox_results_and_reports(client, home, done):
    shown = client.get("/ledger")
    assert "messages in all" in shown.words
    assert "subspace" in shown.words
    answer = client.act("/ledger", "/ledger/verify")
    assert "The ledger is valid" in answer.words
    budget = client.get("/").words
    assert "releases left this site" in budget
    assert re.search(r"Budget", budget)
    packed = (done / "results.zip").read_bytes()
    answer = client.act("/results", "/results/make", files=[("results.zip", packed)], what="report")
    assert "must not leave this site" in answer.words
    listed = client.get("/results")
    link = re.search(r'href="[^"]*(/results/0/report)"', listed.html)[1]
    page = client.get(link)
    assert page.status == 200
    assert "sandbox allow-scripts" in page.headers["content-security-policy"]
    assert re.findall(r'href="[^"#d][^"]*sub-', page.html) == []
    answer = client.act("/results", "/results/make", path=str(done), what="group")
    assert "Done" in answer.words
    link = re.search(r'href="[^"]*(/results/group/\w+)"', client.get("/results").html)[1]
    assert "A small study" in client.get(link).words
    for wrong in ({"what": "x", "path": str(done)}, {"what": "report"}, {"what": "report", "path": "/no"}):
        assert "Not done" in client.act("/results", "/results/make", **wrong).words
    answer = client.act("/results", "/results/make", files=[("results.zip", b"no zip")], what="report")
    assert "is not a results.zip" in answer.words


def test_an_archive_that_leads_outside_is_not_unpacked(client, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../outside", "x")
    answer = client.act(
        "/results", "/results/make", files=[("results.zip", packed.getvalue())], what="report"
    )
    assert answer.status == 400
    assert "outside of its folder" in answer.words


def packed_results(method):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("first.json", "{}")
        archive.writestr("results.json", "x" * 5000)
    return packed.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_an_archive_that_is_damaged_or_packed_otherwise_leaves_nothing(tmp_path, method):
    content = bytearray(packed_results(method))
    if method == zipfile.ZIP_DEFLATED:
        at = content.index(b"results.json") + len(b"results.json")
        content[at] = 0xFF
    (tmp_path / "results.zip").write_bytes(content)
    with pytest.raises(InputError, match=r"results\.zip"):
        unpack_results(tmp_path / "results.zip")
    assert [one.name for one in tmp_path.iterdir()] == ["results.zip"]


def test_a_revocation_names_the_study_by_its_hash(client, home, study):
    """A title that is also the name of a file does not lead to that file."""
    approve(client, study)
    for copy in SiteHome.load(home).approved_path.glob("*.toml"):
        copy.unlink()
    link = re.search(r'href="[^"]*(/studies/revoke/[0-9a-f]+)"', client.get("/studies").html)[1]
    page = client.get(link)
    number = page.hidden("study")
    assert f"capedjica site revoke {number} " in page.words
    assert phrase(page) == f"revoke {number[:8]}"
    answer = client.act(link, "/studies/revoke", study=number, confirm=phrase(page))
    assert "revoked its approval" in answer.words
    assert f"capedjica site revoke --yes {number}" in answer.words


@pytest.mark.parametrize("damage", ["settings", "key", "ledger", "folder"])
def test_a_damaged_site_is_a_clear_page(client, home, study, damage):
    approve(client, study)
    if damage == "settings":
        (home / "site.toml").write_text("nonsense")
    elif damage == "key":
        (home / "identity.pem").write_text("no key")
    elif damage == "ledger":
        (home / "ledger.sqlite").write_bytes(b"no ledger")
    else:
        shutil.move(home, home.with_name("moved"))
        os.mkdir(home)
        (home / "site.toml").write_text("")
    for page in ("/", "/cohort", "/studies", "/ledger", "/withdrawals", "/results"):
        answer = client.get(page)
        assert answer.status == 503, page
        assert "Cannot be shown" in answer.words
        assert "Traceback" not in answer.html


def test_a_site_that_another_command_holds(client, home, study):
    """A ledger that is locked by another process for long."""
    import sqlite3

    approve(client, study)
    line = sqlite3.connect(home / "ledger.sqlite", isolation_level=None)
    line.execute("BEGIN EXCLUSIVE")
    try:
        answer = client.get("/")
        assert answer.status == 503
        assert "Cannot be shown" in answer.words
    finally:
        line.close()
    assert client.get("/").status == 200


def test_pages_that_do_not_exist(client):
    for page in ("/nothing", "/jobs/0", "/studies/offer/0", "/studies/revoke/0000000000000000"):
        answer = client.get(page)
        assert answer.status == 404
        assert "No such page" in answer.words
    answer = client.act("/studies", "/studies/approve", offer="nothing", confirm="approve 00000000")
    assert answer.status == 404
    for wrong in ("", "latest", "--all", "0" * 64):
        answer = client.act("/studies", "/studies/start", study=wrong)
        assert "Not done" in answer.words
