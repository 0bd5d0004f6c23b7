"""The whole story in a browser: four sites on NVIDIA FLARE, from a folder of scans to the report."""

import shutil
import time
from contextlib import contextmanager

import pytest

from capedjica.coordinator.flare.progress import Progress, read_progress
from capedjica.flare import processes
from capedjica.privacy.ledger import Totals
from capedjica.site.flare import kits
from capedjica.site.flare.starting import AGENT
from capedjica.site.home import SiteHome
from capedjica.web.site_pages import SitePages
from capedjica.web.study_pages import StudyPages
from tests.federated.consortium import own_port
from tests.report.browser import Browser
from tests.web.client import PATIENCE, Served
from tests.web.test_browser import CHROMIUM, User, look_at

OTHERS = ("s2", "s3", "s4")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium"),
]


@pytest.fixture
def browsers():
    """Two browsers: the data manager's and the coordinator's."""
    with Browser(CHROMIUM) as one, Browser(CHROMIUM) as other:
        yield one, other


@pytest.fixture
def north(tmp_path, study, commands, browsers):
    """The pages of a site that is to be made."""
    shutil.copytree(study / "sites" / "s1" / "data", tmp_path / "scans")
    with Served(SitePages(tmp_path / "north", commands("site"))) as served:
        yield User(browsers[0], served)
        commands("site").run("site", "stop", str(tmp_path / "north"))


@pytest.fixture
def coordinator(tmp_path, commands, browsers):
    (tmp_path / "joint").mkdir()
    with Served(StudyPages(tmp_path / "joint", commands("study"))) as served:
        yield User(browsers[1], served)
        run = served.pages._run
        if run is not None and not run.done.is_set():
            run.running.interrupt()
            run.done.wait(60)


@pytest.fixture
def others(study, commands):
    """The folders of the other sites, by name."""
    folders = {name: study / "sites" / name for name in OTHERS}
    yield folders
    for folder in folders.values():
        commands("site").run("site", "stop", str(folder))


def wait_until(condition, what):
    end = time.monotonic() + 3 * PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def released(user):
    """How many releases the coordinator's open page shows."""
    words = user.browser.text()
    found = [line for line in words.splitlines() if " of at most " in line]
    return int(found[0].split()[0]) if found else 0


@contextmanager
def held(folder):
    """Hold the agent of a site for a while."""
    agents = processes.family(kits.find_kit(SiteHome.load(folder)).path, AGENT)
    for one in agents:
        one.suspend()
    try:
        yield
    finally:
        for one in agents:
            one.resume()


def spent(folder) -> Totals:
    return SiteHome.load(folder).totals()


def test_four_sites_one_withdrawal_one_revocation_and_a_report(
    tmp_path, north, coordinator, others, commands
):
    # A site is made, its scans are checked and enrolled.
    limits = {"total_epsilon": "30", "study_epsilon": "20"}
    scans = str(tmp_path / "scans")
    assert "Created" in north.form("/", "Create the site", name="north", data=scans, **limits)
    assert "6 of 6" in north.form("/cohort", "Check the scans")
    assert "enrolled 6 participants" in north.form("/cohort", "Enrol")
    for folder in others.values():
        assert commands("site").run("site", "enrol", str(folder)).ok
    # The coordinator writes a study, adds the sites by their cards, and makes kits.
    given = {"title": "Joint networks", "components": "3", "timepoints": "60", "epsilon": "8"}
    assert "draft" in coordinator.form("/", "Write the draft", **given, **{"image-shape": "10x10"})
    cards = [tmp_path / "north" / "north.card", *(folder / f"{name}.card" for name, folder in others.items())]
    assert "Sites now: 4" in coordinator.form("/", "Add sites", files=cards)
    words = coordinator.form("/kits", "Seal the study and make kits", host="localhost", port=str(own_port()))
    assert "Sealed 'Joint networks'" in words
    made = tmp_path / "joint" / "federation" / "kits"
    # A refusal: the kit of another site.
    refused = north.form("/studies", "Show the terms", files=[made / "s2.zip"])
    assert "is the kit of site s2, but this is site north" in refused
    # Its own is approved, and started.
    assert "coordinator" in north.form("/studies", "Show the terms", files=[made / "north.zip"])
    place, phrase = north.path(), north.phrase()
    look_at(north, place)
    assert "approved 'Joint networks'" in north.form(place, "Approve", confirm=phrase)
    words = north.form("/studies", "Start")
    assert "takes part in 'Joint networks'" in words
    for name, folder in others.items():
        joined = commands("site").run("site", "join", str(made / f"{name}.zip"), str(folder), "--yes")
        assert joined.ok, joined.error
    # Somebody withdraws while the agent runs, which alone writes to the ledger then.
    words = north.form("/withdrawals", "Withdraw permanently", participant="sub-05", confirm="sub-05")
    assert "no study reads their data" in words
    north.visit("/studies")
    north.browser.push("Revoke …")
    place, phrase = north.path(), north.phrase()
    # The run is followed on an open page, which is not loaded again.
    coordinator.form("/run", "Run the study, or resume it")
    coordinator.visit("/run")
    coordinator.browser.evaluate("window.stayed = true")
    run = tmp_path / "joint" / "run"
    wait_until(lambda: (read_progress(run) or Progress(phase="joining")).n_done, "the first release")
    # One of the others is held, so that the run does not end before the revocation.
    with held(others["s4"]):
        wait_until(lambda: released(coordinator) >= 1, "a release is shown")
        assert "revoked its approval" in north.form(place, "Revoke permanently", confirm=phrase)
        left = spent(tmp_path / "north").overall.n_releases
    wait_until(lambda: "complete" in coordinator.browser.text(), "the run is complete")
    assert coordinator.browser.evaluate("window.stayed")
    assert "lost during the run" in coordinator.browser.text()
    look_at(coordinator, "/run")
    assert spent(tmp_path / "north").overall.n_releases == left
    assert all(spent(folder).overall.n_releases > left for folder in others.values())
    # The report is opened, by the coordinator and at a site.
    assert "Wrote" in coordinator.form("/results", "Write the report")
    coordinator.visit("/results")
    coordinator.browser.push("Read the report")
    assert "Joint networks" in coordinator.browser.text()
    with Served(SitePages(others["s2"], commands("site"))) as served:
        user = User(north.browser, served)
        packed = tmp_path / "joint" / "run" / "results.zip"
        assert "must not leave" in user.form("/results", "Write the local report", files=[packed])
        user.visit("/results")
        user.browser.push("read the report")
        assert "Not to be shared" in user.browser.text()


def test_an_agent_that_dies_while_the_page_is_open(tmp_path, north, coordinator, others, commands):
    home = others["s2"]
    for folder in others.values():
        assert commands("site").run("site", "enrol", str(folder)).ok
    given = {"title": "Joint networks", "components": "3", "timepoints": "60", "epsilon": "8"}
    coordinator.form("/", "Write the draft", **given, **{"image-shape": "10x10"})
    cards = [folder / f"{name}.card" for name, folder in others.items()]
    coordinator.form("/", "Add sites", files=cards)
    coordinator.form("/kits", "Seal the study and make kits", host="localhost", port=str(own_port()))
    kit = tmp_path / "joint" / "federation" / "kits" / "s2.zip"
    assert commands("site").run("site", "join", str(kit), str(home), "--yes").ok
    with Served(SitePages(home, commands("site"))) as served:
        user = User(north.browser, served)
        user.visit("/studies")
        user.browser.wait("document.querySelector('[data-live]').innerText.includes('connecting')")
        user.browser.evaluate("window.stayed = true")
        processes.stop(kits.find_kit(SiteHome.load(home)).path)
        user.browser.wait("document.querySelector('[data-live]').innerText.includes('not running')")
        assert user.browser.evaluate("window.stayed")
        # What the page offers still works: the ledger is written by the command itself now.
        user.browser.push("Revoke …")
        place, phrase = user.path(), user.phrase()
        assert "revoked its approval" in user.form(place, "Revoke permanently", confirm=phrase)
