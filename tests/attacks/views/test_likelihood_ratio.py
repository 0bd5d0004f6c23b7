"""The adversary of CAPE at work: a likelihood-ratio test on simulated transcripts.

Nothing here uses a formula for the view. The protocol of Algorithms 1 and 2 is run as printed, many
times; the adversary (aggregator with S_C sites) keeps what it sees and learns, from one half of the
transcripts, the linear statistic that best tells two neighbouring inputs apart. Its shift on the other
half, in standard deviations, is what it really achieves.

With n transcripts the relative error of the measured shift is about sqrt(1/(n mu^2)) + 1/sqrt(2n); the
bounds below are 6 of those errors wide, a false alarm below 1e-8.
"""

import math

import numpy as np
import pytest

from capedjica.privacy import Cape, paper

N_SAMPLES = 1000


def transcripts(rng, count, n_sites, n_colluding, tau):
    """What the adversary sees of ``count`` runs on data of zero: honest messages, T, T less its own masks."""
    masks = rng.normal(0, tau, (count, n_sites))
    local = rng.normal(0, tau / math.sqrt(n_sites), (count, n_sites))
    published = masks.sum(axis=1)
    messages = masks - published[:, None] / n_sites + local
    known = masks[:, n_sites - n_colluding :]
    honest_sum = published - known.sum(axis=1)
    return np.column_stack([messages[:, : n_sites - n_colluding], published, honest_sum])


def best_direction(view):
    """Fisher's direction for a shift of the first message, from the sample covariance alone."""
    shift = np.zeros(view.shape[1])
    shift[0] = 1.0
    return np.linalg.pinv(np.cov(view, rowvar=False), rcond=1e-9) @ shift


def attack(n_sites, n_colluding, tau, count, seed):
    """Scores without and with the person, scaled to unit variance; their distance is the measured shift."""
    rng = np.random.default_rng(seed)
    direction = best_direction(transcripts(rng, count // 4, n_sites, n_colluding, tau))
    scores = np.concatenate(
        [transcripts(rng, count // 8, n_sites, n_colluding, tau) @ direction for _ in range(8)]
    )
    sensitivity = n_sites / N_SAMPLES
    return scores / scores.std(), float(direction[0] * sensitivity / scores.std())


def exact_mu(n_sites, n_colluding, tau):
    cape = Cape(tau**2, tau**2 / n_sites, np.full(n_sites, 1 / n_sites), n_colluding)
    return cape.mu(n_sites / N_SAMPLES)[0]


def consistent(measured, claimed, count):
    """A valid claim is not exceeded, and a tight one is nearly reached."""
    error = 6 / math.sqrt(2 * count)
    return measured <= claimed * (1 + error) and measured >= claimed * (1 - error - 0.01)


@pytest.mark.parametrize(("n_sites", "n_colluding"), [(4, 1), (30, 9)])
def test_measured_shift_is_the_exact_mu_and_above_theorem_1(n_sites, n_colluding):
    tau, count = 0.115, 200_000
    _, shift = attack(n_sites, n_colluding, tau, count, seed=n_sites)
    mu = exact_mu(n_sites, n_colluding, tau)
    assert consistent(shift, mu, count)
    assert shift > math.sqrt(2 * paper.cape_mu_z(tau, N_SAMPLES, n_sites, n_colluding)) * 1.05
    assert not consistent(shift, 0.9 * mu, count)
    assert not consistent(shift, 1.1 * mu, count)


@pytest.mark.parametrize(
    ("count", "n_errors"), [(1_000_000, 3.0), pytest.param(4_000_000, 4.9, marks=pytest.mark.full)]
)
def test_theorem_1_is_broken_at_epsilon_below_one(count, n_errors):
    """S=30, S_C=9: P[L > eps | with] - e^eps P[L > eps | without] exceeds Theorem 1's delta by some errors.

    The sample is always the same one, so there are no false alarms.
    """
    n_sites, n_colluding, tau, epsilon = 30, 9, 0.115, 0.95
    scores, shift = attack(n_sites, n_colluding, tau, count, seed=95)
    threshold = epsilon / shift + shift / 2
    with_person = np.mean(scores + shift > threshold)
    without = np.mean(scores > threshold)
    measured = with_person - math.exp(epsilon) * without
    error = math.sqrt(with_person / count) + math.exp(epsilon) * math.sqrt(without / count)
    promised = paper.cape_delta(epsilon, tau, N_SAMPLES, n_sites, n_colluding)
    assert measured - n_errors * error > promised
