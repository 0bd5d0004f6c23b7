"""Labels of maps: matches and flags where they were put, and errors for what cannot be compared."""

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from capedjica import CapeDJICA
from capedjica.data.references import FETCHERS, read_reference
from capedjica.data.simulated.brain import mni_brain
from capedjica.errors import InputError
from capedjica.report.labels import EDGE, NOT_EVIDENCE, LabelSources, label_table

BRAIN = mni_brain(6.0)
CENTRES = {"visual": (0, -85, 5), "motor": (-40, -20, 55), "default": (0, 52, 0)}
SYSTEMS = ("sensory", "sensory", "association")


def blob(centre, width=12.0):
    return np.exp(-((BRAIN.places - centre) ** 2).sum(axis=1) / (2 * width**2))


NETWORKS = np.array([blob(centre) for centre in CENTRES.values()])


def picture(maps):
    return BRAIN.image(np.asarray(maps, dtype=np.float32))


def label(maps, edge=False, template=(), **sources):
    image = picture(maps)
    placed = LabelSources.read(**sources).placed(image, BRAIN.n_voxels, edge)
    return placed.label(np.asarray(maps), image, template)


def write_atlas(folder, values=None, table="index\tname\tsystem\n"):
    values = 50 * NETWORKS - 20 if values is None else values
    picture(values).to_filename(folder / "atlas.nii.gz")
    rows = zip(range(1, 4), CENTRES, SYSTEMS, strict=True)
    (folder / "atlas.tsv").write_text(table + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    return folder / "atlas.nii.gz"


def label_image():
    """Return labels 3, 7 and 20 at the networks, on a finer grid, with x that runs backwards."""
    affine = np.diag([-3.0, 3.0, 3.0, 1.0])
    affine[:3, 3] = (90, -126, -72)
    places = np.moveaxis(np.indices((61, 73, 61)), 0, -1) @ affine[:3, :3].T + affine[:3, 3]
    labels = np.zeros(places.shape[:3], dtype=np.int16)
    for number, centre in zip((3, 7, 20), CENTRES.values(), strict=True):
        labels[((places - centre) ** 2).sum(axis=-1) < 15**2] = number
    return nibabel.Nifti1Image(labels, affine)


def test_maps_are_named_by_the_maps_of_an_atlas_in_any_unit(tmp_path):
    atlas = write_atlas(tmp_path)
    found = label([-NETWORKS[2], NETWORKS[0] + 0.3 * NETWORKS[1]], labels=str(atlas))
    assert found.source == "atlas.nii.gz"
    assert [(one.name, one.system, one.inherited) for one in found.maps] == [
        ("default", "association", False),
        ("visual", "sensory", False),
    ]
    assert [match.name for match in found.maps[1].matches[:2]] == ["visual", "motor"]
    assert found.maps[0].matches[0].correlation == pytest.approx(-1, abs=1e-6)
    expected = np.corrcoef(NETWORKS[0] + 0.3 * NETWORKS[1], NETWORKS[1])[0, 1]
    assert found.maps[1].matches[1].correlation == pytest.approx(expected, abs=1e-5)
    assert found.maps[1].matches[0].dice is None


def test_labels_have_correlation_and_dice_and_name_the_peaks(tmp_path):
    label_image().to_filename(tmp_path / "regions.nii.gz")
    (tmp_path / "names.csv").write_text("id,label,domain\n20,Default,A\n3,Visual,B\n7,Motor,C\n99,none,D\n")
    found = label(NETWORKS, labels=tmp_path / "regions.nii.gz", names=tmp_path / "names.csv")
    assert [one.name for one in found.maps] == ["Visual", "Motor", "Default"]
    assert [one.system for one in found.maps] == ["B", "C", "A"]
    first = [next(peak for peak in found.peaks if peak.component == number) for number in (1, 2, 3)]
    assert [peak.region for peak in first] == ["Visual", "Motor", "Default"]
    assert_allclose([(peak.x, peak.y, peak.z) for peak in first], list(CENTRES.values()), atol=4)
    table = label_table(found)
    row = dict(zip(table.columns, table.rows[2], strict=True))
    assert (row["name"], row["system"], row["region"]) == ("Default", "A", "Default")
    assert row["dice 1"] > 0.7


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(5, 60), st.integers(2, 6))
def test_labels_are_compared_as_maps_of_0_and_1_would_be(seed, size, count):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, count + 1, size)
    labels[:2] = 1, 2
    maps = rng.normal(size=(3, size))
    numbers = np.unique(labels[labels > 0])
    found = LabelSources.read(labels).placed(None, size).label(maps, None)
    for values, one in zip(maps, found.maps, strict=True):
        high = np.abs(values) >= 0.5 * np.abs(values).max()
        for match in one.matches:
            region = labels == int(match.name.removeprefix("region "))
            assert match.dice == pytest.approx(2 * (region & high).sum() / (region.sum() + high.sum()))
            if not region.all():
                assert match.correlation == pytest.approx(np.corrcoef(values, region)[0, 1], abs=1e-9)
        best = max(abs(np.corrcoef(values, labels == number)[0, 1]) for number in numbers)
        assert abs(one.matches[0].correlation) == pytest.approx(best, abs=1e-9)


def test_a_map_unlike_all_has_no_name():
    noise = np.random.default_rng(0).normal(size=(1, BRAIN.n_voxels))
    (one,) = label(noise, labels=picture(NETWORKS), names=list(CENTRES)).maps
    assert one.name == ""
    assert len(one.matches) == 3
    (flat,) = label(np.ones((1, BRAIN.n_voxels)), labels=picture(NETWORKS)).maps
    assert [match.correlation for match in flat.matches] == [0, 0, 0]


def test_a_map_from_a_template_has_its_name_and_says_that_this_is_no_evidence():
    found = label(NETWORKS, labels=picture(NETWORKS[::-1]), names=["a", "b", "c"], template=list(CENTRES))
    assert [one.name for one in found.maps] == list(CENTRES)
    assert all(one.inherited for one in found.maps)
    assert [one.matches[0].name for one in found.maps] == ["c", "b", "a"]
    assert NOT_EVIDENCE in label_table(found).caption
    assert NOT_EVIDENCE not in label_table(label(NETWORKS, labels=picture(NETWORKS))).caption


def test_artefacts_are_flagged_and_networks_are_not():
    """Head motion at the edge and physiology in the ventricles, as simulated scans have them."""
    rng = np.random.default_rng(1)
    ventricles = np.linalg.norm(BRAIN.places - (0.0, -20.0, 15.0), axis=1) < 20
    pulse = blob((0, -20, 15), 10)
    white = np.abs(BRAIN.places - (28, 10, 25)).max(axis=1) < 12
    tract = white * rng.uniform(0.8, 1, BRAIN.n_voxels)
    maps = np.vstack([NETWORKS[:2], BRAIN.motion_patterns[:3], pulse, tract])
    found = label(
        maps / np.abs(maps).max(axis=1, keepdims=True),
        edge=True,
        csf=picture(0.9 * ventricles),
        white_matter=picture(white),
    )
    flags = [one.artefacts for one in found.maps]
    assert flags == [(), (), (EDGE,), (EDGE,), (EDGE,), ("ventricles",), ("white matter",)]
    assert found.maps[5].overlaps["ventricles"] > 0.9
    assert set(found.maps[0].overlaps) == {EDGE, "ventricles", "white matter"}
    table = label_table(found)
    assert table.rows[2][-1] == EDGE
    assert "match 1" not in table.columns


def test_where_most_voxels_are_edge_nothing_is_flagged_for_it():
    coarse = mni_brain(12.0)
    spread = np.ones((1, coarse.n_voxels))
    image = coarse.image(spread.astype(np.float32))
    sources = LabelSources.read(csf=coarse.image((coarse.places[:, 0] > 60).astype(np.uint8)))
    (one,) = sources.placed(image, coarse.n_voxels, edge=True).label(spread, image).maps
    assert one.overlaps[EDGE] > 0.25
    assert one.artefacts == ()


# What cannot be compared


def moved(image):
    affine = image.affine.copy()
    affine[:3, 3] += 500
    return nibabel.Nifti1Image(np.asarray(image.dataobj), affine)


def bad(kind, folder):
    atlas = write_atlas(folder)
    names = folder / "atlas.tsv"
    if kind == "names":
        names.write_text("one\ntwo\n")
    elif kind == "numbers":
        label_image().to_filename(atlas)
    elif kind == "3-D maps":
        picture(NETWORKS[0]).to_filename(atlas)
    elif kind == "another space":
        moved(picture(NETWORKS)).to_filename(atlas)
    elif kind == "empty here":
        picture(0 * NETWORKS).to_filename(atlas)
    elif kind == "damaged":
        atlas.write_bytes(b"no image")
    elif kind == "missing":
        atlas.unlink()
    elif kind == "long name":
        names.write_text(f"a\nb\n{'x' * 300}\n")
    return atlas


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("names", "has 3 networks, but its table has 2 names"),
        ("numbers", "has no name for label 7"),
        ("3-D maps", "not non-negative integers"),
        ("another space", "covers 0% of the voxels of the maps.*different space"),
        ("empty here", "zero wherever the maps have values"),
        ("damaged", "not a readable image"),
        ("missing", "does not exist; give an image, a .npy file or nilearn:NAME"),
        ("long name", "at most 200 printable characters"),
    ],
)
def test_what_is_wrong_with_an_atlas_is_said(tmp_path, kind, message):
    with pytest.raises(InputError, match=message):
        label(NETWORKS, labels=bad(kind, tmp_path))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({}, "no source of labels"),
        ({"names": ["a"]}, "names of labels are given, but no labels"),
        ({"labels": "nilearn:nothing"}, "must be a file or nilearn:NAME .aal, "),
        ({"labels": np.ones((3, 7))}, "has 7 features, but the maps have"),
        ({"labels": np.full((3, BRAIN.n_voxels), np.nan)}, "must contain finite numbers"),
        ({"csf": picture(NETWORKS)}, "mask of ventricles must be a 3-D mask image"),
        ({"csf": picture(50 * NETWORKS[0])}, "must contain 0 and 1, or probabilities"),
        ({"csf": "none.nii"}, "none.nii does not exist"),
        ({"white_matter": 3}, "must be an image or a path, got int"),
        ({"white_matter": moved(picture(NETWORKS[0]))}, "may be in a different space"),
    ],
)
def test_what_is_wrong_with_other_sources_is_said(sources, message):
    with pytest.raises(InputError, match=message):
        label(NETWORKS, **sources)


def test_images_need_maps_with_places():
    sources = LabelSources.read(picture(NETWORKS))
    with pytest.raises(InputError, match="the features have no spatial positions; give an array"):
        sources.placed(None, 100)
    with pytest.raises(InputError, match="tissue masks are given"):
        LabelSources.read(csf=picture(NETWORKS[0])).placed(None, 100)


# nilearn's atlases


class Downloads:
    """What nilearn's fetchers return, without a network."""

    def __init__(self, monkeypatch, atlas):
        self.asked = {}
        for name in FETCHERS:
            monkeypatch.setattr(f"nilearn.datasets.fetch_atlas_{name}", self.fetch(name, atlas))

    def fetch(self, name, atlas):
        def fetch(**options):
            self.asked[name] = options
            if isinstance(atlas, Exception):
                raise atlas
            return atlas

        return fetch


def test_nilearns_atlases_bring_names_and_systems(monkeypatch, tmp_path):
    from pandas import DataFrame

    maps = {"maps": str(write_atlas(tmp_path)), "labels": list(CENTRES), "networks": list(SYSTEMS)}
    asked = Downloads(monkeypatch, maps).asked
    found = read_reference("nilearn:msdl")
    assert (found.names, found.systems) == (tuple(CENTRES), SYSTEMS)
    assert found.source == "msdl (nilearn)"
    table = DataFrame({"index": [0, 20, 3, 7], "name": ["Background", "Default", "Visual", "Motor"]})
    Downloads(monkeypatch, {"maps": label_image(), "labels": ["unused"], "lut": table})
    assert read_reference("nilearn:yeo_2011").names == ("Visual", "Motor", "Default")
    Downloads(monkeypatch, {"maps": picture(NETWORKS), "labels": None})
    assert read_reference("nilearn:smith_2009").names == ("network 1", "network 2", "network 3")
    assert asked["msdl"] == {"verbose": 0}


def test_without_internet_the_error_says_what_to_do(monkeypatch):
    Downloads(monkeypatch, ConnectionError("no route to host"))
    with pytest.raises(InputError, match=r"downloaded \(no route to host\); without internet, give"):
        read_reference("nilearn:msdl")


def test_the_names_of_fetchers_are_nilearns():
    from nilearn import datasets

    assert all(callable(getattr(datasets, f"fetch_atlas_{name}")) for name in FETCHERS)


# In Python


def scans(maps, rng, n_sites=3, n_people=4, length=60):
    def person():
        noise = 0.05 * rng.normal(size=(length, maps.shape[1]))
        return (rng.laplace(size=(length, len(maps))) @ maps + noise).astype(np.float32)

    return [[person() for _ in range(n_people)] for _ in range(n_sites)]


@pytest.fixture(scope="module")
def fitted():
    """Three networks from tables of the voxels of a coarse brain, which a mask gives places."""
    brain = mni_brain(12.0)
    maps = np.array([np.exp(-((brain.places - c) ** 2).sum(axis=1) / 800) for c in CENTRES.values()])
    X = scans(maps, np.random.default_rng(0))
    ica = CapeDJICA(3, mechanism="none", mask_img=brain.mask_image(), scan_length=60)
    return ica.fit(X), X, maps


def test_an_estimator_labels_its_maps(fitted, tmp_path):
    ica, _, _ = fitted
    table = ica.label(picture(NETWORKS), list(CENTRES), white_matter=picture(NETWORKS[0] > 0.1))
    assert set(table["name"]) == set(CENTRES)
    assert (table["correlation 1"] > 0.8).all()
    assert [one.name for one in ica.labels_.maps] == list(table["name"])
    ica.generate_report().save_as_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert all(f"Map {number}: {one.name}" in page for number, one in enumerate(ica.labels_.maps, start=1))
    assert "Best matches:" in page
    assert "may be an artefact: white matter" in page
    assert 'download="labels.csv"' in page


def test_arrays_are_labelled_by_arrays(fitted):
    _, X, maps = fitted
    few, X = maps[:, ::20], [[scan[:, ::20] for scan in site] for site in X]
    ica = CapeDJICA(3, mechanism="none", scan_length=60).fit(X)
    assert set(ica.label(few, list(CENTRES))["name"]) == set(CENTRES)
    with pytest.raises(InputError, match="the features have no spatial positions"):
        ica.label(picture(NETWORKS))
    ica.fit(X)
    assert ica.labels_ is None


def test_a_template_gives_its_names(fitted):
    _, X, maps = fitted
    ica = CapeDJICA(method="template", template=maps, template_names=list(CENTRES), scan_length=60)
    table = ica.fit(X).label(maps[::-1].copy(), ["x", "y", "z"])
    assert list(table["name"]) == list(CENTRES)
    assert list(table["match 1"]) == ["z", "y", "x"]


def test_columns_that_are_no_regions_of_the_atlas_are_refused(fitted):
    _, X, _ = fitted
    with pytest.raises(
        InputError, match=r"X: subjects have 1,102 features, but the atlas or mask has 3; every"
    ):
        CapeDJICA(3, mechanism="none", atlas=label_image(), scan_length=60).fit(X)
