"""The documentation site as it is built: links, network, and its pages in a real browser at two widths."""

import subprocess
import sys

import pytest

from tests.report.browser import AXE, Browser, find_chromium
from tests.support.places import ROOT

CHROMIUM = find_chromium()
DESK, PHONE = (1280, 900), (400, 844)
PAGES = (
    "docs/index",
    "docs/user-guide/index",
    "docs/user-guide/getting-started",
    "docs/user-guide/analyses",
    "docs/concepts/plain-words",
    "docs/concepts/epsilon",
    "docs/concepts/privacy",
    "docs/concepts/threat-model",
    "docs/concepts/templates",
    "docs/concepts/findings",
    "docs/gallery/index",
    "docs/gallery/plot_01_first_networks",
    "docs/gallery/plot_07_glm_on_volumes",
    "docs/gallery/plot_10_new_analysis",
    "docs/reference/api",
    "docs/reference/api/capedjica.CapeDJICA",
    "docs/reference/api/capedjica.privacy.cape",
    "docs/reference/commands",
    "docs/reference/formats",
    "docs/reference/messages",
    "docs/reference/results",
    "benchmarks/results/utility-guided",
    "paper/RESULTS",
    "README",
    "ARCHITECTURE",
    "search",
)
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site():
    """Build the site as `make docs` does; examples that did not change are not run again."""
    folder = ROOT / "docs" / "_build"
    options = ["--conf-dir", "docs", "--jobs", "2", "--doctree-dir", folder / "doctrees", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "sphinx",
        *options,
        "--fail-on-warning",
        "--nitpicky",
        ".",
        folder / "html",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "html"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt install chromium")
    with Browser(CHROMIUM) as browser:
        yield browser


def test_links_lead_somewhere_and_nothing_is_loaded_from_the_network(site):
    command = [sys.executable, "docs/check_site.py", site]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_example_has_pictures(site):
    for example in (ROOT / "examples").glob("plot_*.py"):
        page = (site / "docs" / "gallery" / f"{example.stem}.html").read_text("utf-8")
        assert "sphx-glr-single-img" in page or "sphx-glr-multi-img" in page, example.stem


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (PHONE, True)], ids=["desk", "phone, dark"])
def test_a_page_in_a_browser(page, size, dark, browser, site):
    """It fits, has one heading, complains of nothing, asks nothing of the network, and can be used by all."""
    browser.open(site / f"{page}.html", *size, dark=dark)
    assert browser.complaints() == []
    assert all(address.startswith("file:") for address in browser.requests())
    assert browser.evaluate("document.documentElement.scrollWidth") == size[0]
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1
    if not AXE.exists():
        pytest.skip("there is no axe-core: npm install --prefix .venv axe-core")
    browser.evaluate(AXE.read_text(encoding="utf-8") + ";0")
    found = browser.evaluate(
        # Without preload: it would ask for style sheets, which a page opened from a file may not.
        "axe.run({resultTypes: ['violations'], preload: false}).then((result) => result.violations"
        ".filter((one) => ['serious', 'critical'].includes(one.impact))"
        ".map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))}`))"
    )
    assert found == []
