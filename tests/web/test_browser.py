"""The pages in a real browser: nothing goes wrong, nothing goes out, everybody can use them."""

import re
import shutil

import pytest

from capedjica.coordinator.flare.provisioning import provision
from capedjica.site.approval.participation import approve
from capedjica.site.flare import kits
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.web.site_pages import SitePages
from capedjica.web.study_pages import StudyPages
from tests.report.browser import AXE, Browser, find_chromium
from tests.web.client import Served

CHROMIUM = find_chromium()
DESK, PHONE = (1280, 900), (400, 844)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium")


class User:
    """Somebody in front of a browser with the pages of one server."""

    def __init__(self, browser, served):
        self.browser, self.served = browser, served
        browser.go(served.addresses[-1])
        browser.wait("!document.title.startsWith('Open')")

    def visit(self, page, size=DESK, dark=False):
        address = f"http://127.0.0.1:{self.served.port}{self.served.guard.base}{page}"
        self.browser.go(address, *size, dark)

    def form(self, page, button, files=None, **fields):
        """Fill in a form, send it, and return what is read when it is done."""
        if page is not None:
            self.visit(page)
        for name, value in fields.items():
            self.browser.fill(name, value)
        if files:
            self.browser.choose_files("files", *files)
        self.browser.push(button)
        self.browser.wait("document.readyState === 'complete' && !document.querySelector('[data-reload]')")
        return self.browser.text()

    def phrase(self):
        return re.search(r"type: ((?:approve|revoke) [0-9a-f]{8})", self.browser.text())[1]

    def path(self):
        return self.browser.evaluate("location.pathname").removeprefix(self.served.guard.base)


def look_at(user, page, allowed=()):
    """Open a page on a desk in the light and on a phone in the dark, and find nothing wrong with it."""
    for size, dark in ((DESK, False), (PHONE, True)):
        user.visit(page, size, dark)
        browser = user.browser
        assert [one for one in browser.complaints() if not any(word in one for word in allowed)] == []
        own = f"http://127.0.0.1:{user.served.port}/"
        assert all(one.startswith(own) for one in browser.requests())
        assert browser.evaluate("document.documentElement.scrollWidth") == size[0], page
        assert browser.evaluate("document.querySelectorAll('h1').length") == 1
        if not AXE.exists():
            continue
        browser.evaluate(AXE.read_text(encoding="utf-8") + ";0")
        found = browser.evaluate(
            "axe.run({resultTypes: ['violations']}).then((result) => result.violations.map("
            "(one) => `${one.impact} ${one.id}: ${one.nodes.map((node) => node.html.slice(0, 150))}`))"
        )
        assert found == [], page


@pytest.fixture(scope="module")
def browser():
    with Browser(CHROMIUM) as browser:
        yield browser


@pytest.fixture
def user(browser, served):
    return User(browser, served)


def test_the_story_of_a_site(browser, study, tmp_path, commands):
    """A site is made, its scans checked and enrolled, a study approved, somebody withdraws, it is revoked."""
    data = shutil.copytree(study / "sites" / "s1" / "data", tmp_path / "scans")
    with Served(SitePages(tmp_path / "north", commands("site"))) as served:
        user = User(browser, served)
        look_at(user, "/")
        words = user.form(
            "/", "Create the site", name="north", total_epsilon="30", study_epsilon="20", data=str(data)
        )
        assert "Created" in words
        assert "usable" in user.form("/cohort", "Check the scans")
        assert "enrolled 6 participants" in user.form("/cohort", "Enrol")
        offer = _study_with(study, tmp_path, SiteHome.load(tmp_path / "north"))
        words = user.form("/studies", "Show the terms", files=[offer])
        assert "Who takes part" in words
        place, phrase = user.path(), user.phrase()
        look_at(user, place)
        assert "nothing was changed" in user.form(place, "Approve", confirm="approve it")
        look_at(user, place)
        words = user.form(place, "Approve", confirm=phrase)
        assert "Site north approved 'A small study'" in words
        look_at(user, user.path())
        for page in ("/", "/cohort", "/studies", "/ledger", "/withdrawals", "/results"):
            look_at(user, page)
        words = user.form("/withdrawals", "Withdraw permanently", participant="sub-00", confirm="sub-00")
        assert "no study reads their data" in words
        user.visit("/studies")
        browser.push("Revoke …")
        place, phrase = user.path(), user.phrase()
        look_at(user, place)
        assert "revoked its approval" in user.form(place, "Revoke permanently", confirm=phrase)
        # A refusal: what was revoked cannot be approved again.
        words = user.form("/studies", "Show the terms", files=[offer])
        assert "This site cannot approve it" in words
        look_at(user, user.path())
        assert "The ledger is valid" in user.form("/ledger", "Verify the ledger")
        look_at(user, "/nothing", allowed=["404"])
        served.clock.now += 10_000
        user.visit("/")
        assert "The pages are locked" in browser.text()
        look_at(user, "/", allowed=["403"])


def _study_with(study, folder, home):
    """The small study with another site in the place of the first."""
    text = (study / "study.toml").read_text()
    old = SiteHome.load(study / "sites" / "s1")
    text = text.replace(old.card().card, home.card().card).replace('"s1"', '"north"')
    (folder / "offered").mkdir()
    path = folder / "offered" / "study.toml"
    path.write_text(text)
    return path


def test_the_pages_of_a_coordinator(browser, study, commands):
    with Served(StudyPages(study, commands("study"))) as served:
        user = User(browser, served)
        for page in ("/", "/terms", "/plan", "/kits", "/run", "/results"):
            look_at(user, page)
        user.visit("/plan")
        before = browser.evaluate("document.querySelector('#drawing').innerText")
        browser.evaluate(
            "document.querySelector('#subjects').value = 900;"
            "document.querySelector('#subjects').dispatchEvent(new Event('input', {bubbles: true}))"
        )
        browser.wait("document.querySelector('#drawing').innerText.includes('900')")
        assert browser.evaluate("document.querySelector('output[for=subjects]').textContent") == "900"
        assert browser.evaluate("document.querySelector('#drawing').innerText") != before
        browser.wait("document.querySelector('#predicted').innerText.includes('for 900 participants')")
        assert "--subjects 900" in browser.text()
        user.visit("/plan")
        browser.evaluate("document.querySelector('form[data-predict] button').click()")
        browser.wait("document.querySelector('#predicted').innerText.includes('for 30 participants')")
        assert browser.complaints() == []


def test_the_state_is_updated_without_a_reload(user, home, study):
    user.visit("/studies")
    assert "connected to no study" in user.browser.text()
    user.browser.evaluate("window.stayed = true")
    given = Study.load(study)
    federation = provision(given, "localhost", 8123)
    site = SiteHome.load(home)
    with kits.received(site, federation.site_kits / "s1.zip") as (received, keep):
        approve(site, received)
        keep()
    user.browser.wait("document.querySelector('[data-live]').innerText.includes('A small study')")
    assert user.browser.evaluate("window.stayed")
    # An agent that died while the page was open: nothing runs, and the page says so.
    assert "not running" in user.browser.text()


def test_without_script_everything_is_there(user, home):
    user.browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        assert "usable" in user.form("/cohort", "Check the scans")
        assert "enrolled 6 participants" in user.form("/cohort", "Enrol")
        user.visit("/")
        assert not user.browser.evaluate("document.documentElement.classList.contains('scripted')")
        assert "Budget" in user.browser.text()
    finally:
        user.browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert (home / "enrolled.toml").exists()


def test_the_page_that_is_opened_for_the_owner_leads_in(browser, served):
    """The token is in a private file, not on the command line of the browser."""
    page = served.pages.uploads.opening_page(served.addresses[-1])
    assert page.parent.stat().st_mode & 0o777 == 0o700
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait("document.title.startsWith('Site s1')")
    assert "token" not in browser.evaluate("location.href")


def test_paper_has_what_is_read_and_not_what_is_pressed(user):
    user.visit("/")
    pages = re.findall(rb"/Type\s*/Page\b", user.browser.pdf())
    assert 1 <= len(pages) <= 3
    user.browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        shown = user.browser.evaluate(
            "[...document.querySelectorAll('button, nav')].filter((one) => one.offsetParent !== null).length"
        )
        assert shown == 0
        assert "Budget" in user.browser.text()
    finally:
        user.browser.call("Emulation.setEmulatedMedia", media="")


def test_another_site_cannot_send_a_form(user, home, tmp_path):
    """A page of another origin posts to the pages: the browser leaves the cookie out, and nothing happens."""
    token = user.browser.evaluate("document.querySelector('[name=form_token]').value")
    target = f"http://127.0.0.1:{user.served.port}{user.served.guard.base}/cohort/enrol"
    page = tmp_path / "evil.html"
    page.write_text(
        f'<form method="post" action="{target}"><input name="form_token" value="{token}">'
        '<input name="seen" value="0"></form><main><button>Go</button></main>'
        "<script>document.querySelector('button').onclick = () => document.forms[0].submit()</script>"
    )
    user.browser.open(page)
    user.browser.push("Go")
    assert "came from another page" in user.browser.text()
    assert not (home / "enrolled.toml").exists()


def test_the_keyboard_reaches_everything(user):
    user.visit("/studies")
    reached = []
    for _ in range(40):
        user.browser.press("Tab", 9)
        reached.append(
            user.browser.evaluate("document.activeElement.textContent.trim() || document.activeElement.name")
        )
    for wanted in ("Skip to the content", "Overview", "Lock", "files", "path", "Show the terms"):
        assert wanted in reached
