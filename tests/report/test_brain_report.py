"""Peaks of maps where they were put, and slices that show them on the right side."""

import csv

import nibabel
import numpy as np
import pytest

from capedjica.algorithms.reliability import Reliability
from capedjica.report.pictures.brain import RegionsAt, find_peaks, peaks_csv, read_region_names
from capedjica.report.pictures.figures import draw, slices_figure
from capedjica.report.pictures.slices import SHOWN_FROM, SLICES, axial, coloured, over_brain, square

AFFINE = np.array([[-4.0, 0, 0, 80], [0, 4, 0, -112], [0, 0, 4, -64], [0, 0, 0, 1]])
SHAPE = (41, 48, 34)


def places():
    voxels = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij"), axis=-1)
    return voxels @ AFFINE[:3, :3].T + AFFINE[:3, 3]


def blob(x, y, z, height=1.0, width=10.0):
    return height * np.exp(-((places() - [x, y, z]) ** 2).sum(axis=-1) / (2 * width**2))


@pytest.fixture(scope="module")
def image():
    """A network in two places, the second lower, and one that is negative somewhere; x runs backwards."""
    first = blob(-40, -60, 32) + blob(40, -60, 32, 0.8)
    second = blob(0, 48, 0) - blob(-20, 0, 48, 0.6)
    return nibabel.Nifti1Image(np.stack([first, second], axis=-1).astype(np.float32), AFFINE)


def test_peaks_are_where_they_were_put(image):
    peaks = find_peaks(image)
    assert [(peak.component, peak.x, peak.y, peak.z) for peak in peaks] == [
        (1, -40, -60, 32),
        (1, 40, -60, 32),
        (2, 0, 48, 0),
        (2, -20, 0, 48),
    ]
    assert [peak.value for peak in peaks] == pytest.approx([1, 0.8, 1, -0.6], abs=1e-3)
    # A ball whose edge is at half the height: its radius is 1.18 standard deviations.
    assert peaks[0].cluster_mm3 == pytest.approx(4 / 3 * np.pi * (10 * 1.177) ** 3, rel=0.15)
    assert peaks[0].cluster_mm3 == pytest.approx(peaks[0].cluster_voxels * 64)


def test_a_flat_region_peaks_in_its_middle():
    flat = np.zeros((*SHAPE, 1), dtype=np.float32)
    flat[10:17, 20:23, 5:8] = 1
    (peak,) = find_peaks(nibabel.Nifti1Image(flat, AFFINE))
    np.testing.assert_allclose([peak.x, peak.y, peak.z], AFFINE[:3] @ [13, 21, 6, 1])
    assert find_peaks(nibabel.Nifti1Image(0 * flat, AFFINE)) == []


def test_peaks_are_named_by_the_atlas_where_it_has_names(image, tmp_path):
    labels = np.where(places()[..., 0] < 0, 3, 7).astype(np.int16)
    labels[:, :, 28:] = 0
    atlas = nibabel.Nifti1Image(labels, AFFINE)
    (tmp_path / "atlas.tsv").write_text("index\tname\n3\tleft, of the brain\n")
    regions = RegionsAt(atlas, read_region_names(tmp_path / "atlas.tsv"))
    assert [peak.region for peak in find_peaks(image, regions)] == [
        "left, of the brain",
        "region 7",
        "region 7",
        "",
    ]
    assert regions.at(1000, 0, 0) == ""
    rows = list(csv.DictReader(peaks_csv(find_peaks(image, regions)).decode().splitlines()))
    assert rows[0]["region"] == "left, of the brain"
    assert [float(rows[1][axis]) for axis in "xyz"] == [40, -60, 32]
    for content in ("", "index\n3\n", "index\tname\nthree\tx\n"):
        (tmp_path / "odd.tsv").write_text(content)
        assert read_region_names(tmp_path / "odd.tsv") == {}
    assert read_region_names(tmp_path / "none.tsv") == {}


def test_left_is_left_and_front_is_at_the_top(image):
    first, second = axial(image)
    width = first.shape[1] // len(SLICES)
    high = first[:, SLICES.index(30) * width :][:, :width]
    row, column = np.unravel_index(high.argmax(), high.shape)
    assert column < width / 2
    assert row > high.shape[0] / 2
    low = second[:, SLICES.index(0) * width :][:, :width]
    assert low.argmax() // width < low.shape[0] / 2


def test_slices_are_drawn(image, tmp_path):
    draw(slices_figure(image, "Networks", Reliability(2, np.array([0.9, 0.1]))), tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    figure = slices_figure(image, "Networks", Reliability(2, np.array([0.9, 0.1])))
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["1: stability 0.90, good", "2: stability 0.10, poor"]
    drawn = [axis.images[0].get_array() for axis in figure.axes]
    cuts = axial(image)
    assert (drawn[0] == over_brain(cuts[0], False)).all()
    assert (drawn[1] == over_brain(cuts[1], True)).all()
    assert [axis.get_title(loc="left") for axis in slices_figure(image, "x").axes] == ["1", "2"]


def test_slices_and_squares_have_the_same_colours(image):
    cut = axial(image)[0]
    shown = np.abs(cut) >= SHOWN_FROM
    assert shown.any()
    assert (over_brain(cut, False)[shown] == coloured(cut[shown])).all()
    assert (square(cut, limit=1.0)[shown] == coloured(cut[shown])).all()
    red, blue = coloured(np.array([0.8, -0.8]))[:, :3].astype(int)
    assert red[0] > red[2]
    assert blue[2] > blue[0]
