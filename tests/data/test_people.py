"""One person is one subject, however many recordings there are; one is in memory at a time."""

import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from nilearn.signal import clean
from numpy.testing import assert_allclose, assert_array_equal

from capedjica.data import FeatureTable, People, find_people, open_features
from capedjica.data.cache import SeriesCache
from capedjica.data.scans import Person, Recording
from tests.support.scanner import AFFINE, T, public_files, save, volumes

ATLAS = FeatureTable(kind="atlas", atlas="labels.nii.gz")


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    return public_files(tmp_path_factory.mktemp("public"))


def runs(folder, *lengths, name="sub-1"):
    paths = [
        save(folder / f"{name}_run-{number}_bold.nii.gz", volumes(number, n_volumes=length))
        for number, length in enumerate(lengths, start=1)
    ]
    return Person(name, tuple(map(Recording, paths)))


def test_runs_are_centred_one_by_one_and_joined(tmp_path, public):
    features = open_features(ATLAS, public, 4)
    person = runs(tmp_path, T, 25)
    (joined,) = People([person], features)
    parts = [features.series(recording) for recording in person.recordings]
    assert joined.shape == (T + 25, 4)
    assert joined.dtype == np.float32
    assert_allclose(joined[:T], parts[0] - parts[0].mean(axis=0), atol=1e-4)
    assert_allclose(joined[T:], parts[1] - parts[1].mean(axis=0), atol=1e-4)
    (alone,) = People([Person("a", person.recordings[:1])], features)
    assert_array_equal(alone, parts[0])


def test_runs_are_standardised_one_by_one(tmp_path, public):
    table = FeatureTable(kind="atlas", atlas="labels.nii.gz", standardize=True)
    (joined,) = People([runs(tmp_path, T, 25)], open_features(table, public, 4))
    for run in (joined[:T], joined[T:]):
        assert_allclose(run.std(axis=0, ddof=1), 1, rtol=1e-5)


def test_a_bad_run_makes_the_person_unusable_and_is_named(tmp_path, public):
    person = runs(tmp_path, T, T)
    person.recordings[1].path.write_bytes(b"")
    people = People([person], open_features(ATLAS, public, 4))
    assert people[0].shape == (0, 4)
    assert people.n_unreadable == 1
    (problem,) = people.check(3)
    assert problem.path == person.recordings[1].path
    assert problem.name == "sub-1"


def test_short_runs_count_together(tmp_path, public):
    people = People([runs(tmp_path, 2, 2)], open_features(ATLAS, public, 4))
    assert people.check(4) == []
    (problem,) = people.check(5)
    assert "4 time points; expected at least 5, the number of components" in str(problem)


def test_somebody_without_recordings(public):
    people = People([Person("sub-1", ())], open_features(ATLAS, public, 4))
    assert people[0].shape == (0, 4)
    (problem,) = people.check(3)
    assert str(problem) == "sub-1: no recording; expected at least one"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("detrend", "standardize"), [(True, False), (False, True), (True, True)])
def test_tables_are_cleaned_as_nilearn_does(tmp_path, detrend, standardize, dtype):
    rng = np.random.default_rng(0)
    scan = (np.linspace(0, 5, 50)[:, None] + 3 * rng.standard_normal((50, 3))).astype(dtype)
    np.save(tmp_path / "a.npy", scan)
    features = open_features(FeatureTable(detrend=detrend, standardize=standardize), tmp_path, 3)
    (cleaned,) = People(find_people("files", tmp_path).people, features)
    expected = clean(scan, detrend=detrend, standardize="zscore_sample" if standardize else None)
    assert cleaned.dtype == dtype
    assert_allclose(cleaned, expected, atol=1e-5)


@pytest.mark.parametrize("length", [0, 1, 2, 60])
def test_what_never_changes_stays_so(tmp_path, length):
    """Rounding would leave something of a mean, which must not be scaled up."""
    scan = np.hstack([np.full((length, 2), 1000.1), np.arange(length)[:, None] ** 2.0])
    np.save(tmp_path / "a.npy", scan)
    features = open_features(FeatureTable(detrend=True, standardize=True), tmp_path, 3)
    (cleaned,) = People(find_people("files", tmp_path).people, features)
    assert cleaned.shape == scan.shape
    assert not cleaned[:, :2].any()
    assert np.isfinite(cleaned).all()


def test_people_may_be_asked_for_from_several_threads(tmp_path, public):
    """On every second grid a region has no voxel, and every third person is filtered at another rate."""
    table = FeatureTable(kind="atlas", atlas="labels.nii.gz", low_pass=0.1)
    coarse = np.diag([8.0, 8.0, 8.0, 1.0])
    coarse[:3, 3] = AFFINE[:3, 3]
    grids = [{"affine": AFFINE}, {"affine": coarse}]
    people = []
    for number in range(12):
        shape = ((9, 10, 8), (5, 5, 4))[number % 2]
        path = tmp_path / f"sub-{number}.nii"
        save(path, volumes(number, shape), tr=1.0 + number % 3, **grids[number % 2])
        people.append(Person(f"sub-{number}", (Recording(path),)))
    alone = list(People(people, open_features(table, public, 4)))
    together = People(people, open_features(table, public, 4))
    with ThreadPoolExecutor(6) as threads:
        for scan, expected in zip(threads.map(together.__getitem__, range(12)), alone, strict=True):
            assert_array_equal(scan, expected)
    assert together.n_unreadable == 0


# Cache ------------------------------------------------------------------------------------------------------


class Counted:
    """Features that count how often they are extracted."""

    def __init__(self, features):
        self._features, self.times = features, 0

    def series(self, recording):
        self.times += 1
        return self._features.series(recording)

    def __getattr__(self, name):
        return getattr(self._features, name)


@pytest.fixture
def counted(public):
    return Counted(open_features(ATLAS, public, 4))


def test_a_series_is_extracted_once_and_kept_for_nobody_else(tmp_path, counted):
    person = runs(tmp_path, T, T)
    cache = SeriesCache(tmp_path / "site" / "cache")
    people = People([person], counted, cache)
    first, again = people[0], people[0]
    assert_array_equal(first, again)
    assert people.check(3) == []
    assert counted.times == 2
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    entries = list(cache.folder.iterdir())
    assert len(entries) == 2
    assert all(entry.stat().st_mode & 0o777 == 0o600 for entry in entries)
    assert not any("sub-1" in entry.name for entry in entries)
    assert_array_equal(People([person], counted)[0], first)


def test_a_changed_file_is_read_again(tmp_path, counted):
    person = runs(tmp_path, T)
    path = person.recordings[0].path
    people = People([person], counted, SeriesCache(tmp_path / "cache"))
    before = people[0]
    save(path, volumes(99))
    assert np.abs(people[0] - before).max() > 1
    assert counted.times == 2
    os.utime(path, ns=(0, 0))
    assert len(people[0]) == T
    assert counted.times == 3
    path.with_name("sub-1_run-1_bold.json").write_text('{"RepetitionTime": 1.0}')
    assert len(people[0]) == T
    assert counted.times == 4
    path.unlink()
    assert len(people[0]) == 0


def test_other_features_make_other_entries(tmp_path, public, counted):
    person = runs(tmp_path, T)
    cache = SeriesCache(tmp_path / "cache")
    plain = People([person], counted, cache)[0]
    table = FeatureTable(kind="atlas", atlas="labels.nii.gz", standardize=True)
    standardised = People([person], open_features(table, public, 4), cache)[0]
    assert np.abs(plain - standardised).max() > 1
    moved = public_files(tmp_path / "elsewhere")
    assert open_features(ATLAS, moved, 4).key == open_features(ATLAS, public, 4).key


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "not an array"])
def test_a_damaged_entry_is_made_again(tmp_path, counted, damage):
    people = People([runs(tmp_path, T)], counted, SeriesCache(tmp_path / "cache"))
    sound = people[0]
    (entry,) = (tmp_path / "cache").iterdir()
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(
        {"cut": content[:-40], "flip": content, "empty": b"", "not an array": b"x" * len(content)}[damage]
    )
    assert_array_equal(people[0], sound)
    assert counted.times == 2
    assert_array_equal(people[0], sound)
    assert counted.times == 2


def test_a_full_disk_or_a_closed_folder_costs_time_alone(tmp_path, counted, monkeypatch):
    people = People([runs(tmp_path, T)], counted, SeriesCache(tmp_path / "cache"))

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_room)
    assert len(people[0]) == T
    assert len(people[0]) == T
    assert counted.times == 2
    assert people.n_unreadable == 0
    assert list((tmp_path / "cache").iterdir()) == []


def test_purge_removes_what_is_ours_and_nothing_else(tmp_path, counted):
    cache = SeriesCache(tmp_path / "cache")
    assert cache.purge() == 0
    assert len(People([runs(tmp_path, T, T)], counted, cache)[0]) == 2 * T
    (cache.folder / "notes.txt").write_text("mine")
    assert cache.purge() == 2
    assert [path.name for path in cache.folder.iterdir()] == ["notes.txt"]
    (cache.folder / "notes.txt").unlink()
    cache.purge()
    assert not cache.folder.exists()


def test_a_new_edition_removes_those_before_and_keeps_its_own(tmp_path, counted):
    person, folder = runs(tmp_path, T, T), tmp_path / "cache"
    old, new = SeriesCache(folder, "0" * 16), SeriesCache(folder, "1" * 16)
    for cache in (SeriesCache(folder), old, new):
        assert len(People([person], counted, cache)[0]) == 2 * T
    assert counted.times == 6
    for edition in "01":
        (folder / f".{edition * 16}-abc.npy.{edition * 16}.part").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    assert new.purge_other_editions() == 5
    assert {path.name[:16] for path in folder.iterdir()} == {"1" * 16, "." + "1" * 15, "notes.txt"}
    assert new.purge_other_editions() == 0
    assert len(People([person], counted, new)[0]) == 2 * T
    assert counted.times == 6
    assert old.purge() == 3


def test_tables_are_not_kept(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((5, 3)))
    cache = SeriesCache(tmp_path / "cache")
    people = People(find_people("files", tmp_path).people, open_features(FeatureTable(), tmp_path, 3), cache)
    assert len(people[0]) == 5
    assert not cache.folder.exists()


def test_nobody_is_in_a_repr(tmp_path, public):
    person = runs(tmp_path, T, name="sub-smith")
    people = People([person], open_features(ATLAS, public, 4), SeriesCache(tmp_path / "sub-smith"))
    assert "smith" not in "".join(
        map(repr, (people, person, person.recordings[0], people.cache, people.features))
    )


def test_memory_is_that_of_one_person(tmp_path, public):
    shape = (9, 10, 8)
    people = [runs(tmp_path, 400, name=f"sub-{number}") for number in range(6)]
    features = open_features(ATLAS, public, 4)
    size = 4 * np.prod(shape) * 400
    assert len(People(people[:1], features)[0]) == 400  # nilearn is loaded now
    tracemalloc.start()
    assert sum(len(scan) for scan in People(people, features)) == 2400
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4.5 * size
