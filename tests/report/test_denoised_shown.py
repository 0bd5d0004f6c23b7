"""Denoised maps next to the raw ones: labelled, on one scale, folded away until they are asked for."""

import base64
import io
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from capedjica import CapeDJICA
from capedjica.coordinator.run.report import run_findings, run_report
from capedjica.data import make_synthetic
from capedjica.errors import InputError
from capedjica.report.downloads import png
from capedjica.report.group import group_page
from capedjica.report.pictures.slices import axial, over_brain, square
from tests.report.browser import Browser, find_chromium
from tests.report.test_report_pages import Page

CHROMIUM = find_chromium()
FOLDED = re.compile(r'<details class="denoised">(.*?)</details>', re.DOTALL)
CARD = re.compile(r"<article class=\"card\".*?</article>", re.DOTALL)
BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium")


def pixels_of(html):
    """Return the pixels of the first picture in a piece of a page."""
    found = re.search(r'<img src="data:image/png;base64,([^"]+)"', html)[1]
    return np.round(imread(io.BytesIO(base64.b64decode(found)), format="png") * 255).astype(int)


@pytest.fixture(scope="module")
def browser():
    with Browser(CHROMIUM) as browser:
        yield browser


@pytest.mark.parametrize("kind", ["pixels", "brains"])
def test_every_map_is_drawn_raw_and_denoised_on_one_scale(kind, runs, pages):
    found, source = run_findings(runs[kind]).maps, pages[kind].read_text(encoding="utf-8")
    smooth = np.load(runs[kind] / "maps_denoised.npy")
    cards = CARD.findall(source)
    assert len(cards) == len(found) == len(smooth)
    for number, card in enumerate(cards):
        (folded,) = FOLDED.findall(card)
        assert card.index("raw (for inference)") < card.index("denoised (for viewing)")
        assert "denoised (for viewing)" in folded
        assert "raw (for inference)" not in folded
        pictures = (pixels_of(card), pixels_of(folded))
        for shown, maps, values in zip(
            pictures, (found, found.denoised), (found.values, smooth), strict=True
        ):
            expected = (
                square(values[number].reshape(found.image_shape), found.faded(number), 1.0)
                if kind == "pixels"
                else over_brain(axial(maps.image)[number], found.faded(number))
            )
            np.testing.assert_array_equal(shown[expected[..., 3] > 0], expected[expected[..., 3] > 0])
        assert not np.array_equal(*pictures)


def test_faded_where_the_raw_map_is_not_reliable(runs):
    found = run_findings(runs["pixels"])
    alphas = {}
    for stability in (0.95, 0.2):
        maps = replace(found.maps, stability=np.full(len(found.maps), stability))
        folded = FOLDED.findall(group_page(replace(found, maps=maps)))
        alphas[stability] = {int(pixels_of(one)[..., 3].max()) for one in folded}
    assert alphas[0.95] == {255}
    assert max(alphas[0.2]) < 128


def test_the_page_names_the_prior(pages):
    page = Page(pages["brains"])
    assert "Raw maps are for inference. Denoised maps" in page.text
    assert "for viewing only: they are shrunk towards smooth maps." in page.text
    assert "denoised (for viewing): shrunk towards smooth maps" in page.text
    assert "smooth maps and the template" not in page.text


def test_a_template_as_prior_is_named_with_every_map():
    data = make_synthetic(3, 30, 3, 60, 10, 0)
    options = {"image_shape": (10, 10), "scan_length": 60, "insecure_noise_seed": 1}
    guided = CapeDJICA(3, 8.0, method="guided", template=data.mixing.T, **options).fit(data.sites)
    page = guided.generate_report().html
    assert "shrunk towards smooth maps and the template. They resemble the template for that reason" in page
    assert "the resemblance is not evidence for its networks" in page
    assert page.count("denoised (for viewing): shrunk towards smooth maps and the template") == 3


def test_nothing_is_folded_away_where_nothing_was_denoised(pages):
    for kind in ("regions", "not private"):
        source = pages[kind].read_text(encoding="utf-8")
        assert "denoised" not in CARD.search(source)[0]
        assert "for inference" not in source
        assert "data-unfold=" not in source.split("<script>")[0]


def test_denoised_maps_of_another_run_are_refused(runs, tmp_path):
    shutil.copytree(runs["pixels"], tmp_path / "run")
    np.save(tmp_path / "run" / "maps_denoised.npy", np.ones((2, 5)))
    with pytest.raises(InputError, match=r"maps_denoised.npy has shape \(2, 5\), expected that of maps.npy"):
        run_report(tmp_path / "run")


def test_a_picture_with_a_palette_has_the_same_pixels():
    few = np.random.default_rng(0).integers(0, 2, (20, 30, 4)).astype(np.uint8) * 255
    many = np.random.default_rng(0).integers(0, 256, (20, 30, 4)).astype(np.uint8)
    for pixels in (few, many):
        np.testing.assert_array_equal(pixels_of(f'<img src="{png(pixels)}"'), pixels)


# In a browser

STRIPS = """[...document.querySelectorAll('.card')].map((card) => [...card.querySelectorAll('img')].map(
  (one) => one.getBoundingClientRect()).map((box) => [box.left, box.width, box.height]))"""
BUTTON = "document.querySelector('[data-unfold=denoised]')"
OPEN = "[...document.querySelectorAll('details.denoised')].map((one) => one.open)"


def colour_of(browser, number, width, path):
    """Return the largest difference of red and blue in the picture of a denoised map on the screen."""
    block = f"document.querySelectorAll('details.denoised')[{number}]"
    browser.evaluate(f"{block}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    browser.screenshot(path)
    box = browser.evaluate(f"{block}.querySelector('img').getBoundingClientRect().toJSON()")
    top, left = max(0, int(box["top"])), int(box["left"])
    picture = imread(path)[top : int(box["bottom"]), left : min(left + int(box["width"]), width)]
    return np.abs(picture[..., 0] - picture[..., 2]).max()


@BROWSER
@pytest.mark.parametrize(("size", "dark"), [((1280, 900), False), ((400, 850), True)], ids=["desk", "phone"])
@pytest.mark.parametrize("kind", ["pixels", "brains"])
def test_closed_until_a_button_shows_all(kind, size, dark, browser, pages, tmp_path):
    browser.open(pages[kind], *size, dark=dark)
    closed = browser.evaluate(OPEN)
    assert closed
    assert not any(closed)
    height = browser.evaluate("document.documentElement.scrollHeight")
    browser.evaluate(f"{BUTTON}.click()")
    assert all(browser.evaluate(OPEN))
    assert browser.evaluate(f"[{BUTTON}.textContent, {BUTTON}.ariaExpanded]") == [
        "Hide all denoised maps",
        "true",
    ]
    for raw, smooth in browser.evaluate(STRIPS):
        assert raw == smooth, "the two pictures of a map have one size and stand below each other"
        assert raw[1] > 100
    assert browser.evaluate("document.documentElement.scrollWidth") == size[0]
    # The noise of a run decides which maps are faded, and a phone shows the first slices of each.
    colours = [colour_of(browser, number, size[0], tmp_path / "page.png") for number in range(len(closed))]
    assert max(colours) > 0.035, "the maps are there in colour"
    below = browser.evaluate("document.querySelector('details.denoised figcaption').innerText")
    assert below.startswith("denoised (for viewing)")
    browser.evaluate(f"{BUTTON}.click()")
    assert not any(browser.evaluate(OPEN))
    assert browser.evaluate("document.documentElement.scrollHeight") == height
    assert browser.complaints() == []


@BROWSER
def test_on_paper_both_are_there(browser, pages):
    browser.open(pages["brains"], 688, 1000)
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(browser.evaluate(OPEN))
    assert all(raw == smooth for raw, smooth in browser.evaluate(STRIPS))
    assert not browser.evaluate(f"{BUTTON}.getBoundingClientRect().height")
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert not any(browser.evaluate(OPEN))
