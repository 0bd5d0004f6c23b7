"""The paper's Infomax without noise: against Algorithm 4 as printed, its safeguards, and other ICAs."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from capedjica.algorithms.ica.djica import djica
from capedjica.algorithms.ica.infomax import (
    B_G,
    B_H,
    Infomax,
    default_learning_rate,
    descend,
    gradient_query,
    subject_gradients,
)
from capedjica.algorithms.kernels import PackedSubjects
from capedjica.algorithms.state import unpack
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.errors import InputError
from capedjica.mechanisms.contract import Stage
from capedjica.metrics import normalized_gain_index
from tests.algorithms.ica.mixtures import PEERS, make_mixture, mne_infomax
from tests.algorithms.ica.reference import Rate, algorithm_4, mean_gradients

LENGTHS = [20, 35, 50]
R = 4


def make_sites(n_sites=2, lengths=LENGTHS, n_features=R, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.laplace(size=(T, n_features)) for T in lengths] for _ in range(n_sites)]


def exact_means(sites, clip_g=B_G, clip_h=B_H):
    """The mean over all subjects, from the kernel, with nothing between."""
    packed = PackedSubjects.from_list([subject for site in sites for subject in site])

    def mean(state):
        public = unpack(state)
        return subject_gradients(packed, public["W"], public["b"], clip_g, clip_h).mean(axis=0)

    return mean


def engine_means(sites, clip_g, clip_h, count):
    """The same over the protocol's real bytes, by the mechanism that adds no noise."""

    def statistics(site):
        packed = PackedSubjects.from_list(site)

        def rows(stage, published, state):
            public = unpack(state)
            return [subject_gradients(packed, public["W"], public["b"], clip_g, clip_h)]

        return rows

    names = [f"site-{s}" for s in range(len(sites))]
    study = EmbeddedStudy(
        "Infomax",
        {name: len(site) for name, site in zip(names, sites, strict=True)},
        {name: statistics(site) for name, site in zip(names, sites, strict=True)},
        [Stage(gradient_query(sites[0][0].shape[1]), count)],
        in_process(mechanism="none"),
    )
    return lambda state: study.mean(0, state)


def assert_same_path(infomax, mean, expected, tolerance=1e-6):
    """Compare W, b, rate and change after every iteration."""
    for step in expected:
        infomax.update(mean(infomax.state))
        assert np.linalg.norm(infomax.W - step.W) <= tolerance * np.linalg.norm(step.W)
        assert np.linalg.norm(infomax.b - step.b) <= tolerance * max(1.0, np.linalg.norm(step.b))
        assert_allclose(infomax.learning_rate, step.rate, rtol=1e-12)
        assert_allclose(infomax.change, step.change, rtol=max(1e-4, 10 * tolerance))


# Against Algorithm 4 as printed ------------------------------------------------------------

CLIPS = {"no clip active": (B_G, B_H), "some clips active": (3.0, 1.0), "all clips active": (0.8, 0.1)}


@pytest.mark.parametrize(
    "lengths", [[40, 40], LENGTHS, [1, 30, 90]], ids=["equal", "unequal", "with one point"]
)
@pytest.mark.parametrize("clips", CLIPS.values(), ids=CLIPS)
def test_every_iteration_is_that_of_algorithm_4(clips, lengths):
    sites = make_sites(lengths=lengths)
    expected = list(algorithm_4(sites, 0.1, 25, *clips))
    assert len(expected) == 25
    assert_same_path(Infomax(R, 0.1, *clips), exact_means(sites, *clips), expected)


def test_the_engine_without_noise_walks_the_same_path():
    sites, clips = make_sites(n_sites=3), (3.0, 1.0)
    expected = list(algorithm_4(sites, 0.1, 22, *clips))
    assert_same_path(Infomax(R, 0.1, *clips), engine_means(sites, *clips, 22), expected)


def test_the_clips_of_those_cases_are_as_active_as_their_names_say():
    sites = make_sites()
    samples = np.concatenate([subject for site in sites for subject in site])
    norms = []
    for step in algorithm_4(sites, 0.1, 25, *CLIPS["some clips active"]):
        z = samples @ step.W.T + step.b
        y = -np.tanh(z / 2)
        gradients = (np.eye(R) + y[:, :, np.newaxis] * z[:, np.newaxis]) @ step.W
        norms.append([np.linalg.norm(gradients, axis=(1, 2)), np.linalg.norm(y, axis=1)])
    (none_g, none_h), (some_g, some_h), (all_g, all_h) = CLIPS.values()
    g, h = np.moveaxis(np.array(norms), 1, 0)
    shares = [(g > none_g).mean(), (h > none_h).mean()]
    assert shares == [0, 0]
    shares = [(g > some_g).mean(), (h > some_h).mean()]
    assert 0.05 < min(shares) <= max(shares) < 0.95
    assert min((g > all_g).mean(), (h > all_h).mean()) > 0.95


@pytest.mark.parametrize(
    "wrong", [{"clip_g": 3.01, "clip_h": 1.0}, {"clip_g": 3.0, "clip_h": 1.01}], ids=["B_G", "B_h"]
)
def test_another_clip_is_noticed(wrong):
    sites = make_sites()
    with pytest.raises(AssertionError):
        assert_same_path(
            Infomax(R, 0.1, **wrong), exact_means(sites, **wrong), algorithm_4(sites, 0.1, 25, 3.0, 1.0)
        )


def test_subjects_count_alike_whatever_their_length():
    short, long = make_sites(1, [10, 90])[0]
    mean = exact_means([[short, long]])(Infomax(R, 0.1).state)
    alone = [exact_means([[subject]])(Infomax(R, 0.1).state) for subject in (short, long)]
    assert_allclose(mean, (alone[0] + alone[1]) / 2, rtol=1e-12)


def test_the_query_bounds_every_row():
    rows = subject_gradients(PackedSubjects.from_list(make_sites(1)[0]), 9 * np.eye(R), np.zeros(R), 0.8, 0.1)
    query = gradient_query(R)
    assert rows.shape == (len(LENGTHS), query.size)
    norms = np.linalg.norm(rows, axis=1)
    assert (norms <= query.clip * (1 + 1e-12)).all()


# The safeguards ------------------------------------------------------------


def step_at(degrees, length=1.0):
    """A step that points this many degrees away from the first coordinate."""
    step = np.zeros((R, R))
    step[0, :2] = length * math.cos(math.radians(degrees)), length * math.sin(math.radians(degrees))
    return step


@pytest.mark.parametrize(("degrees", "factor"), [(0, 1), (59.9, 1), (60.1, 0.9), (120, 0.9), (180, 0.9)])
def test_a_turn_beyond_60_degrees_slows_down(degrees, factor):
    infomax = Infomax(R, 0.5)
    infomax.move(step_at(0), np.zeros(R))
    infomax.move(step_at(degrees), np.zeros(R))
    assert infomax.learning_rate == 0.5 * factor


def test_turns_are_counted_from_the_last_step_that_turned():
    infomax = Infomax(R, 1.0)
    rates = []
    for degrees in (0, 50, 70, 110, 140, 30):
        infomax.move(step_at(degrees), np.zeros(R))
        rates.append(infomax.learning_rate)
    assert_allclose(rates, [1, 1, 0.9, 0.9, 0.81, 0.729], rtol=1e-12)


def test_a_step_of_zero_is_no_turn():
    infomax = Infomax(R, 1.0)
    for step in (step_at(0), step_at(0, 0.0)):
        infomax.move(step, np.zeros(R))
    assert infomax.learning_rate == 1.0
    assert infomax.converged


@pytest.mark.parametrize(("square", "factor"), [(0.999e9, 1), (1.001e9, 0.8)])
def test_a_blow_up_slows_down_and_keeps_the_step(square, factor):
    infomax, step = Infomax(R, 0.5), step_at(0, math.sqrt(square))
    infomax.move(step, np.ones(R))
    assert infomax.learning_rate == 0.5 * factor
    assert_array_equal(infomax.W, np.eye(R) + step)
    assert_array_equal(infomax.b, np.ones(R))


@pytest.mark.parametrize("entry", [1.001e8, -1.001e8, math.inf, math.nan])
def test_weights_out_of_bounds_start_again(entry):
    infomax = Infomax(R, 0.5)
    infomax.move(step_at(0), np.ones(R))
    step = np.zeros((R, R))
    step[2, 1] = entry
    infomax.move(step, np.ones(R))
    assert_array_equal(infomax.W, np.eye(R))
    assert_array_equal(infomax.b, np.zeros(R))
    assert (infomax.learning_rate, infomax.n_restarts) == (0.45, 1)
    assert not infomax.converged
    infomax.move(step_at(180), np.zeros(R))
    assert infomax.learning_rate == 0.45, "the first step after a restart has nothing to turn from"


def test_weights_within_bounds_go_on():
    infomax = Infomax(R, 0.5)
    infomax.move(np.where(np.eye(R) > 0, 0.0, 0.999e8 * step_at(0)), np.zeros(R))
    infomax.move(step_at(90, 0.999e8), np.zeros(R))
    assert infomax.n_restarts == 0


@pytest.mark.parametrize(("length", "stops"), [(0.00101, False), (0.00099, True)])
def test_it_stops_when_the_squared_change_is_below_a_millionth(length, stops):
    infomax = Infomax(R, 1.0, clip_g=1.0)
    mean = np.concatenate([step_at(0, length).ravel(), np.ones(R)])
    assert descend(infomax, lambda state: mean, 5) == (1 if stops else 5)
    assert infomax.converged is stops


def float64_means(sites, clip_g, clip_h):
    def mean(state):
        public = unpack(state)
        G, h = mean_gradients(sites, public["W"], public["b"], clip_g, clip_h)
        return np.concatenate([G.ravel() / clip_g, h / clip_h])

    return mean


PATHS = {
    "turn": {"rate": 4.0, "clip_g": B_G, "clip_h": B_H},
    "blow-up": {"rate": 2e6, "clip_g": 0.1, "clip_h": 1.0},
    "restart": {"rate": 1e9, "clip_g": 1.0, "clip_h": 1.0},
}


@pytest.mark.parametrize("event", PATHS)
def test_paths_through_every_safeguard_are_those_of_the_reference(event):
    options = dict(PATHS[event])
    rate, sites = options.pop("rate"), make_sites(1, [25, 30])
    expected = list(algorithm_4(sites, rate, 40, **options))
    assert event in set(itertools.chain.from_iterable(step.events for step in expected))
    assert_same_path(Infomax(R, rate, **options), float64_means(sites, **options), expected, 1e-9)


def test_a_path_with_turns_on_the_kernel():
    sites = make_sites(1, [100, 200])
    expected = list(algorithm_4(sites, 4.0, 30))
    assert sum("turn" in step.events for step in expected) >= 2
    assert_same_path(Infomax(R, 4.0), exact_means(sites), expected, 2e-5)


def test_the_reference_angle():
    rate = Rate(1.0)
    assert rate.adjust(step_at(0)) == ()
    assert rate.adjust(step_at(61)) == ("turn",)


def test_progress_sees_every_iteration_and_the_count_is_returned():
    seen = []
    infomax = Infomax(R, 0.1)
    count = descend(infomax, exact_means(make_sites()), 7, lambda state, n: seen.append((state, n)))
    assert count == 7
    assert seen == [(infomax, n) for n in range(1, 8)]


def test_the_papers_rate():
    assert default_learning_rate(20) == pytest.approx(0.015 / math.log(20))
    with pytest.raises(InputError, match="n_components must be a whole number of at least 2, got 1"):
        default_learning_rate(1)


# Against other people's ICA ------------------------------------------------------------


def paper_without_noise(mixture, rate):
    infomax = Infomax(mixture.samples.shape[1], rate)
    return infomax, descend(infomax, exact_means(mixture.sites), 1000)


def compare(mixture):
    """Gain indices of all methods, every one within 0.005 of the best (shown by ``pytest -rP``)."""
    found = {name: method(mixture.samples) for name, method in PEERS.items()}
    found["djica"] = djica(mixture.sites, random_state=0).unmixing
    found["paper, rate 1"] = paper_without_noise(mixture, 1.0)[0].W
    indices = {name: mixture.gain_index(W) for name, W in found.items()}
    for name, index in indices.items():
        print(f"{name}: {index:.5f}")
    assert max(indices.values()) <= min(indices.values()) + 0.005, indices
    for name in ("djica", "paper, rate 1"):
        between = normalized_gain_index(found[name] @ np.linalg.inv(found["MNE Infomax"]))
        print(f"{name} against MNE Infomax: {between:.5f}")
        assert between < 0.01, (name, between)
    return indices


def test_all_methods_find_the_sources():
    indices = compare(make_mixture())
    assert max(indices.values()) < 0.03


@pytest.mark.full
def test_all_methods_find_the_sources_at_full_size():
    indices = compare(make_mixture(1024, 20))
    assert max(indices.values()) < 0.01


def test_the_comparison_notices_one_that_stopped_early():
    mixture = make_mixture()
    infomax = Infomax(8, 1.0)
    descend(infomax, exact_means(mixture.sites), 20)
    assert normalized_gain_index(infomax.W @ np.linalg.inv(mne_infomax(mixture.samples))) > 0.01


def test_at_its_own_rate_the_paper_stops_on_the_way():
    """Steps of 0.015 / ln R fall below the tolerance far from the solution: a finding, not a goal."""
    mixture = make_mixture()
    infomax, n_iter = paper_without_noise(mixture, default_learning_rate(8))
    print(f"gain index {mixture.gain_index(infomax.W):.4f} after {n_iter} iterations")
    assert n_iter < 1000
    assert infomax.converged
    assert 0.1 < mixture.gain_index(infomax.W) < mixture.gain_index(np.eye(8))
