"""The likelihood-ratio attack on recorded transcripts of real runs.

The adversary is the aggregator with S_C sites. It reads every byte that the honest sites sent in a release,
the sum of masks that the secure sum revealed, and the masks and noise of its own sites. Each release has
d = 60,000 coordinates with independent noise, so one transcript shows d views of a scalar release: the
sample covariance of the view gives the best linear test there is, and its shift, for a person who moves the
sum by the sensitivity, is what the adversary really achieves. Relative error 1/sqrt(2d) = 0.3%; the bounds
are 6 of them wide, a false alarm below 1e-8.
"""

import math

import msgspec
import numpy as np
import pytest

from capedjica.mechanisms.messages import Ask
from tests.mechanisms.world import make_data, make_study, parts, reply

D = 60_000
ERROR = 6 / math.sqrt(2 * D)


def words(data):
    return np.frombuffer(data, dtype="<u8")


class Wiretap:
    """What the adversary keeps: answers by release, and, of its own sites, the masks as they are used."""

    def __init__(self, study, colluding):
        self.study, self.colluding = study, colluding
        self.answers = {}
        self.asks = {}
        self.own = {}
        for name in colluding:
            self._listen(name)

    def _listen(self, name):
        """A colluding site tells the adversary its mask and its noise, exactly."""
        site = self.study.sites[name]
        original_draw = site._draw
        tap = self.own.setdefault(name, {})

        def draw(scale, size):
            noise = original_draw(scale, size)
            tap["noise"] = noise
            return noise

        site._draw = draw

    def __call__(self, letter):
        kind = parts(letter)[0]
        if letter.direction == "question" and kind == "Ask":
            ask = msgspec.msgpack.decode(letter.data, type=Ask)
            self.asks[letter.round] = ask
            if letter.site in self.colluding:
                block = self.study.sites[letter.site]._block
                self.own[letter.site]["mask"] = block._masks[block._layout.words(ask.slot)].copy()
        if letter.direction == "answer" and kind == "Answer":
            answer = reply(letter.data)
            self.answers.setdefault(letter.round, {})[letter.site] = answer
        return [letter.data]


def run(mask="uniform", sizes=(30, 50, 40, 20, 60), n_colluding=1, count=1, carrier=None, **options):
    """Run a study on data of zero (what matters is the noise) and return it with the wiretap."""
    data = {name: np.zeros_like(rows) for name, rows in make_data(sizes, D).items()}
    study = make_study(data, count=count, masking=mask, n_colluding=n_colluding, **options)
    tap = Wiretap(study, ["s1"][:n_colluding])

    def carry(letter):
        delivered = tap(letter)
        return delivered if carrier is None else carrier(study, letter, delivered)

    study.engine.carrier = carry
    return study, tap


def measured_mu(study, tap, target, answers):
    """Shift that the adversary reaches against one site's subject in one release, from the bytes it saw."""
    ask = next(iter(a for r, a in tap.asks.items() if tap.answers.get(r) is answers))
    honest = [name for name in ask.participants if name not in tap.colluding]
    messages = {name: words(answers[name].words) for name in honest}
    revealed = study.aggregator._block.masks(ask.slot) if study.aggregator._block else None
    known = sum((tap.own[name]["mask"] for name in tap.colluding if name in ask.participants), np.uint64(0))
    sum_of_masks = revealed - known
    plan = study.sites[target]._block.plan(ask)
    person = (plan.query.spread * plan.query.clip * plan.scale[target]) / plan.step
    if study.contract.masking == "uniform":
        # a uniform mask leaves nothing but the sum: messages added up, masks taken off
        total = np.zeros(D, np.uint64)
        for message in messages.values():
            total += message
        view = (total - sum_of_masks).view(np.int64).astype(float)[:, None]
        shift = np.array([person])
    else:
        columns = [messages[name].view(np.int64).astype(float) for name in honest]
        view = np.column_stack([*columns, sum_of_masks.view(np.int64).astype(float)])
        shift = np.zeros(len(honest) + 1)
        shift[honest.index(target)] = person
    covariance = np.atleast_2d(view.T @ view / D)
    return math.sqrt(shift @ np.linalg.solve(covariance, shift))


def consistent(measured, claimed):
    return claimed * (1 - ERROR) <= measured <= claimed * (1 + ERROR)


@pytest.mark.parametrize("mask", ["uniform", "paper"])
def test_shift_is_the_mu_that_each_site_claimed(mask):
    study, tap = run(mask)
    study.mean(0)
    (answers,) = tap.answers.values()
    for target in ("s0", "s2", "s3", "s4"):
        claimed = answers[target].mu
        measured = measured_mu(study, tap, target, answers)
        assert consistent(measured, claimed), target
        assert not consistent(measured, 0.9 * claimed)
        assert not consistent(measured, 1.1 * claimed)


@pytest.mark.parametrize("mask", ["uniform", "paper"])
def test_shift_after_a_lost_site_and_a_new_block(mask):
    """s4 vanishes when it is asked: the release is aborted and made again, with the noise of four sites."""

    def lose(study, letter, delivered):
        if letter.site == "s4" and parts(letter)[0] == "Ask":
            study.sites.pop("s4", None)
        return delivered

    study, tap = run(mask, carrier=lose, count=4)
    study.mean(0)
    releases = study.aggregator.releases
    assert [release.aborted for release in releases] == [True, False]
    assert "s4" not in releases[1].participants
    answers = list(tap.answers.values())[-1]
    for target in ("s0", "s2", "s3"):
        measured = measured_mu(study, tap, target, answers)
        assert consistent(measured, answers[target].mu), target
        assert not consistent(measured, 0.9 * answers[target].mu)
    # both releases together stay within the budget
    spent = math.fsum(release.mu["s0"] ** 2 for release in releases)
    assert spent <= study.contract.total_mu["s0"] ** 2


@pytest.mark.parametrize("mask", ["uniform", "paper"])
def test_shift_where_a_site_was_lost_after_the_masks_were_drawn(mask):
    """s4 is invited and vanishes in the secure sum: masks were sized for five sites, noise is for four."""

    def lose(study, letter, delivered):
        if letter.site == "s4" and parts(letter)[0] == "Sum":
            study.sites.pop("s4", None)
        return delivered

    study, tap = run(mask, carrier=lose)
    study.mean(0)
    (answers,) = tap.answers.values()
    assert study.aggregator._block.begin.invited == ["s0", "s1", "s2", "s3", "s4"]
    assert sorted(answers) == ["s0", "s1", "s2", "s3"]
    for target in ("s0", "s2", "s3"):
        measured = measured_mu(study, tap, target, answers)
        assert consistent(measured, answers[target].mu), target
        assert not consistent(measured, 0.9 * answers[target].mu)
        assert not consistent(measured, 1.1 * answers[target].mu)


def test_a_message_alone_is_uniform():
    """Without the sum of masks, a message of one honest site tells nothing: its bytes are uniform."""
    study, tap = run()
    study.mean(0)
    (answers,) = tap.answers.values()
    counts = np.bincount(np.frombuffer(answers["s0"].words, np.uint8), minlength=256)
    expected = counts.sum() / 256
    statistic = np.sum((counts - expected) ** 2) / expected
    assert 120 < statistic < 420  # chi-square with 255 degrees of freedom, beyond 6 standard deviations
