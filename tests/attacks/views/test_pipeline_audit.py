"""The guarantee of the default method, tested from end to end (:mod:`tests.attacks.views.pipeline_audit`).

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

from capedjica.mechanisms.messages import Refusal
from tests.attacks.views.pipeline_audit import (
    COLLUDING,
    HONEST,
    METHOD,
    NEIGHBOURS,
    STATES,
    UNUSABLE,
    USABLE,
    D,
    T,
    audit,
    clipped,
    fits,
    honest_states,
    make_study,
    population,
    scan,
    shape,
    worst_states,
)
from tests.mechanisms.world import reply

ODDS = 1e-3


@pytest.fixture(autouse=True)
def _few_subjects_need_no_threads(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)


def never_above(run, found):
    return found.at_least(ODDS) <= found.claim or run().at_least(ODDS) <= found.claim


# The canaries


def canaries(index, stage, neighbour):
    """The clipped vectors of scan A and of its neighbour, of each victim: (victims, 2, size)."""
    rows = [
        np.concatenate(list(METHOD.site([one])(index, *STATES[stage.query.label])))[0]
        for victim in range(len(HONEST))
        for one in (scan(victim, 0), NEIGHBOURS[neighbour](victim))
    ]
    return np.reshape(clipped(np.array(rows), stage.query.clip), (len(HONEST), 2, -1))


def shifts(index, stage, neighbour):
    """How far each victim moves a sum, in units of what the noise is for: (victims, size)."""
    return np.diff(canaries(index, stage, neighbour), axis=1)[:, 0] / (stage.query.spread * stage.query.clip)


def reached(neighbour):
    """The least part of the claimed mu that a victim reaches."""
    return math.sqrt(
        sum(
            stage.share * np.sum(shifts(index, stage, neighbour) ** 2, axis=1).min()
            for index, stage in enumerate(METHOD.stages())
        )
    )


@pytest.mark.parametrize("neighbour", USABLE)
def test_canaries_are_at_the_clip_and_opposite_in_every_stage(neighbour):
    for index, stage in enumerate(METHOD.stages()):
        norms = np.linalg.norm(canaries(index, stage, neighbour), axis=2)
        assert np.all(norms >= stage.query.clip * (1 - 1e-6)), stage.query.label
        moves = shifts(index, stage, neighbour)
        gram = moves @ moves.T
        assert np.all(np.diag(gram) <= 1 + 1e-6)
        assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-4  # orthogonal between victims
    assert reached(neighbour) > 0.999


@pytest.mark.parametrize("neighbour", UNUSABLE)
def test_canaries_that_cannot_be_used_count_as_zero(neighbour):
    for index, stage in enumerate(METHOD.stages()):
        assert not canaries(index, stage, neighbour)[:, 1].any()
    assert 0.64 < reached(neighbour) < 0.65


# The small case: 160 and 240 runs


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
    """0.7 times the noise is missed with odds 1.4e-6; the bound is one of 95%."""
    found = audit(8.0, 240, noise_factor=0.7)
    assert found.at_least(5e-2) > found.claim


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
        subjects = {site: population(site, "A") for site in (*HONEST, COLLUDING)}
        study = make_study(8.0, subjects | {"s0": [victim, *subjects["s0"][1:]]})
        drive(study)
        answers = [x.data for x in study.engine.transcript if x.direction == "answer"]
        assert not any(isinstance(reply(data), Refusal) for data in answers)
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
@pytest.mark.parametrize("neighbour", [name for name in USABLE if name != "opposite"])
def test_scans_of_other_lengths_and_scales_move_no_more(neighbour):
    """Below a third with odds under 1e-30. 0.7 times the noise is missed with odds 5e-10."""
    run = partial(audit, 8.0, 504, neighbour=neighbour)
    found = run()
    assert never_above(run, found)
    assert found.at_least(ODDS) >= found.claim / 3
    assert fits(found.noise, 1)
    assert len(found.shapes) == 1
    short = run(noise_factor=0.7)
    assert short.at_least(ODDS) > short.claim


@pytest.mark.full
@pytest.mark.parametrize("neighbour", UNUSABLE)
def test_scans_that_cannot_be_used_move_no_more(neighbour):
    """They reach 0.64 of mu, so below a quarter with odds 6e-12.

    For the same reason 0.7 times the noise would not show; 0.4 times is missed with odds 4e-10.
    """
    run = partial(audit, 8.0, victims=(0,), neighbour=neighbour)
    found = run(2000)
    assert never_above(partial(run, 2000), found)
    assert found.at_least(ODDS) >= found.claim / 4
    assert fits(found.noise, 1)
    assert len(found.shapes) == 1
    short = run(800, noise_factor=0.4)
    assert short.at_least(ODDS) > short.claim


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
