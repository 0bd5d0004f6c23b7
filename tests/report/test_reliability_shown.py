"""Maps that are not reliable: said first and shown faded, on every page and in the terminal."""

import html
import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from capedjica.algorithms.reliability import Reliability
from capedjica.cli import main
from capedjica.coordinator.run.report import comparison_report, run_findings, run_report
from capedjica.report.group import group_page
from capedjica.report.local import Connections, PersonResults, Spectrum
from capedjica.report.pictures.figures import maps_figure, profiles_figure
from capedjica.report.pictures.slices import FADED
from capedjica.study.study_file import Study
from tests.report.test_report_pages import Page

NOISE = {"regions": {"noisy sum"}, "none": {"sum"}}


def graded(run, *stability):
    """Return what a run published, with maps as stable as is said."""
    found = run_findings(run)
    return replace(found, maps=replace(found.maps, stability=np.array(stability)))


@pytest.fixture(scope="module")
def n_maps(runs):
    return len(run_findings(runs["brains"]).maps)


def of(tmp_path, page):
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    return Page(tmp_path / "page.html")


def test_the_warning_comes_before_everything_else(runs, n_maps, tmp_path):
    page = of(tmp_path, group_page(graded(runs["brains"], *[0.3] * n_maps)))
    warning = f"Not reliable: none of the {n_maps} maps should be presented as a network"
    assert 0 < page.source.index(warning) < page.source.index("<h1>")
    assert f"{n_maps} maps, none of them reliable, of" in page.text
    assert not re.search(r"\d+ (brain )?networks? of", page.text)
    assert "All of the pictures may be due to chance alone" in page.text
    assert page.source.count("(not reliable)</option>") == n_maps
    volumes = json.loads(re.search(r'id="volumes">(.*?)</script>', page.source, re.DOTALL).group(1))
    assert [one["opacity"] for one in volumes["maps"]] == [FADED] * n_maps


def test_good_maps_are_networks_and_another_run_is_predicted(runs, n_maps, tmp_path):
    page = of(tmp_path, group_page(graded(runs["brains"], *[0.95] * n_maps)))
    assert 'class="notice" role="note"' not in page.source
    assert f"{n_maps} networks of" in page.text
    assert (
        "The predicted correlation of these maps with those of another run with fresh noise is 0.95"
        in page.text
    )
    assert "would show the same" not in page.text


def test_without_noise_nothing_is_said_of_another_run(pages):
    page = Page(pages["not private"])
    assert "Another run" not in page.text
    assert "stability" not in page.text.lower()
    assert "No noise was added, so there is no effect of noise to predict." in page.text


@pytest.mark.parametrize("kind", ["pixels", "regions", "brains", "not private"])
def test_a_page_begins_with_three_sentences(kind, pages):
    source = pages[kind].read_text(encoding="utf-8")
    words = html.unescape(re.search(r'id="in-short">(.*?)</p>', source).group(1))
    assert len(re.findall(r"[.!?](?:\s|$)", words)) == 3
    assert source.index("in-short") < source.index('class="facts"')
    for word in ("ICA", "component", "epsilon", "ε", "differential", "stability", "correlat"):
        assert word not in words


def test_sides_and_places_are_named(pages):
    page = Page(pages["brains"])
    assert "neurological convention: the left of the brain (L) is on the left" in page.text
    assert "MNI coordinates" in page.text
    assert page.source.count("<b>L</b> z = ") == page.source.count(" <b>R</b></span>") > 0


def colourfulness(figure, axis):
    """Return how far the pixels of one drawing are from grey, on average."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[::-1, :, :3].astype(int)
    left, bottom, right, top = map(round, axis.get_window_extent().extents)
    return np.ptp(pixels[bottom:top, left:right], axis=2).mean()


@pytest.mark.parametrize("drawn", ["pixels", "profiles"])
def test_figures_fade_what_is_not_reliable(drawn):
    """The same map twice, once good and once poor; slices of brains are in test_brain_report.py."""
    reliability = Reliability(2, np.array([0.95, 0.2]))
    maps = np.tile(np.linspace(0.5, 1, 36), (2, 1))
    figure = (
        maps_figure({"": maps.reshape(2, 6, 6)}, "Maps", reliability)
        if drawn == "pixels"
        else profiles_figure(maps, "Maps", reliability)
    )
    good, poor = (colourfulness(figure, axis) for axis in figure.axes)
    assert 0 < poor < 0.5 * good


@pytest.fixture
def doubtful(runs, tmp_path):
    """A run none of whose maps is reliable."""
    folder = shutil.copytree(runs["brains"], tmp_path / "doubtful")
    told = json.loads((folder / "reliability.json").read_text())
    told["stability"] = [0.2] * len(told["stability"])
    (folder / "reliability.json").write_text(json.dumps(told))
    return folder


@pytest.fixture
def said(monkeypatch, capsys):
    """Return what a command says on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["capedjica", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            main()
        out, err = capsys.readouterr()
        assert exited.value.code == 0, err
        return " ".join(out.split())

    return command


def test_a_comparison_warns_first(doubtful, runs, said):
    shown = said("compare", doubtful, runs["brains"])
    assert "doubtful: Not reliable: none of the" in shown
    assert shown.index("Not reliable") < shown.index("worst map")
    rows = json.loads(said("compare", doubtful, "--json"))
    assert rows[0]["reliable_maps"] == 0
    page = comparison_report([doubtful, runs["brains"]]).html
    assert page.index("Not reliable: none of the") < page.index("<h2")
    assert ", not reliable</span>" in page


def test_a_site_is_warned_first(doubtful, brains, said, tmp_path):
    site = next(path.parent for path in sorted(brains.glob("sites/*/site.toml")))
    copy = shutil.copytree(site, tmp_path / "site")
    for command in ("results", "report"):
        shown = said("site", command, doubtful, "--site", copy)
        assert shown.startswith("Not reliable: none of the")
    (page,) = copy.glob("results/*/report.html")
    source = page.read_text(encoding="utf-8")
    assert source.index("Not reliable: none of the") < source.index("<h1>")
    assert "computed with the maps of all sites" in source


def test_the_outbox_calls_noise_what_is_noise_and_the_ledger_names_the_study(tables, said):
    """The same site gave sums with noise to one study, and without to another."""
    site = next(path.parent for path in sorted(tables.glob("sites/*/site.toml")))
    rows = json.loads(said("site", "outbox", "--site", site, "--json"))
    told = {study: {row["what"].split(" of ")[0] for row in rows if row["study"] == study} for study in NOISE}
    assert told == NOISE
    assert all(row["text"].endswith("bytes, NOT PRIVATE") for row in rows if row["study"] == "none")
    assert all("cost epsilon" in row["text"] for row in rows if row["study"] == "regions")
    shown = said("ledger", "show", "--site", site)
    assert "none subject NOT PRIVATE – " in shown
    for kind in ("regions", "none"):
        assert f"Hash of {kind}: {Study.load(tables / kind).hash.hex()}" in shown


def test_a_run_of_another_number_of_maps_is_refused(doubtful):
    told = json.loads((doubtful / "reliability.json").read_text())
    (doubtful / "reliability.json").write_text(json.dumps(told | {"stability": [0.5]}))
    with pytest.raises(Exception, match="lists 1 maps, but its study has"):
        run_report(doubtful)


# Connectivity


def person(connectivity):
    course = np.zeros((4, len(connectivity)))
    spectrum = Spectrum(np.arange(2.0), np.ones((2, len(connectivity))), "Hz")
    return PersonResults("sub-1", [course], [spectrum], np.array(connectivity), 1.0, 0, {})


@pytest.mark.parametrize(("largest", "limit"), [(0.0, 0.1), (0.32, 0.4), (0.99, 1.0), (4.0, 1.0)])
def test_matrices_of_a_page_share_a_sensible_range(largest, limit):
    people = [person([[0, 0.01], [0.01, 0]]), person([[0, largest], [largest, 0]])]
    shown = Connections.of(people, ())
    assert shown.limit == pytest.approx(max(limit, 0.1))
    figure = shown.figure(people[1].connectivity, "Connectivity", "Connectivity.")
    assert ("Larger values" in figure.caption) == (largest > shown.limit)


def test_a_matrix_has_names_and_a_bar_of_colours():
    shown = Connections.of([person(np.zeros((2, 2)))], ["default $mode$ <b>", "visual"])
    figure = shown.figure(np.array([[0, -0.05], [-0.05, 0]]), "Connectivity", "Connectivity.")
    assert figure.drawing.count("1: default $mode$ &lt;b&gt;") == 2
    assert figure.drawing.count("2: visual") == 2
    assert "Fisher's z" in html.unescape(figure.drawing)
    assert "−0.1" in figure.drawing
    assert "strongest between 1: default $mode$ <b> and 2: visual" in figure.alt
