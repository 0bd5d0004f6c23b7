"""Whether a result is the right one: every mean the sum of what its sites sent, every file made of the means.

Three links, each checked by itself: what a site sent is the sum over its people for the question that was
then due, with noise of the size agreed; what was published is the sum of what the sites sent; the files are
what follows from what was published.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from scipy.stats import chi2

from capedjica.algorithms.analysis import ReleasedMean, Replay
from capedjica.algorithms.ica.maps.networks import Networks, pseudo_inverse
from capedjica.coordinator.run.journal import read_journal
from capedjica.coordinator.run.results import BUNDLE
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.mechanisms.contract import Statistics
from capedjica.mechanisms.messages import Answer, Ask, publication_hash
from capedjica.mechanisms.release import ReleasePlan, plan_release
from capedjica.mechanisms.site.clipping import sum_subjects
from capedjica.privacy.ledger.entry import Entry
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import open_people
from capedjica.study.study_file import Study

# How seldom noise of the right size is taken for noise of another.
FALSE_ALARM = 1e-9
# Statistics are made in single precision, whose sums depend on how many threads there are.
ROUNDING = 1e-4


def releases_of(entries: Iterable[Entry]) -> list[Entry]:
    """Return the releases among the entries of a ledger, of which no two may have used the same mask."""
    releases = [entry for entry in entries if entry.kind == "release"]
    slots = [(entry.study, entry.block, entry.attempt, entry.slot) for entry in releases]
    assert len(set(slots)) == len(slots), "a mask served twice"
    return releases


@dataclass(frozen=True)
class Part:
    """What one site was asked, and what it sent for it: without its mask, and the noise in it."""

    ask: Ask
    words: np.ndarray
    noise: np.ndarray


class Questions(Replay):
    """Answers with means that were made before, and notes what was asked for them."""

    def __init__(self, released: list[ReleasedMean]) -> None:
        super().__init__(released)
        self.asked: list[tuple[int, bytes, bytes]] = []
        self._published = b""

    def mean(self, stage: int, state: bytes = b""):
        self.asked.append((stage, self._published, state))
        return super().mean(stage, state)

    def publish(self, data: bytes) -> None:
        self._published = data


def check_result(study: Study, folder: RunFolder, homes: Mapping[str, SiteHome], kept: Path) -> None:
    """Check a complete run against the sites' ledgers, their data, and what they kept (``gates/keeping``)."""
    released = read_journal(folder.journal_path, study.contract)
    questions = Questions(released)
    found = study.analysis.estimate(questions)
    assert len(questions.asked) == len(released), "means that the analysis does not use"
    told = json.loads((folder.path / "privacy.json").read_text())["releases"]
    made = [one for one in told if not one["given_up"]]
    parts = {name: sent_parts(home, kept / name) for name, home in homes.items()}
    statistics = {name: study.analysis.site(open_people(home, study)) for name, home in homes.items()}
    places = []
    for asked, mean, release in zip(questions.asked, released, made, strict=True):
        place, answers = last_answers(parts, asked)
        check_mean(study, answers, mean, release)
        check_data(study, statistics, answers, asked)
        places.append(place)
    assert all(one < other for one, other in pairwise(places)), "an earlier block served a later mean"
    check_files(study, folder, found)


def sent_parts(home: SiteHome, kept: Path) -> dict[tuple[int, int], Part]:
    """Return by block and slot what a site sent; a site killed on the way has not kept its last question."""
    with home.open_ledger() as ledger:
        releases = {entry.seq: entry for entry in releases_of(ledger.entries())}
        outbox = list(ledger.outbox())
    assert [sent.seq for sent in outbox] == list(releases)
    parts = {}
    for sent in outbox:
        place, name = (sent.slot.block, sent.slot.slot), f"{sent.slot.block}-{sent.slot.slot}"
        answer = msgspec.msgpack.decode(sent.message, type=Answer)
        assert (answer.block, answer.slot) == place
        if (kept / f"{name}.ask").exists():
            ask = msgspec.msgpack.decode((kept / f"{name}.ask").read_bytes(), type=Ask)
            assert releases[sent.seq].request == ask.hash, "charged for another question"
            mask = np.frombuffer((kept / f"{name}.mask").read_bytes(), "<u8")
            noise = np.frombuffer((kept / f"{name}.noise").read_bytes(), "<i8")
            parts[place] = Part(ask, np.frombuffer(answer.words, "<u8") - mask, noise)
    return parts


def last_answers(
    parts: Mapping[str, Mapping[tuple[int, int], Part]], asked: tuple[int, bytes, bytes]
) -> tuple[tuple[int, int], dict[str, Part]]:
    """Return the last release that all its participants answered, to the very question that was due.

    What all had answered before that was lost on the way: nobody asks again for what was written down.
    """
    stage, published, state = asked
    due = (stage, publication_hash(published), state)
    for place in sorted({place for sent in parts.values() for place in sent}, reverse=True):
        answers = {name: sent[place] for name, sent in parts.items() if place in sent}
        ask = next(iter(answers.values())).ask
        if (ask.plan.stage, ask.published, ask.state) == due and answers.keys() == set(ask.participants):
            assert all(part.ask == ask for part in answers.values()), "sites were asked different things"
            return place, answers
    raise AssertionError(f"a mean of stage {stage} for a question that nobody was asked")


def check_mean(study: Study, answers: Mapping[str, Part], mean: ReleasedMean, release: dict) -> None:
    """A mean is to the last bit what its participants, no more and no fewer, sent."""
    plan = plan_of(study, answers)
    total = np.sum([part.words for part in answers.values()], axis=0, dtype=np.uint64)
    whole = total.view(np.int64) * (plan.step / plan.n_subjects)
    assert np.array_equal(mean.value, whole), "a mean is not the sum of what its sites sent"
    assert release["label"] == plan.query.label
    assert release["mu"] == plan.mu
    assert mean.noise == release["noise"] == plan.output_std


def plan_of(study: Study, answers: Mapping[str, Part]) -> ReleasePlan:
    ask = next(iter(answers.values())).ask
    query = study.contract.stages[ask.plan.stage].query
    return plan_release(study.contract, query, ask.plan.fraction, tuple(ask.participants))


def check_data(
    study: Study,
    statistics: Mapping[str, Statistics],
    answers: Mapping[str, Part],
    asked: tuple[int, bytes, bytes],
) -> None:
    """Every site sent the sum over its people, for the question that was due, with noise as agreed."""
    plan, square = plan_of(study, answers), 0.0
    for name, part in answers.items():
        vectors = partial(statistics[name], *asked)
        total, n_zero = sum_subjects(vectors, plan, name, study.contract.enrolled[name])
        assert n_zero == 0
        sent = part.words.view(np.int64) - part.noise
        assert np.linalg.norm(sent - total) <= ROUNDING * np.linalg.norm(total), f"not the data of {name}"
        square += float(np.sum((part.noise / plan.noise[name]) ** 2))
    n_drawn = len(answers) * plan.query.size
    assert min(chi2.sf(square, n_drawn), chi2.cdf(square, n_drawn)) > FALSE_ALARM, "noise of another size"


def check_files(study: Study, folder: RunFolder, found: Networks) -> None:
    """Every file is what follows from the means, and the bundle holds the same files."""
    mixing = found.mixing
    matrices = {"mixing.npy": mixing, "maps.npy": mixing.T, "unmixing.npy": pseudo_inverse(mixing)}
    for name, matrix in matrices.items():
        same(folder.read_array(name), matrix, 1e-9, name)
    same(np.loadtxt(folder.path / "maps.csv", delimiter=",", skiprows=1, ndmin=2), mixing, 1e-7, "maps.csv")
    told = json.loads((folder.path / "reliability.json").read_text())["stability"]
    same(np.array(told), np.round(found.stability, 4), 1e-4, "reliability.json")
    origin = json.loads((folder.path / "provenance.json").read_text())
    assert (origin["n_iter"], origin["contract"]) == (found.n_iter, study.contract.hash.hex())
    for name, digest in origin["files"].items():
        assert folder.hash_of(name) == digest, f"{name} is not what the means give: it was changed"
    with zipfile.ZipFile(folder.path / BUNDLE) as bundle:
        for name in [*origin["files"], "privacy.json", "provenance.json"]:
            assert bundle.read(name) == (folder.path / name).read_bytes(), f"another {name} in the bundle"


def same(found: np.ndarray, right: np.ndarray, tolerance: float, name: str) -> None:
    assert found.shape == right.shape, name
    assert np.allclose(found, right, rtol=0, atol=tolerance), f"{name} is not what the means give"
