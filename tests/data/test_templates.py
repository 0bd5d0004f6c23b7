"""Templates as people have them: arrays, images, labels, results; and what is refused."""

import json
import zipfile

import numpy as np
import pytest

from capedjica.algorithms.ica.template import Template
from capedjica.data.columns import Columns
from capedjica.data.features import FeatureTable, open_features
from capedjica.data.templates import read_template, study_template
from capedjica.errors import InputError
from tests.support.scanner import AFFINE, INSIDE, LABELS, MAPS, SHAPE, image, public_files, save

FAR = AFFINE.copy()
FAR[:3, 3] += 500


@pytest.fixture
def folder(tmp_path):
    return public_files(tmp_path)


def features(folder, **options):
    return open_features(FeatureTable(**options), folder, None)


def voxels(folder, **options):
    return features(folder, kind="voxels", mask="mask.nii.gz", **options)


def scaled(maps):
    return maps / np.abs(maps).max(axis=1, keepdims=True)


# Arrays


def test_an_array_is_taken_as_it_is_and_from_its_file(tmp_path):
    maps = np.random.default_rng(0).standard_normal((3, 10))
    np.save(tmp_path / "known.npy", maps)
    for given in (
        maps,
        maps.tolist(),
        Template.of(maps),
        tmp_path / "known.npy",
        str(tmp_path / "known.npy"),
    ):
        found = read_template(given, Columns(10, False, False))
        np.testing.assert_allclose(found.template.maps, scaled(maps))
        assert found.epsilon is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_bytes(b"x"), "not an array of real numbers"),
        (lambda path: np.save(path, np.array(["a", "b"])), "not an array of real numbers"),
        (lambda path: np.save(path, np.array([{}], dtype=object)), "not an array of real numbers"),
        (lambda path: np.save(path, np.eye(3, 9)), "its maps have 9 features, but the study has 10"),
        (lambda path: np.save(path, np.eye(10)[0]), "at least two maps"),
    ],
)
def test_files_that_are_no_template(tmp_path, make, message):
    path = tmp_path / "known.npy"
    make(path)
    with pytest.raises(InputError, match=message):
        read_template(path, None, 10)


# Images


def test_maps_become_voxels_of_the_mask(folder):
    found = read_template(folder / "maps.nii.gz", voxels(folder, standardize=True, detrend=True))
    np.testing.assert_allclose(found.template.maps, scaled(MAPS[INSIDE].T), atol=1e-6)
    assert found.source == "maps.nii.gz"


def test_maps_on_another_grid_are_interpolated(folder):
    fine = AFFINE @ np.diag([0.5, 0.5, 0.5, 1])
    places = np.indices([2 * side for side in SHAPE]) / 2
    maps = np.stack([np.exp(-((places[i] - 4) ** 2) / 6.0) for i in range(3)], axis=-1)
    found = read_template(image(maps, affine=fine), voxels(folder))
    expected = scaled(np.stack([np.exp(-((np.indices(SHAPE)[i] - 4) ** 2) / 6.0)[INSIDE] for i in range(3)]))
    np.testing.assert_allclose(found.template.maps, expected, atol=1e-5)


def test_maps_become_means_over_regions(folder):
    """As a volume of a scan would, by the masker that scans go through."""
    regions = features(folder, kind="atlas", atlas="labels.nii.gz")
    found = read_template(folder / "maps.nii.gz", regions)
    means = [[MAPS[label == LABELS, r].mean() for label in (3, 7, 11, 20)] for r in range(3)]
    np.testing.assert_allclose(found.template.maps, scaled(np.array(means)), atol=1e-6)


def test_maps_become_weights_of_an_atlas_of_maps(folder):
    atlas = features(folder, kind="atlas", atlas="maps.nii.gz", standardize=True)
    mixed = MAPS @ np.array([[1.0, 2.0], [0.5, 0.0], [0.0, -1.0]])
    found = read_template(image(mixed), atlas)
    np.testing.assert_allclose(found.template.maps, scaled(np.array([[1, 0.5, 0], [2, 0, -1]])), atol=1e-6)


def test_each_label_is_a_map_of_zero_and_one(folder):
    found = read_template(folder / "labels.nii.gz", voxels(folder))
    assert found.template.n_networks == 4
    expected = np.stack([LABELS[INSIDE] == label for label in (3, 7, 11, 20)])
    np.testing.assert_array_equal(found.template.maps, expected)
    regions = features(folder, kind="atlas", atlas="labels.nii.gz")
    np.testing.assert_allclose(read_template(folder / "labels.nii.gz", regions).template.maps, np.eye(4))


def test_voxels_without_a_number_are_outside(folder):
    values = np.where(INSIDE[..., np.newaxis], MAPS, np.nan)
    found = read_template(image(values), voxels(folder))
    np.testing.assert_allclose(found.template.maps, scaled(MAPS[INSIDE].T), atol=1e-6)


def half_nan():
    values = MAPS.copy()
    values[4, 4, 4, 0] = np.nan
    return values


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: image(MAPS, affine=FAR), "all of its maps are zero .* different space"),
        (lambda: image(MAPS * [1, 0, 1]), "map 2 is zero everywhere"),
        (lambda: image(MAPS[..., [0, 1, 1]]), "collinear"),
        (lambda: image(half_nan()), "NaN or infinite in only some of its maps"),
        (lambda: image(MAPS[..., :1]), "at least two maps"),
        (lambda: image(MAPS[..., 0]), "not non-negative integers"),
        (lambda: image(-LABELS), "not non-negative integers"),
        (lambda: image((LABELS > 0).astype(np.int16)), "between 2 and 1,000 labels, got 1"),
        (lambda: image(MAPS[..., np.newaxis]), "must be a 4-D image of maps or a 3-D"),
    ],
)
def test_images_that_are_no_template(folder, given, message):
    with pytest.raises(InputError, match=message):
        read_template(given(), voxels(folder))


def test_images_need_features_with_places(folder):
    for columns in (None, Columns(10, False, False)):
        with pytest.raises(InputError, match="columns without spatial positions"):
            read_template(folder / "maps.nii.gz", columns, 10)


def test_a_file_of_another_kind_is_named(folder):
    (folder / "words.doc").write_text("networks")
    with pytest.raises(InputError, match="neither a readable image"):
        read_template(folder / "words.doc", voxels(folder))


# Names


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("maps.txt", "visual\nmotor\ndefault, posterior\n"),
        ("maps.tsv", "index\tname\n0\tvisual\n1\tmotor\n2\tdefault, posterior\n"),
        ("maps.tsv", "index\tname\n2\tmotor\n1\tvisual\n3\tdefault, posterior\n"),
        ("maps.csv", 'label,size\nvisual,3\nmotor,4\n"default, posterior",5\n'),
    ],
)
def test_names_are_found_beside_the_file(folder, name, text):
    (folder / name).write_text(text)
    found = read_template(folder / "maps.nii.gz", voxels(folder))
    assert found.template.names == ("visual", "motor", "default, posterior")


def test_names_of_labels_are_those_of_their_numbers(folder):
    (folder / "yeo.tsv").write_text("index\tname\n0\tbackground\n20\tD\n3\tA\n7\tB\n11\tC\n99\tE\n")
    found = read_template(folder / "labels.nii.gz", voxels(folder), names=folder / "yeo.tsv")
    assert found.template.names == ("A", "B", "C", "D")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("visual\nmotor\n", "3 networks, but 2 names"),
        ("visual\nmotor\nvisual\n", "two networks have the name 'visual'"),
        ("", "contains no names"),
        ("a\tb\tc\n1\t2\t3\n", "expected a column named 'name' or 'label'"),
        ("index\tname\none\tvisual\n", "not a table of names"),
        ("index\tname\n1\ta\n1\tb\n2\tc\n", "a label number occurs twice"),
        ("visual\n\x1b[2Jmotor\ndefault\n", "printable"),
    ],
)
def test_names_that_do_not_fit(folder, text, message):
    (folder / "maps.tsv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_template(folder / "maps.nii.gz", voxels(folder))


def test_labels_without_a_name_are_told(folder):
    (folder / "labels.tsv").write_text("index\tname\n3\tA\n7\tB\n")
    with pytest.raises(InputError, match=r"no name for label 11 \(2 such labels\)"):
        read_template(folder / "labels.nii.gz", voxels(folder))


# Results


def results(folder, private=True, epsilon=2.0, **study):
    folder.mkdir(exist_ok=True)
    content = {
        "hash": "ab" * 32,
        "title": "Earlier",
        "analysis": [{"kind": "ica", "name": None, "template_names": ["a", "b", "c"]}],
    }
    (folder / "provenance.json").write_text(json.dumps({"study": content | study}))
    (folder / "privacy.json").write_text(json.dumps({"private": private, "epsilon": epsilon}))
    np.save(folder / "maps.npy", MAPS[INSIDE].T)
    return folder


def test_results_of_a_study_tell_their_cost_and_names(folder):
    run = results(folder / "run")
    with zipfile.ZipFile(folder / "results.zip", "w") as archive:
        for path in run.iterdir():
            archive.write(path, path.name)
    for given in (run, folder / "results.zip"):
        found = read_template(given, voxels(folder))
        assert found.template.names == ("a", "b", "c")
        assert found.epsilon == 2.0
        assert found.source == f"results of 'Earlier' (epsilon 2, study {'ab' * 8})"
        assert found.origin(None) == "earlier-study"
        assert found.origin("public") == "public"


def test_results_in_another_space_go_there_by_their_image(folder):
    run = results(folder / "run")
    save(run / "maps.nii.gz", MAPS)
    regions = features(folder, kind="atlas", atlas="labels.nii.gz")
    assert read_template(run, regions).template.maps.shape == (3, 4)
    (run / "maps.nii.gz").unlink()
    with pytest.raises(InputError, match="its maps have 336 features, but the study has 4"):
        read_template(run, regions)


@pytest.mark.parametrize(("private", "epsilon"), [(False, None), (False, 2.0)])
def test_results_that_protect_nobody_need_an_attestation(folder, private, epsilon):
    found = read_template(results(folder / "run", private, epsilon), voxels(folder))
    for said in (None, "public", "earlier-study"):
        with pytest.raises(InputError, match="was computed without privacy"):
            found.origin(said)
    assert found.origin("other-people") == "other-people"


def test_what_holds_no_networks_is_no_result(folder):
    for run in (folder, results(folder / "run", analysis=[{"kind": "mean", "name": None}])):
        with pytest.raises(InputError, match=r"is not the results of a finished|not contain brain networks"):
            read_template(run, voxels(folder))
    (folder / "bad.zip").write_bytes(b"PK")
    with pytest.raises(InputError, match="is not the results"):
        read_template(folder / "bad.zip", voxels(folder))


# Of a study


def test_the_file_of_a_study_is_the_one_it_means(tmp_path):
    path = tmp_path / "template.npy"
    np.save(path, np.eye(2, 5))
    assert study_template(path, None, (), (2, 5)).names == ("network 1", "network 2")
    with pytest.raises(InputError, match="is not the file of the study"):
        study_template(path, "0" * 64, (), (2, 5))
    with pytest.raises(InputError, match=r"has shape \(2, 5\), expected \(3, 5\)"):
        study_template(path, None, (), (3, 5))
    with pytest.raises(InputError, match="cannot be read"):
        study_template(tmp_path / "none.npy", None, (), (2, 5))
