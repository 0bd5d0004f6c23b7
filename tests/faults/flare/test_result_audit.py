"""The audit of a result, which tests of faults rely on, notices what it is there for."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from capedjica.algorithms.analysis import Replay
from capedjica.algorithms.ica.maps.networks import pseudo_inverse
from capedjica.coordinator.run.journal import Journal, read_journal
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.privacy.ledger.entry import Entry
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import open_people
from capedjica.study.study_file import Study
from tests.faults.flare.gates.keeping import keep
from tests.faults.flare.result_audit import Part, check_data, check_result, releases_of, sent_parts
from tests.support.small_study import make_study


@dataclass(frozen=True)
class Run:
    """A complete run of which one file or another is falsified."""

    study: Study
    folder: RunFolder
    homes: dict[str, SiteHome]
    kept: Path

    def check(self) -> None:
        check_result(self.study, self.folder, self.homes, self.kept)

    def publish(self, change) -> None:
        """Write other means into the journal, and the results that follow from them."""
        path, contract = self.folder.journal_path, self.study.contract
        with Journal.open(path, contract) as journal:
            records = change(journal.records)
        path.unlink()
        with Journal.open(path, contract) as journal:
            for record in records:
                journal.append(record)
        found = self.study.analysis.estimate(Replay(read_journal(path, contract)))
        self.write_maps(found.mixing)

    def write_maps(self, mixing: np.ndarray) -> None:
        self.folder.write_array("mixing.npy", mixing)
        self.folder.write_array("unmixing.npy", pseudo_inverse(mixing))
        self.folder.write_array("maps.npy", np.ascontiguousarray(mixing.T))

    def sent_last(self) -> dict[str, np.ndarray]:
        """Return what each site sent in the last release, without its mask."""
        parts = {name: sent_parts(home, self.kept / name) for name, home in self.homes.items()}
        return {name: sent[max(sent)].words for name, sent in parts.items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited")
    study = make_study(folder)
    homes = find_sites(study, folder / "sites")
    with pytest.MonkeyPatch.context() as patch:
        keep(folder / "kept", patch.setattr)
        assert run_study(study, homes, folder / "run").complete
    by_name = {home.settings.name: home for home in homes}
    return Run(study, RunFolder(folder / "run"), by_name, folder / "kept")


@pytest.fixture
def run(original, tmp_path):
    shutil.copytree(original.folder.path, tmp_path / "run")
    return replace(original, folder=RunFolder(tmp_path / "run"))


def with_value(records, index, value):
    changed = list(records)
    changed[index] = msgspec.structs.replace(records[index], value=value)
    return changed


def test_a_right_result_passes(run):
    run.check()


def test_maps_in_another_order_are_noticed(run):
    """As consistent as before: the unmixing matrix is the inverse of the mixing matrix."""
    run.write_maps(np.ascontiguousarray(run.folder.read_array("mixing.npy")[:, ::-1]))
    with pytest.raises(AssertionError, match=r"mixing\.npy is not what the means give"):
        run.check()


def test_a_map_that_is_off_by_little_is_noticed(run):
    maps = run.folder.read_array("maps.npy")
    maps[0, 0] += 1e-6
    run.folder.write_array("maps.npy", maps)
    with pytest.raises(AssertionError, match=r"maps\.npy is not what the means give"):
        run.check()


def test_means_that_were_mixed_up_are_noticed(run):
    run.publish(lambda records: with_value(with_value(records, -1, records[-2].value), -2, records[-1].value))
    with pytest.raises(AssertionError, match=r"not the sum of what its sites sent|that nobody was asked"):
        run.check()


def test_a_mean_of_an_earlier_release_is_noticed(run):
    run.publish(lambda records: with_value(records, -1, records[-2].value))
    with pytest.raises(AssertionError, match="not the sum of what its sites sent"):
        run.check()


def test_an_answer_that_was_dropped_is_noticed(run):
    sent, n_subjects = run.sent_last(), sum(run.study.contract.subjects)
    whole = np.frombuffer(read_journal(run.folder.journal_path, run.study.contract)[-1].value)
    step = whole[0] * n_subjects / sum(sent.values())[:1].view(np.int64)[0]
    fewer = sum(words for name, words in sent.items() if name != "s3").view(np.int64) * step / n_subjects
    assert np.abs(fewer).max() < 100 * np.abs(whole).max(), "noticed for a poor reason"
    run.publish(lambda records: with_value(records, -1, fewer.astype("<f8").tobytes()))
    with pytest.raises(AssertionError, match="not the sum of what its sites sent"):
        run.check()


def with_other_people(run: Run, folder: Path) -> dict[str, SiteHome]:
    """Return the same sites, one of which has exchanged the scans of two people for others."""
    shutil.copytree(run.study.folder, folder)
    homes = {name: SiteHome.load(folder / "sites" / name) for name in run.homes}
    for person in ("sub-00", "sub-01"):
        scan = homes["s2"].folder / "data" / f"{person}.npy"
        np.save(scan, np.load(scan)[:, ::-1])
    return homes


def test_a_site_that_did_not_send_its_own_data_is_noticed(run, tmp_path):
    with pytest.raises(AssertionError, match="not the data of s2"):
        replace(run, homes=with_other_people(run, tmp_path / "other")).check()


def test_noise_of_another_size_is_noticed(run):
    """Said to be smaller, and so is what was sent: only its size is wrong."""
    parts = {name: sent_parts(home, run.kept / name) for name, home in run.homes.items()}
    place = min(parts["s1"])
    answers = {name: sent[place] for name, sent in parts.items()}
    quiet = {name: halved(part) for name, part in answers.items()}
    statistics = {
        name: run.study.analysis.site(open_people(home, run.study)) for name, home in run.homes.items()
    }
    check_data(run.study, statistics, answers, (0, b"", b""))
    with pytest.raises(AssertionError, match="noise of another size"):
        check_data(run.study, statistics, quiet, (0, b"", b""))


def halved(part: Part) -> Part:
    less = part.noise // 2
    return replace(part, words=part.words - (part.noise - less).view(np.uint64), noise=less)


def entry(seq: int, kind: str, slot: int) -> Entry:
    return Entry(seq, kind, 0, bytes(32), 7, 0, slot, bytes(32), 0.1, "{}", bytes(32))


def test_a_mask_that_served_twice_is_noticed():
    once = [entry(1, "claim", 0), entry(2, "release", 0), entry(3, "release", 1), entry(4, "abort", 1)]
    assert releases_of(once) == once[1:3]
    with pytest.raises(AssertionError, match="a mask served twice"):
        releases_of([*once, entry(5, "release", 0)])
