"""Pages in a real browser: nothing goes wrong, nothing goes out, everybody can use and print them."""

import re
from dataclasses import replace

import numpy as np
import pytest

from capedjica.coordinator.run.report import run_findings, run_report
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.one_machine.simulation import Simulation, simulate
from capedjica.report.group import group_page
from capedjica.study.study_file import Study
from tests.report.browser import AXE, ROOT, Browser, find_chromium
from tests.report.conftest import KINDS

CHROMIUM = find_chromium()
PAGES = (*KINDS, "not private", "compared", "of a site")
DESK, PHONE = (1280, 900), (390, 844)
# The width of A4 within the margins of the style sheet, and its height, in pixels of 1/96 inch.
PAPER = (int((210 - 28) / 25.4 * 96), int((297 - 32) / 25.4 * 96))
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium")


@pytest.fixture(scope="module")
def browser():
    with Browser(CHROMIUM) as browser:
        yield browser


@pytest.mark.parametrize("name", PAGES)
def test_no_errors_no_requests_and_every_picture_is_there(name, browser, pages):
    browser.open(pages[name], *DESK)
    assert browser.complaints() == []
    assert browser.requests() == [pages[name].resolve().as_uri()]
    pictures = browser.evaluate(
        "[...document.images].map((one) => [one.complete && one.naturalWidth > 0, one.alt.length > 20])"
    )
    assert all(loaded and told for loaded, told in pictures)


def test_a_request_would_be_seen_and_is_refused(browser, pages):
    """The page forbids it, so that not even a changed page could talk to anybody unnoticed."""
    browser.open(pages["pixels"], *DESK)
    code = "fetch('https://example.org/').then(() => 'went out', () => 'refused')"
    assert browser.evaluate(code) == "refused"
    assert any("Content Security Policy" in words for words in browser.complaints())


@pytest.mark.skipif(not AXE.exists(), reason="there is no axe-core: npm install --prefix .venv axe-core")
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (PHONE, True)], ids=["desk", "phone, dark"])
def test_an_accessibility_checker_finds_nothing(name, size, dark, browser, pages):
    browser.open(pages[name], *size, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    browser.evaluate(AXE.read_text(encoding="utf-8") + ";0")
    found = browser.evaluate(
        "axe.run({resultTypes: ['violations']}).then((result) => result.violations.map("
        "(one) => `${one.impact} ${one.id}: ${one.nodes.map((node) => node.html.slice(0, 150))}`))"
    )
    assert found == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_scrolls_down_and_not_to_the_side(name, browser, pages):
    browser.open(pages[name], *PHONE)
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE[0]


@pytest.mark.parametrize("name", PAGES)
def test_on_a_phone_captions_fit_numbers_are_whole_and_charts_can_be_read(name, browser, pages):
    """Tables and charts scroll by themselves; what explains them does not have to."""
    browser.open(pages[name], *PHONE)
    width = "(one) => one.getBoundingClientRect().width"
    assert all(
        one <= PHONE[0] for one in browser.evaluate(f"[...document.querySelectorAll('caption')].map({width})")
    )
    broken = browser.evaluate(
        """[...document.querySelectorAll('td:not(.left)')].filter((cell) => {
             const range = document.createRange();
             range.selectNodeContents(cell);
             return new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size > 1;
           }).map((cell) => cell.textContent)"""
    )
    assert broken == []
    sizes = browser.evaluate(
        "[...document.querySelectorAll('section > figure svg text')].map((one) => [one, one.getScreenCTM()])"
        ".map(([one, scale]) => parseFloat(getComputedStyle(one).fontSize) * Math.hypot(scale.a, scale.b))"
    )
    assert all(size >= 9 for size in sizes)


def place(browser):
    words = browser.evaluate("document.querySelector('[data-role=place]').textContent")
    return [int(number) for number in re.findall(r"[xyz] = (-?\d+)", words)], words


def pixels(browser, number):
    """What is drawn on one of the canvases."""
    return browser.evaluate(f"document.querySelectorAll('canvas')[{number}].toDataURL()")


def test_the_viewer_follows_clicks_keys_and_links(browser, pages):
    browser.open(pages["brains"], *DESK)
    browser.evaluate("document.querySelector('#viewer').scrollIntoView({behavior: 'instant'})")
    before, axial = place(browser)[0], pixels(browser, 2)
    box = browser.evaluate("document.querySelectorAll('canvas')[1].getBoundingClientRect().toJSON()")
    browser.click(box["x"] + 0.75 * box["width"], box["y"] + 0.25 * box["height"])
    here, words = place(browser)
    # The coronal slice at y: x is three quarters of the way from -80 to 80, z one quarter down from 84.
    assert here[1] == before[1]
    assert abs(here[0] - 40) <= 1
    assert abs(here[2] - 45.5) <= 1
    assert "value" in words
    assert pixels(browser, 2) != axial
    browser.evaluate("document.querySelector('[data-role=y]').focus()")
    browser.press("ArrowRight", 39)
    assert place(browser)[0][1] == here[1] + 1
    link = browser.evaluate("[...document.querySelectorAll('[data-look]')].at(-1).dataset.look")
    browser.evaluate("[...document.querySelectorAll('[data-look]')].at(-1).click()")
    number, *wanted = map(int, link.split())
    assert browser.evaluate("Number(document.querySelector('[data-role=component]').value)") == number
    browser.wait(f"document.querySelector('[data-role=place]').textContent.startsWith('x = {wanted[0]}, ')")
    assert place(browser)[0] == wanted
    assert browser.complaints() == []


def test_the_viewer_shows_other_maps_and_hides_what_is_low(browser, pages):
    browser.open(pages["brains"], *DESK)
    first, (_, words) = pixels(browser, 0), place(browser)
    browser.evaluate(
        "(() => { const one = document.querySelector('[data-role=component]'); one.value = 1;"
        "one.dispatchEvent(new Event('change')); })()"
    )
    browser.wait(f"document.querySelector('[data-role=place]').textContent !== '{words}'")
    second = pixels(browser, 0)
    assert second != first
    browser.evaluate(
        "(() => { const one = document.querySelector('[data-role=threshold]'); one.value = 0.9;"
        "one.dispatchEvent(new Event('input')); })()"
    )
    assert pixels(browser, 0) != second
    assert browser.evaluate("document.querySelector('[data-role=lowest]').textContent") == "0.90"


@pytest.mark.parametrize("name", PAGES)
def test_print_is_a4_and_cuts_no_figure(name, browser, pages):
    browser.open(pages[name], *PAPER)
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    figures = browser.evaluate(
        "[...document.querySelectorAll('figure, table, pre')].map((one) => { const box ="
        "one.getBoundingClientRect(); return [one.tagName, Math.round(box.right), Math.round(box.height),"
        "getComputedStyle(one).breakInside]; })"
    )
    assert figures
    if name == "brains":
        assert browser.evaluate("document.querySelector('.peaks').innerText").count(" mm") >= 1
    for tag, right, height, breaks in figures:
        assert right <= PAPER[0] + 1, f"a {tag} is cut at the side"
        if tag == "FIGURE":
            assert height <= PAPER[1]
            assert breaks == "avoid"
    pdf = browser.pdf()
    browser.call("Emulation.setEmulatedMedia", media="")
    sizes = [tuple(map(float, found)) for found in re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", pdf)]
    assert sizes
    assert all(abs(width - 595) < 2 and abs(height - 842) < 2 for width, height in sizes)


@pytest.mark.full
def test_the_screenshot_of_the_readme(browser, tmp_path):
    """A study of a size at which maps are stable; writes docs/images/report.png."""
    simulation = Simulation.usual("bids", subjects=(60, 70, 62), n_components=5, epsilon=20.0)
    simulate(simulation, tmp_path / "study")
    study = Study.load(tmp_path / "study")
    run_study(study, find_sites(study, tmp_path / "study" / "sites"), tmp_path / "run")
    run_report(tmp_path / "run").save_as_html(tmp_path / "report.html")
    browser.open(tmp_path / "report.html", 1180, 1250)
    browser.evaluate("document.querySelector('#maps').scrollIntoView({behavior: 'instant'})")
    picture = ROOT / "docs" / "images" / "report.png"
    picture.parent.mkdir(exist_ok=True)
    browser.screenshot(picture)
    assert browser.complaints() == []
    assert picture.stat().st_size < 1_000_000


def colour(browser):
    """Return how colourful the cuts of the viewer are, on average."""
    return browser.evaluate(
        """[...document.querySelectorAll('canvas')].map((canvas) => {
             const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
             let sum = 0;
             for (let i = 0; i < data.length; i += 4) sum += Math.abs(data[i] - data[i + 2]);
             return sum;
           }).reduce((a, b) => a + b)"""
    )


def test_the_viewer_fades_what_is_not_reliable_and_marks_the_sides(browser, runs, tmp_path):
    found, published = {}, run_findings(runs["brains"])
    for stability in (0.95, 0.2):
        path = tmp_path / f"{stability}.html"
        maps = replace(published.maps, stability=np.full(len(published.maps), stability))
        path.write_text(group_page(replace(published, maps=maps)), encoding="utf-8")
        browser.open(path, *DESK)
        browser.wait("document.querySelector('#viewer').dataset.ready === 'yes'")
        found[stability] = colour(browser)
    assert found[0.2] < 0.75 * found[0.95]
    white = browser.evaluate(
        """[1, 2, 0].map((number) => {
             const canvas = document.querySelectorAll('canvas')[number], context = canvas.getContext('2d');
             return [8, canvas.width - 30].map((left) =>
               Math.max(...context.getImageData(left, 8, 22, 24).data.filter((_, i) => i % 4 === 0)));
           })"""
    )
    assert white[0] == white[1] == [255, 255]
    assert 255 not in white[2]
