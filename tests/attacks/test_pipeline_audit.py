"""The guarantee of the default method, put to the test from end to end (:mod:`tests.attacks.pipeline_audit`).

What the adversary reaches is never above the claim, and not far below it either, so the audit has teeth; it
refutes the claim when sites secretly draw 0.7 times the noise. Odds are exact binomial ones for canaries that
reach 0.999 of the claimed mu (asserted below). A bound above the claim is checked by an audit of fresh runs
before a test fails: each is too high with odds of at most 1e-3, both with 1e-6.
"""

import math
from functools import partial

import numba
import numpy as np
import pytest
from scipy.stats import chi2

from capedjica.mechanisms.messages import Refusal, read_reply
from tests.attacks.pipeline_audit import (
    COLLUDING,
    HONEST,
    METHOD,
    STATES,
    D,
    T,
    audit,
    honest_states,
    make_study,
    population,
    scan,
    shape,
    worst_states,
)

ODDS = 1e-3


@pytest.fixture(autouse=True)
def _few_subjects_need_no_threads(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)


def never_above(run, found):
    return found.at_least(ODDS) <= found.claim or run().at_least(ODDS) <= found.claim


def fits(noise, scale):
    """Whether the noise has this variance: chi-square, false alarm 1e-7."""
    statistic = np.sum((noise / scale) ** 2)
    return min(chi2.cdf(statistic, len(noise)), chi2.sf(statistic, len(noise))) > 5e-8


# The canaries


def canaries(index, stage):
    """The clipped vectors of scan A and scan B of each victim: (victims, 2, size)."""
    rows = [
        np.concatenate(list(METHOD.site([scan(victim, world)])(index, *STATES[stage.query.label])))[0]
        for victim in range(len(HONEST))
        for world in (0, 1)
    ]
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.all(norms >= stage.query.clip * (1 - 1e-6)), stage.query.label
    return np.reshape(rows * np.minimum(1, stage.query.clip / norms), (len(HONEST), 2, -1))


def test_canaries_are_at_the_clip_and_opposite_in_every_stage():
    reached = 0.0
    for index, stage in enumerate(METHOD.stages()):
        shifts = np.diff(canaries(index, stage), axis=1)[:, 0]
        gram = shifts @ shifts.T / (stage.query.spread * stage.query.clip) ** 2
        assert np.all(np.diag(gram) <= 1 + 1e-6)
        assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-4  # orthogonal between victims
        reached += stage.share * gram.diagonal().min()
    assert math.sqrt(reached) > 0.999


# The small case: 160 and 320 runs


def test_a_small_audit_stays_below_the_claim_and_reaches_a_third_of_it():
    """Below a third with odds 6e-8. The noise that the adversary sees has the variance that was planned."""
    run = partial(audit, 8.0, 160)
    found = run()
    assert never_above(run, found)
    assert found.at_least(ODDS) >= found.claim / 3
    assert fits(found.noise, 1)
    assert not fits(found.noise, 0.7)
    assert not fits(found.noise, 1.3)
    assert len(found.shapes) == 1


def test_a_small_audit_refutes_the_claim_when_noise_is_too_small():
    """0.7 times the noise is missed with odds 3e-7; the bound is one of 99%."""
    found = audit(8.0, 320, noise_factor=0.7)
    assert found.at_least(1e-2) > found.claim


@pytest.mark.parametrize("drive", [worst_states, honest_states])
def test_the_shape_of_a_transcript_says_nothing_about_a_scan(drive):
    """Scans that cannot be used, of every kind, make the same messages as any other."""
    scans = [
        scan(0, 0),
        scan(0, 1),
        np.full((T, D), np.nan),
        np.full((T, D), 1e300),
        np.zeros((T, D)),
        np.ones((1, D)),
        np.ones((T, D + 1)),
    ]
    shapes = set()
    for victim in scans:
        subjects = {site: population(site, 0) for site in (*HONEST, COLLUDING)}
        study = make_study(8.0, subjects | {"s0": [victim, *subjects["s0"][1:]]})
        drive(study)
        answers = [x.data for x in study.engine.transcript if x.direction == "answer"]
        assert not any(isinstance(read_reply(data, study.contract), Refusal) for data in answers)
        shapes.add(shape(study))
    assert len(shapes) == 1


# The full case: 2,000 runs with each scan of every victim


@pytest.mark.full
@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_the_audit_stays_below_the_claim_and_reaches_a_third_of_it(epsilon):
    """Below a third with odds under 1e-20."""
    run = partial(audit, epsilon, 4000)
    found = run()
    assert never_above(run, found)
    assert found.at_least(ODDS) >= found.claim / 3
    assert len(found.shapes) == 1


@pytest.mark.full
@pytest.mark.parametrize(("epsilon", "n_runs"), [(2.0, 4000), (8.0, 504)])
def test_the_audit_refutes_the_claim_when_noise_is_too_small(epsilon, n_runs):
    """0.7 times the noise is missed with odds 5e-10."""
    found = audit(epsilon, n_runs, noise_factor=0.7)
    assert found.at_least(ODDS) > found.claim


@pytest.mark.full
def test_the_audit_sees_that_noise_is_too_large():
    """1.3 times the noise: the adversary demonstrably stays below the claim; missed with odds 2e-7."""
    found = audit(8.0, 1200, noise_factor=1.3)
    assert found.at_most(ODDS) < found.claim


@pytest.mark.full
def test_an_honest_aggregator_learns_no_more():
    """States as the method makes them, one victim: its canaries suit them less, those of the subspace apart.

    These alone reach 0.8 of mu, so below a third with odds 1e-7.
    """
    run = partial(audit, 8.0, 1000, drive=honest_states, victims=(0,))
    found = run()
    assert never_above(run, found)
    assert found.at_least(ODDS) >= found.claim / 3
    assert fits(found.noise, 1)
