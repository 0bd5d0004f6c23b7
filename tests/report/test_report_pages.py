"""Pages as text: what they say, what they must not say, and that they are whole by themselves."""

import base64
import gzip
import hashlib
import html
import json
import os
import re
import shutil
import stat
import zipfile
from dataclasses import replace
from html.parser import HTMLParser

import nibabel
import numpy as np
import pytest

from capedjica import CapeDJICA
from capedjica.algorithms.ica.individual import analyse_subject
from capedjica.cli import app
from capedjica.coordinator.run.comparison import compare_runs
from capedjica.coordinator.run.report import comparison_report, run_findings, run_report
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites
from capedjica.privacy.wording import round_up
from capedjica.report.group import group_page
from capedjica.report.local import PersonResults, Spectrum, qualities
from capedjica.report.maps import MapSet
from capedjica.report.page import HtmlReport
from capedjica.report.pictures.slices import FADED
from capedjica.report.pictures.viewer import volumes
from capedjica.site.participants.cohort import open_people
from capedjica.site.results.page import write_local_report
from capedjica.study.study_file import Study
from tests.attacks.views.leaks import Needles
from tests.report.conftest import KINDS

PAGES = (*KINDS, "not private", "compared", "of a site")
LOADS = {"src", "href", "srcset", "data", "poster", "action", "background"}


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements, self.texts, self._within = [], [], []
        self.feed(self.source)
        self.close()
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._within.append(tag)

    def handle_endtag(self, tag):
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"style", "script", "svg"} & set(self._within):
            self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(params=PAGES)
def page(request, pages):
    return Page(pages[request.param])


def test_nothing_is_loaded_from_anywhere(page):
    for tag, attributes in page.elements:
        for name in LOADS & attributes.keys():
            value = attributes[name]
            link = tag == "a" and value.startswith(("#", "https://doi.org/", "https://arxiv.org/", "sub-"))
            assert link or value.startswith("data:"), (tag, name, value[:80])
    styles = "".join(re.findall(r"<style>(.*?)</style>", page.source, re.DOTALL)) + "".join(
        attributes.get("style") or "" for _, attributes in page.elements
    )
    assert "@import" not in styles
    assert not re.findall(r"url\((?!#)", styles)
    assert not [tag for tag, _ in page.elements if tag in ("iframe", "object", "embed", "base", "form")]


def test_the_page_itself_forbids_requests_and_foreign_scripts(page):
    (policy,) = [a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    script = page.source[page.source.rindex("<script>") + 8 : page.source.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert f"script-src 'sha256-{digest}';" in policy
    assert "connect-src" not in policy


def test_every_picture_is_told_in_words_and_has_its_numbers(page):
    pictures = page.all("img")
    drawings = [a for tag, a in page.elements if a.get("role") == "img"]
    assert all(len(a["alt"]) > 20 for a in pictures)
    assert all(len(a["aria-label"]) > 10 for a in drawings)
    for figure in re.findall(r"<figure>(.*?)</figure>", page.source, re.DOTALL):
        if "Time courses" not in figure and "Spectra of" not in figure and "slices" not in figure:
            assert re.search(r'<a class="numbers" href="data:text/csv;base64,[^"]+" download="[^"]+"', figure)


def test_headings_and_sections_are_those_of_a_document(page):
    assert len(page.all("h1")) == 1
    assert page.all("html")[0]["lang"] == "en"
    ids = [
        attributes["id"]
        for _, attributes in page.elements
        if "id" in attributes and "clip" not in attributes["id"]
    ]
    targets = [a["href"][1:] for a in page.all("a") if a.get("href", "").startswith("#")]
    assert set(targets) <= set(ids)


# The report of a run


@pytest.mark.parametrize("kind", [*KINDS, "paper"])
def test_numbers_are_those_of_privacy_json(kind, runs, tables, pages, tmp_path):
    run = runs.get(kind, tables / kind)
    path = pages.get(kind, tmp_path / "page.html")
    if not path.exists():
        run_report(run).save_as_html(path)
    shown, said = Page(path).text, json.loads((run / "privacy.json").read_text())
    assert f"epsilon {round_up(said['epsilon'])} at delta 1e-5" in shown
    assert re.search(rf"guaranteed limit {re.escape(round_up(said['epsilon']))} ", shown)
    releases = len(said["releases"])
    assert re.search(rf"spent by the end {releases} {re.escape(round_up(said['spent_epsilon']))} ", shown)
    assert f"mu = {round_up(said['mu'])} standard deviations" in shown
    for name, site in said["sites"].items():
        spent = round_up(site["spent_epsilon"])
        assert re.search(rf"{name} \d+ {re.escape(round_up(site['epsilon']))} {re.escape(spent)} ", shown)
    for digest in json.loads((run / "provenance.json").read_text())["files"].values():
        assert digest in shown
    assert said["statement"] in html.unescape(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_needs_nothing_but_the_folder_and_leaves_it_as_it_was(kind, runs, pages, tmp_path):
    """Sites are out of reach, and the same bytes come out: what only a site knows cannot be in them."""
    alone = tmp_path / "elsewhere"
    shutil.copytree(runs[kind], alone)
    before = {path.name: path.read_bytes() for path in alone.iterdir()}
    assert run_report(alone).html == pages[kind].read_text(encoding="utf-8")
    assert {path.name: path.read_bytes() for path in alone.iterdir()} == before


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_tells_of_a_single_person_or_of_a_sites_computer(kind, runs, pages, tables, brains):
    page = Page(pages[kind])
    folder = (brains if kind == "brains" else tables) / "sites"
    people = {path.name.split("_")[0].split(".")[0] for path in folder.glob("*/data/**/sub-*")}
    assert len(people) > 5
    for name in people:
        assert name not in page.text
    assert str(folder) not in page.source
    assert "Sources" not in page.source
    # Of a site: its name, how many it enrolled, its limit, what its ledger says and what it sent.
    (header,) = re.findall(r"<thead><tr>(?:(?!</tr>).)*participants enrolled.*?</tr>", page.source, re.DOTALL)
    columns = re.findall(r">([^<>]+)</th>", header)
    assert columns == ["site", "participants enrolled", "limit ε", "spent ε", "releases", "sent (kB)"]


def everything(path):
    """Yield a page and all that is packed inside it, unpacked, but the volumes of the viewer.

    They have eight bits a value, too few to know a number by, and are made of the maps and the template.
    """
    source = path.read_bytes()
    yield path.name, source
    for number, packed in enumerate(re.findall(rb'base64,([A-Za-z0-9+/]+=*)"', source)):
        content = base64.b64decode(packed)
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        yield f"{path.name}, part {number}", content


def needles(study, folder):
    """Names and places of everybody; scans, and what follows from them, of one person of every site."""
    found, unmixing = Needles(), np.load(folder / "unmixing.npy")
    for home in find_sites(study, study.folder / "sites"):
        people = open_people(home, study)
        found.add_words([*people.names, str(home.data_path)])
        scan, mean = people[0], people[0].mean(axis=0)
        alone = analyse_subject([scan], unmixing)
        own = [scan[:9], mean, scan[:9] - mean, *alone.courses, alone.connectivity, alone.maps]
        found.add_arrays(f"scan of {people.names[0]}", own)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_for_every_single_person_finds_nobody(kind, runs, pages):
    run = runs[kind]
    study = Study.load(run.parent / ("regions.toml" if kind == "regions" else "study.toml"))
    found = needles(study, run)
    assert found.search(everything(pages[kind])) == []


def test_the_same_search_finds_people_on_the_page_of_their_site(pages):
    path = pages["of a site"]
    relations = next(path.parent.glob("sub-*/func/*relmat.tsv"))
    found = Needles()
    found.add_arrays("connectivity", [np.loadtxt(relations, skiprows=1)])
    assert found.search(everything(path))
    assert found.search(everything(pages["brains"])) == []


@pytest.mark.parametrize(("kind", "why"), [("none", "no noise is added"), ("seeded", "comes from a seed")])
def test_what_is_not_private_says_so_and_shows_no_guarantee(kind, why, tables, tmp_path):
    run_report(tables / kind).save_as_html(tmp_path / "page.html")
    shown = Page(tmp_path / "page.html").text
    assert "NOT PRIVATE" in shown
    assert why in shown
    assert "ε ≤" not in shown
    assert "protected with" not in shown
    assert "(ε, δ)-differential privacy" not in shown


def test_the_papers_method_is_shown_with_what_the_paper_says_of_it(tables, tmp_path):
    run_report(tables / "paper").save_as_html(tmp_path / "page.html")
    shown = Page(tmp_path / "page.html").text
    assert "paper's RDP as printed (gradient descent alone)" in shown
    assert "this method cannot determine how the noise has changed them" in shown
    assert "capePCA and unmixed by capeDJICA" in shown


def test_each_kind_is_shown_in_its_own_way(pages):
    pixels, regions, brains = (Page(pages[kind]) for kind in KINDS)
    # Each map raw and denoised.
    assert len(pixels.all("img")) == len(brains.all("img")) == 2 * 3
    assert not regions.all("img")
    assert "Highest: feature" in regions.text
    assert not pixels.all("canvas")
    assert len(brains.all("canvas")) == 3
    assert "Scans in MNI152NLin2009cAsym space were linearly detrended" in brains.text
    assert "Abraham et al" not in pixels.text
    assert "nilearn (Abraham et al., 2014)" in brains.text
    for page in (pixels, regions, brains):
        assert "@article{dong2022gaussian," in page.text
        assert "Norm of the mean released in each of" in page.source


def test_maps_come_out_of_the_page_as_they_are(runs, pages):
    maps = np.load(runs["brains"] / "maps.npy")
    (link,) = [a for a in Page(pages["brains"]).all("a") if a.get("download") == "maps.nii.gz"]
    content = gzip.decompress(base64.b64decode(link["href"].split(",")[1]))
    found = nibabel.Nifti1Image.from_bytes(content)
    kept = nibabel.load(runs["brains"] / "maps.nii.gz")
    np.testing.assert_allclose(found.affine, kept.affine)
    np.testing.assert_allclose(np.asarray(found.dataobj), np.asarray(kept.dataobj), atol=2e-5)
    assert np.abs(np.asarray(found.dataobj)).max() == pytest.approx(np.abs(maps).max(), abs=1e-4)
    (link,) = [a for a in Page(pages["pixels"]).all("a") if a.get("download") == "maps.csv"]
    rows = base64.b64decode(link["href"].split(",")[1]).decode().splitlines()[1:]
    table = np.array([[float(cell) for cell in row.split(",")] for row in rows])
    np.testing.assert_allclose(table.T, np.load(runs["pixels"] / "maps.npy"), atol=1e-7)


def test_the_viewer_gets_the_maps_where_they_are():
    """Two blobs, the first on the left and low, in an image whose x runs backwards."""
    affine = np.array([[-4.0, 0, 0, 80], [0, 4, 0, -112], [0, 0, 4, -64], [0, 0, 0, 1]])
    voxels = np.stack(np.meshgrid(*map(np.arange, (41, 48, 34)), indexing="ij"), axis=-1)
    places = voxels @ affine[:3, :3].T + affine[:3, 3]
    maps = [
        np.exp(-((places - centre) ** 2).sum(axis=-1) / 200) * sign
        for centre, sign in (([-40, -60, -20], 1), ([20, 40, 40], -1))
    ]
    image = nibabel.Nifti1Image(np.stack(maps, axis=-1).astype(np.float32), affine)
    data = volumes(image, ["a", "b"], [False, True])
    assert [one["opacity"] for one in data["maps"]] == [1, FADED]
    for found, centre, sign in zip(data["maps"], ([-40, -60, -20], [20, 40, 40]), (1, -1), strict=True):
        np.testing.assert_allclose(found["start"], centre, atol=3)
        plain = np.frombuffer(gzip.decompress(base64.b64decode(found["data"])), dtype=np.int8)
        volume = plain.reshape(data["shape"], order="F")
        index = [
            round((mm - low) / data["step"]) for mm, (low, _) in zip(found["start"], data["box"], strict=True)
        ]
        assert volume[tuple(index)] * sign > 85
        assert np.count_nonzero(volume) < volume.size / 20
    brain = np.frombuffer(gzip.decompress(base64.b64decode(data["brain"]["data"])), dtype=np.uint8)
    assert brain.size == np.prod(data["brain"]["shape"])
    assert brain.max() == 255


def test_words_of_others_stay_words(runs):
    hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    page = group_page(replace(run_findings(runs["pixels"]), title=hostile, preparation=[hostile]))
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert page.count(html.escape("<script>alert(1)</script>")) >= 3


def test_a_bundle_is_enough_for_a_report(runs, tmp_path):
    with zipfile.ZipFile(runs["brains"] / "results.zip") as bundle:
        bundle.extractall(tmp_path)
    (tmp_path / "page.html").write_text(run_report(tmp_path).html, encoding="utf-8")
    page = Page(tmp_path / "page.html")
    assert len(page.all("canvas")) == 3
    assert "Convergence" not in page.text


def test_damaged_folders_are_refused_in_one_line(runs, tmp_path):
    with pytest.raises(InputError, match="is not the folder of a complete run"):
        run_report(tmp_path / "nothing")
    for name, content, message in (
        ("peaks.csv", b"component\nx\n", "not a valid table of peaks"),
        ("privacy.json", b'{"private": 1}', "not a valid file of a run"),
        ("releases.bin", b"something else", "not the journal of this study"),
        ("maps.npy", b"", "not a complete .npy file"),
    ):
        folder = tmp_path / name
        shutil.copytree(runs["brains"], folder)
        (folder / name).write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            run_report(folder)
        assert "\n" not in str(caught.value)
    np.save(folder / "maps.npy", np.ones((2, 5)))
    with pytest.raises(InputError, match="from its study"):
        run_report(folder)


def test_twenty_components_fit_into_eight_megabytes(runs):
    """Noise everywhere, which compresses worst, on voxels of 4 mm in the box of the brain."""
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    affine[:3, 3] = (-80, -112, -70)
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, (41, 48, 40, 20)).astype(np.float32)
    inside = np.linalg.norm(
        (np.indices((41, 48, 40)).T - [20, 24, 20]).T / [[[[20]]], [[[24]]], [[[20]]]], axis=0
    )
    values[inside > 0.9] = 0
    maps = MapSet(np.ones((20, 10)), rng.uniform(0.5, 1, 20), nibabel.Nifti1Image(values, affine))
    page = group_page(replace(run_findings(runs["brains"]), maps=maps))
    assert len(page.encode()) < 8_000_000
    assert page.count("<img") == 20


# The command line, the estimator, notebooks


def test_commands_write_pages(tables, brains, tmp_path):
    from typer.testing import CliRunner

    def call(*arguments):
        result = CliRunner().invoke(app, list(map(str, arguments)))
        assert result.exit_code == 0, result.output
        return result.output

    shutil.copytree(tables / "pixels", tmp_path / "run")
    usual = os.umask(0o022)
    try:
        assert "report.html: open it in a browser" in call("report", tmp_path / "run")
    finally:
        os.umask(usual)
    assert (tmp_path / "run" / "report.html").stat().st_mode & 0o004
    call("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "run" / "report.html").read_bytes()
    call("compare", tables / "pixels", tables / "none", "--html", tmp_path / "both.html")
    assert "2 analyses, compared with" in Page(tmp_path / "both.html").text
    shutil.copytree(brains, tmp_path / "brains")
    (report,) = (tmp_path / "brains").glob("sites/*/results/*/report.html")
    before = report.read_bytes()
    report.unlink()
    site = report.parents[2]
    assert "must not leave this site" in call(
        "site", "report", tmp_path / "brains" / "brains", "--site", site
    )
    assert report.read_bytes() == before


def test_an_estimator_reports_as_nilearns_do(tmp_path):
    rng = np.random.default_rng(3)
    sites = [[rng.laplace(size=(40, 16)) for _ in range(4)] for _ in range(3)]
    estimator = CapeDJICA(2, epsilon=5.0, image_shape=(4, 4), max_iter=3).fit(sites)
    report = estimator.generate_report("Two [networks]")
    report.save_as_html(tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert page.all("h1")
    assert "Two [networks]" in page.text
    assert "epsilon 5 at delta 1e-5" in page.text
    assert "Norm of the mean released in each of 3 iterations" in page.source
    assert report._repr_html_().startswith("<iframe srcdoc=")
    assert "<iframe" not in page.source
    assert "bytes" in repr(report)
    mask = nibabel.Nifti1Image(np.ones((4, 4, 4), dtype=np.uint8), np.diag([30.0, 30.0, 30.0, 1.0]))
    scans = [
        [nibabel.Nifti1Image(rng.laplace(size=(4, 4, 4, 30)), mask.affine) for _ in range(3)]
        for _ in range(3)
    ]
    seen = CapeDJICA(2, epsilon=5.0, mask_img=mask, max_iter=2).fit(scans).generate_report().html
    assert seen.count("<canvas") == 3
    for method, mechanism, epsilon in (("djica", "none", None), ("dp-djica", "cape", 9.0)):
        other = CapeDJICA(2, epsilon=epsilon, method=method, mechanism=mechanism, max_iter=2, random_state=0)
        page = other.fit(sites).generate_report().html
        assert "<h1>Networks of 12 participants at 3 sites</h1>" in page
    assert "Releases with Gaussian noise (1) were accounted for exactly" in page
    assert "those with Laplace noise (2)" in page
    assert re.search(r"at two sites, epsilon is [\d.]+ and not 9\.", page), "of all that was released"
    assert "NOT COVERED: the Laplace noise" in page


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        HtmlReport("x").save_as_html(tmp_path / "file" / "page.html")


# The page of a site


def person(name, rng, *, jump=0.0, fit=0.7, left_out=0):
    courses = rng.standard_normal((80, 4))
    courses[40] += jump
    spectrum = Spectrum(np.linspace(0, 0.25, 11), rng.uniform(1, 2, (11, 4)), "Hz")
    relations = np.corrcoef(rng.standard_normal((500, 4)) @ np.eye(4).cumsum(0), rowvar=False)
    return PersonResults(
        name, [courses], [spectrum], relations, fit + 0.01 * rng.standard_normal(), left_out, {}
    )


def test_those_who_are_far_from_the_others_are_found():
    rng = np.random.default_rng(2)
    people = [person(f"sub-{i}", rng) for i in range(30)]
    people += [person("sub-jump", rng, jump=25.0), person("sub-fit", rng, fit=0.2)]
    people += [person("sub-left", rng, left_out=40)]
    found = {one.name: quality.unusual for one, quality in zip(people, qualities(people), strict=True)}
    assert "largest jump" in found["sub-jump"]
    assert found["sub-fit"] == ("fit to the group's maps",)
    assert found["sub-left"] == ()  # nobody else was censored: there is no scale to be far on
    assert sum(bool(unusual) for unusual in found.values()) <= 4
    (alone,) = qualities(people[:1])
    assert alone.unusual == ()


def test_the_page_of_a_site_is_marked_and_nobody_else_can_read_it(pages, brains):
    path = pages["of a site"]
    page = Page(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "must not leave site" in page.text
    assert "not to be shared" in re.search("<title>(.*?)</title>", page.source)[1]
    names = {folder.name for folder in path.parent.glob("sub-*")}
    assert names
    assert all(name in page.text for name in names)
    for link in (a["href"] for a in page.all("a") if a["href"].startswith("sub-")):
        assert (path.parent / link).exists()
    assert path.is_relative_to(brains / "sites")


def test_results_that_were_changed_are_refused(brains, tmp_path):
    shutil.copytree(brains, tmp_path / "copy")
    home = find_sites(Study.load(tmp_path / "copy"), tmp_path / "copy" / "sites")[0]
    (path,) = (tmp_path / "copy").glob("sites/*/results/*/report.html")
    broken = next(path.parent.glob("sub-*/func/*relmat.tsv"))
    for size in (broken.stat().st_size - 15, 10, 0):
        os.truncate(broken, size)
        with pytest.raises(InputError, match="is malformed; remove it"):
            write_local_report(tmp_path / "copy" / "brains", home)


# Runs side by side


def test_runs_side_by_side_have_the_numbers_of_the_terminal(tables, pages, brains):
    rows = compare_runs([tables / "pixels", tables / "none"], tables / "truth" / "mixing.npy")
    page = Page(pages["compared"])
    for row in rows:
        epsilon = "NOT PRIVATE" if row.epsilon is None else round_up(row.epsilon)
        assert (
            f"{row.run} {row.method} {row.mechanism} {epsilon} {row.gain_index:.3f} "
            f"{row.map_correlation:.3f} {row.worst_map:.3f}" in page.text
        )
    assert len(page.all("img")) == 3 * 3
    alone = comparison_report([brains / "brains"]).html
    assert alone.count("<img") == 3
    assert "1.00" in alone
