"""All that the aggregator received and wrote, searched for every single person of every site."""

import gzip
import logging

import numpy as np
import pytest

from capedjica.algorithms.ica.individual import analyse_subject
from capedjica.engines.inprocess import InProcessEngine
from capedjica.one_machine import local_run
from capedjica.site import run
from capedjica.site.participants.cohort import enrol, open_people
from tests.attacks.views.leaks import Needles, contents, unpacked
from tests.support.small_scans import atlas_study, make_scans
from tests.support.small_study import make_study

ODD = ("Zoë-Quux-{}", "patient {} of ward 7741", "MRN_00{}9-4471-X")


class Recorder(InProcessEngine):
    """Keeps every letter."""

    last = None

    def __init__(self, sites):
        super().__init__(sites, keep_transcript=True)
        Recorder.last = self


def run_recorded(study, folder, monkeypatch):
    """Run a study and return all that the aggregator received and wrote."""
    with monkeypatch.context() as patch:
        patch.setattr(local_run, "InProcessEngine", Recorder)
        local_run.run_study(study, local_run.find_sites(study, folder / "sites"), folder / "run")
    letters = [letter for letter in Recorder.last.transcript if letter.direction == "answer"]
    assert len(letters) > 20
    return [(f"message {n} of {letter.site}", letter.data) for n, letter in enumerate(letters)]


def needles_of(homes, study, folder):
    """Names, places and arrays of everybody: the scan, its mean, what is computed from it at the site."""
    needles = Needles()
    needles.add_words({str(folder), str(folder.resolve())})
    for home in homes:
        needles.add_words({str(home.data_path), f"{home.settings.name}/data"})
        people = open_people(home, study)
        needles.add_words(people.names)
        for name, scan in zip(people.names, people, strict=True):
            if len(scan):
                mean = scan.mean(axis=0)
                own = [scan, mean, scan - mean, scan.std(axis=0), *statistics_of(study, scan)]
                needles.add_arrays(f"scan of {name}", own)
    return needles


def statistics_of(study, scan):
    """What one person adds to the first release, and what the results say about them alone."""
    yield np.concatenate(list(study.analysis.site([scan])(0, b"", b"")))
    unmixing = np.load(study.folder / "run" / "unmixing.npy")
    alone = analyse_subject([scan], unmixing)
    yield from (alone.courses[0], alone.connectivity, alone.maps)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A study of tables whose people have unmistakable names and numbers; some files were damaged since."""
    folder = tmp_path_factory.mktemp("unmistakable-place")
    study = make_study(folder)
    homes = local_run.find_sites(study, folder / "sites")
    for number, home in enumerate(homes):
        for index, file in enumerate(sorted(home.data_path.iterdir())):
            np.save(file, np.load(file).astype(np.float64) * np.pi + 0.123456789 * index)
            file.rename(file.with_stem(ODD[index % 3].format(10 * number + index)))
        enrol(home, home.settings.data, study)
    next(homes[0].data_path.iterdir()).unlink()
    next(homes[1].data_path.iterdir()).write_bytes(b"damaged")
    with pytest.MonkeyPatch.context() as patch:
        messages = run_recorded(study, folder, patch)
    return folder, study, homes, messages


def test_nobody_is_in_what_the_aggregator_received_and_wrote(tables):
    folder, study, homes, messages = tables
    needles = needles_of(homes, study, folder)
    assert len(needles.binary) == study.n_subjects - 2
    assert all(len(own) > 10_000 for own in (*needles.binary.values(), *needles.text.values()))
    written = list(contents(folder / "run"))
    assert {"maps.csv", "releases.bin", "log.txt", "results.zip/mixing.npy"} <= {name for name, _ in written}
    assert needles.search([*messages, *written]) == []


@pytest.mark.parametrize(
    "leak",
    [
        lambda name, scan: f"could not read {name}".encode(),
        lambda name, scan: scan.astype(np.float32).tobytes(),
        lambda name, scan: b"\x00" + scan[7:9].tobytes(),
        lambda name, scan: scan[3, 11:22].astype(">f4").tobytes(),
        lambda name, scan: ",".join(f"{value:.6g}" for value in scan[:, 0]).encode(),
        lambda name, scan: str(scan[0].tolist()).encode(),
        lambda name, scan: scan.T.tobytes(),
        lambda name, scan: scan.mean(axis=0).tobytes(),
        lambda name, scan: gzip.compress(f"column\n{name}\n".encode()),
    ],
)
def test_the_search_finds_what_is_planted(tables, leak):
    """In a message, and in a file of the results."""
    folder, study, homes, messages = tables
    home = homes[2]
    people = open_people(home, study)
    name, scan = people.names[4], people[4]
    needles = needles_of([home], study, folder)
    planted = leak(name, scan)
    message = b"".join(data for _, data in unpacked("", planted))
    assert any(name in found for found in needles.search([("message", messages[5][1] + message)]))
    extra = folder / "run" / "extra.bin"
    extra.write_bytes(planted)
    try:
        assert any(name in found for found in needles.search(contents(folder / "run")))
    finally:
        extra.unlink()


@pytest.mark.parametrize(
    "number", [b"7.3E99", b"2.5e400", b"-1.25e-320", b"4.1e-400", b"0.0e7", b"1.0e38", b"9.9e38"]
)
def test_numbers_that_chance_makes_of_random_bytes_neither_stop_the_search_nor_hide_a_leak(number):
    """Keys, hashes and noise hold every short text sooner or later, also of absurd numbers."""
    secret = np.array([0.123456, 0.234567, 0.345678, 0.456789])
    needles = Needles()
    needles.add_arrays("somebody", [secret])
    around = b" ".join([number] * 4)
    assert needles.search([("noise", around)]) == []
    leak = b" ".join(f"{value:.6g}".encode() for value in secret)
    assert needles.search([("leak", around + b" " + leak + b" " + around)]) == ["somebody in leak"]


def test_a_real_leak_is_found(tables, tmp_path, monkeypatch):
    """A log of the run that names a scan, as a careless programmer would write it."""
    study = make_study(tmp_path)
    homes = local_run.find_sites(study, tmp_path / "sites")
    careless = run._log_unreadable

    def log(site, people):
        logging.getLogger("capedjica.run").info("site %s has read %s", site, people.names[0])
        careless(site, people)

    monkeypatch.setattr(run, "_log_unreadable", log)
    messages = run_recorded(study, tmp_path, monkeypatch)
    found = needles_of(homes, study, tmp_path).search([*messages, *contents(tmp_path / "run")])
    assert set(found) == {"sub-00 in log.txt"}


def test_nobody_is_in_the_results_of_images(tmp_path, monkeypatch):
    """The same for images: the atlas and the maps are public, the people are not."""
    study = atlas_study(make_scans(tmp_path / "trial"))
    messages = run_recorded(study, study.folder, monkeypatch)
    homes = local_run.find_sites(study, study.folder / "sites")
    needles = needles_of(homes, study, study.folder)
    written = list(contents(study.folder / "run"))
    assert {"maps.nii.gz unpacked", "results.zip/atlas.nii.gz unpacked"} <= {name for name, _ in written}
    assert needles.search([*messages, *written]) == []
    kept = [(str(path), path.read_bytes()) for path in homes[0].cache_path.iterdir()]
    assert len(needles.search(kept)) >= len(kept)
