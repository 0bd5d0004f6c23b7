"""Regions of which only the centres are known: spheres, cut where they overlap, inside the MNI152 brain."""

import csv

import numpy as np
import pytest

from capedjica.data.centres import RADIUS, regions_of_centres
from capedjica.data.features import FeatureTable, feature_problems, read_regions
from capedjica.errors import InputError
from tests.support.places import ROOT

TABLE = ROOT / "examples" / "cc200_centres.csv"


def written(folder, text, name="centres.csv"):
    path = folder / name
    path.write_text(text)
    return path


def labels_of(path):
    image = regions_of_centres(path, "regions")
    return np.asarray(image.dataobj), np.asarray(image.affine)


def places_of(labels, affine, number):
    return np.argwhere(labels == number) @ affine[:3, :3].T + affine[:3, 3]


def test_a_voxel_belongs_to_the_nearest_centre_up_to_the_radius(tmp_path):
    labels, affine = labels_of(written(tmp_path, "x,y,z\n-30,-20,50\n-18,-20,50\n30,-20,50\n"))
    centres = np.array([[-30, -20, 50], [-18, -20, 50], [30, -20, 50]])
    assert set(np.unique(labels)) == {0, 1, 2, 3}
    for number in (1, 2, 3):
        places = places_of(labels, affine, number)
        away = np.linalg.norm(places[:, np.newaxis] - centres, axis=-1)
        assert (away.argmin(axis=1) == number - 1).all()
        assert away.min(axis=1).max() <= RADIUS
    # The third sphere touches no other, and is deep inside the brain: nothing of it is lost.
    volume = np.count_nonzero(labels == 3) * abs(np.linalg.det(affine[:3, :3]))
    assert volume == pytest.approx(4 / 3 * np.pi * RADIUS**3, rel=0.05)


def test_a_larger_radius_moves_the_border_by_the_power_distance(tmp_path):
    labels, affine = labels_of(written(tmp_path, "x\ty\tz\tradius\n-30\t0\t40\t14\n-14\t0\t40\t8\n"))
    # |v - a|^2 - 14^2 = |v - b|^2 - 8^2 at x = -30 + (16^2 + 14^2 - 8^2) / 32 = -17.875.
    assert places_of(labels, affine, 1)[:, 0].max() <= -17.875
    assert places_of(labels, affine, 2)[:, 0].min() >= -17.875


def test_numbers_are_those_of_the_table(tmp_path):
    labels, _ = labels_of(written(tmp_path, "index,name,x,y,z\n4,left,-30,0,40\n9,right,30,0,40\n"))
    assert set(np.unique(labels)) == {0, 4, 9}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'x'; got nothing, expected the columns x, y and z"),
        ("x,y\n1,2\n", "has no column 'z'; got x, y, expected"),
        ("x,y,z\n1,2,3\n", "must have between 2 and 10,000 regions, got 1"),
        ("x,y,z\n1,2,3\n1,2\n", "line 3: 2 cells, expected 3"),
        ("x,y,z\n1,2,3\n1,two,3\n", "line 3: y is 'two', expected a number of mm"),
        ("x,y,z\n1,2,3\n1,nan,3\n", "line 3: y is 'nan', expected a number of mm"),
        ("x,y,z,radius\n1,2,3,-4\n1,2,30,5\n", "line 2: radius is -4, expected a positive"),
        ("x,y,z\n0,0,30\n0,0,200\n", r"line 3: no voxel of the MNI152 brain .* \(0, 0, 200\)"),
        ("x,y,z\n0,0,30\n0,0,30\n", "line 3: no voxel of the MNI152 brain"),
        ("index,x,y,z\n2,0,0,30\n1,0,0,50\n", "line 3: index is '1', expected an integer above 2"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        regions_of_centres(written(tmp_path, text), "regions")
    assert str(tmp_path / "centres.csv") in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path):
    with pytest.raises(InputError, match=r"regions .*absent\.csv cannot be read"):
        read_regions(tmp_path / "absent.csv", "regions")
    (tmp_path / "bytes.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not a UTF-8 text file"):
        read_regions(tmp_path / "bytes.tsv", "regions")


def test_scans_are_never_averaged_in_approximate_regions():
    (problem,) = feature_problems(FeatureTable(kind="atlas", atlas="centres.csv"))
    assert "must be an image, because features.kind is 'atlas'; got 'centres.csv'" in problem


def test_the_example_has_the_sizes_and_centres_of_its_regions():
    labels, affine = labels_of(TABLE)
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == list(range(1, 201))
    sizes = np.bincount(labels.ravel(), minlength=201)[1:]
    # The voxels of the table have 3 mm, like those of the image.
    listed = np.array([int(row["voxels"]) for row in rows])
    assert sizes.sum() == pytest.approx(listed.sum(), rel=0.05)
    assert np.corrcoef(sizes, listed)[0, 1] > 0.9
    for row in rows:
        centre = [float(row[axis]) for axis in "xyz"]
        mean = places_of(labels, affine, int(row["index"])).mean(axis=0)
        assert np.linalg.norm(mean - centre) < 3
