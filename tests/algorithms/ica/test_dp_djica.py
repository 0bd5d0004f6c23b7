"""dp-djICA: the noise it adds, the privacy loss that noise allows, and what it finds."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.linalg import hadamard

from capedjica.algorithms.ica.dp_djica import NoisySite, dp_djica, laplace, sample_sensitivity
from capedjica.errors import InputError
from capedjica.metrics import normalized_gain_index
from capedjica.securesum.noise import NoiseSource
from tests.algorithms.ica.reference import algorithm_4

R = 4
FALSE_ALARM = 1e-6
WRONG_SCALES = (0.7, 1.3)


# The noise ----------------------------------------------------------------


def is_laplace(values, scale):
    """Dvoretzky, Kiefer and Wolfowitz: the right law fails with probability at most FALSE_ALARM."""
    x = np.sort(np.ravel(values)) / scale
    law = np.where(x < 0, np.exp(-np.abs(x)) / 2, 1 - np.exp(-np.abs(x)) / 2)
    ranks = np.arange(len(x) + 1) / len(x)
    distance = max(np.abs(law - ranks[1:]).max(), np.abs(law - ranks[:-1]).max())
    return distance <= math.sqrt(math.log(2 / FALSE_ALARM) / (2 * len(x)))


def test_noise_has_the_law_of_laplace_and_no_other_scale():
    values = laplace(NoiseSource(), (50_000, 4))
    assert is_laplace(values, 1.0)
    for scale in WRONG_SCALES:
        assert not is_laplace(values, scale)


def test_noise_is_finite_at_both_ends_of_the_words():
    class Ends:
        def uniform(self, count):
            return np.array([0, 1, 2**64 - 1, 2**64 - 2], dtype=np.uint64)[:count]

    values = laplace(Ends(), (1, 4))
    largest = 54 * math.log(2)
    assert_allclose(values, [[-largest, largest, 0, 0]], rtol=1e-12, atol=1e-16)


def moment(power, scale):
    """E[(z tanh(z/2))^power] for Laplace noise z of this scale."""

    def density(z):
        return (scale * z * math.tanh(scale * z / 2)) ** power * math.exp(-z)

    return quad(density, 0, 60)[0]


def diagonal_of_noise(neighbour, lengths, epsilon):
    """Mean of z tanh(z/2) over all noisy source estimates, read off W after one iteration on zero data."""
    sites = [[np.full((T, R), np.nan) for T in lengths]] * 2
    public = {"clip": 1.0} if neighbour == "sample" else {"scan_length": 100}
    result = dp_djica(sites, epsilon, 1, 1.0, neighbour, **public)
    return 2 - np.trace(result.unmixing) / R


def fits(value, scales, counts):
    """Within 5 standard errors, false alarm 6e-7, of what noise of these scales gives on average."""
    shares = np.array(counts) / sum(counts)
    mean = shares @ [moment(1, scale) for scale in scales]
    variance = shares @ [moment(2, scale) - moment(1, scale) ** 2 for scale in scales]
    return abs(value - mean) <= 5 * math.sqrt(variance / sum(counts))


@pytest.mark.parametrize(
    ("neighbour", "lengths", "epsilon", "scales"),
    [
        ("sample", [100] * 100, 1.0, [1.0] * 100),
        ("sample", [100] * 100, 0.5, [2.0] * 100),
        ("subject", [100] * 100, 100.0, [1.0] * 100),
        ("subject", [100] * 100, 50.0, [2.0] * 100),
        ("subject", [50] * 50 + [150] * 50, 50.0, [2.0] * 100),
    ],
)
def test_a_run_adds_noise_of_the_stated_scale_and_no_other(neighbour, lengths, epsilon, scales):
    value = diagonal_of_noise(neighbour, lengths, epsilon)
    counts = [2 * R * (T if neighbour == "sample" else 100) for T in lengths]
    assert fits(value, scales, counts)
    for factor in WRONG_SCALES:
        assert not fits(value, factor * np.array(scales), counts)


def test_noise_grows_with_the_spectral_norm():
    site = NoisySite([np.zeros((5, R)), np.zeros((7, R))], "site", "subject", None, 6)
    W = np.diag([3.0, 1.0, 0.5, 0.1])
    assert_allclose(site.noise_scale(W, 2.0), np.full((12, 1), 6 * 1.5))


# What one sample or subject can change ------------------------------------


def noisy_site(subjects, neighbour, clip=None):
    return NoisySite(subjects, "site", neighbour, clip, 6 if neighbour == "subject" else None)


def privacy_loss(first, second, neighbour, W, epsilon, clip=None):
    """Largest log-likelihood ratio of what the Laplace mechanism shows of two neighbouring sites."""
    sites = [noisy_site(subjects, neighbour, clip) for subjects in (first, second)]
    assert_array_equal(*(site.noise_scale(W, epsilon) for site in sites))
    shift = np.abs((sites[0].samples - sites[1].samples) @ W.T)
    return float(np.sum(shift / sites[0].noise_scale(W, epsilon)))


def random_matrix(rng):
    return rng.normal(size=(R, R)) * 10.0 ** rng.uniform(-2, 2, size=(R, 1))


def odd_values(rng, shape):
    """Samples of any size, some of them unusable."""
    values = (
        rng.normal(size=shape) * 10.0 ** rng.uniform(-170, 170) * 10.0 ** rng.uniform(-2, 2, (shape[0], 1))
    )
    if rng.random() < 0.3:
        values[rng.integers(shape[0]), rng.integers(shape[1])] = rng.choice([np.nan, np.inf, -np.inf, 1e300])
    return values


def test_no_subject_loses_more_than_epsilon():
    rng = np.random.default_rng(0)
    for _ in range(500):
        subjects = [odd_values(rng, (T, R)) for T in (3, 1, 6)]
        changed = list(subjects)
        changed[rng.integers(3)] = odd_values(rng, (rng.integers(1, 12), R))
        loss = privacy_loss(subjects, changed, "subject", random_matrix(rng), 0.7)
        assert loss <= 0.7 * (1 + 1e-9)


def test_no_sample_loses_more_than_epsilon():
    rng = np.random.default_rng(1)
    for _ in range(500):
        subjects = [odd_values(rng, (T, R)) for T in (3, 1, 6)]
        changed = [subject.copy() for subject in subjects]
        n = rng.integers(6)
        changed[2][n] = odd_values(rng, (1, R))[0]
        clip = 10.0 ** rng.uniform(-3, 3)
        here, there = (noisy_site(x, "sample", clip).samples for x in (subjects, changed))
        assert_array_equal(np.delete(here, 4 + n, axis=0), np.delete(there, 4 + n, axis=0))
        loss = privacy_loss(subjects, changed, "sample", random_matrix(rng), 0.7, clip)
        assert loss <= 0.7 * (1 + 1e-9)


@pytest.mark.parametrize("clip", [None, 1e-170])
def test_samples_whose_squares_vanish_are_bounded_too(clip):
    """The square of 2.2e-162 is the smallest number there is, that of 1.5e-162 rounds to zero."""
    samples = NoisySite([[[2.2e-162] + [1.5e-162] * 15]], "site", "subject", clip, 1).samples
    assert np.linalg.norm(samples) <= 1 / (2 * math.sqrt(16)) * (1 + 1e-12)


def flat_worst_case():
    """W with a flat top left singular vector, and the direction it stretches most."""
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(R, R)))[0]
    W = hadamard(R) / math.sqrt(R) @ np.diag([5.0, 1.0, 1.0, 1.0]) @ rotation
    return W, rotation[0]


def test_the_sensitivity_is_attained():
    """Not above what is needed, so noise of 0.7 times the scale would break the guarantee."""
    W, direction = flat_worst_case()
    here, there = np.tile(direction, (6, 1)), np.tile(-direction, (6, 1))
    other = np.ones((3, R))
    assert privacy_loss([here, other], [there, other], "subject", W, 0.7) == pytest.approx(0.7)
    one = here.copy()
    one[4] = -direction
    assert privacy_loss([here], [one], "sample", W, 0.7, clip=1.0) == pytest.approx(0.7)


def test_a_subject_protected_as_a_sample_loses_as_many_epsilons_as_it_has_samples():
    W, direction = flat_worst_case()
    here, there = np.tile(direction, (6, 1)), np.tile(-direction, (6, 1))
    assert privacy_loss([here], [there], "sample", W, 0.7, clip=1.0) == pytest.approx(6 * 0.7)


def test_a_subjects_own_longest_sample_would_not_protect_samples():
    """Why a public clip is required: one sample that grows moves all the others."""
    subject = np.random.default_rng(3).normal(size=(50, R))
    changed = subject.copy()
    changed[0] *= 100
    scales = NoisySite([subject], "site", "sample", 1.0, None).noise_scale(np.eye(R), 0.7)
    own = [NoisySite([x], "site", "subject", None, 50).samples for x in (subject, changed)]
    assert np.sum(np.abs(own[0] - own[1]) / scales) > 3 * 0.7


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_stated_sensitivity(size):
    W = np.random.default_rng(4).normal(size=(size, 2 * size))
    expected = math.sqrt(size) * np.linalg.svd(W)[1][0] / math.sqrt(2 * size)
    assert_allclose(sample_sensitivity(W), expected)


# The algorithm ------------------------------------------------------------


def make_sites(n_subjects=10, n_timepoints=400, seed=5):
    rng = np.random.default_rng(seed)
    mixing = np.linalg.qr(rng.normal(size=(R, R)))[0]
    return [
        [rng.laplace(size=(n_timepoints, R)) @ mixing.T for _ in range(n_subjects)] for _ in range(2)
    ], mixing


def test_without_noise_to_speak_of_it_is_algorithm_4_on_bounded_samples():
    sites = [site[:1] for site in make_sites(1, 60)[0]]
    bounded = [[NoisySite(site, "site", "subject", None, 60).samples] for site in sites]
    expected = list(algorithm_4(bounded, 0.5, 10, clip_g=1e9, clip_h=1e9))
    result = dp_djica(sites, 1e12, 10, 0.5, scan_length=60)
    assert_allclose(result.unmixing, expected[-1].W, rtol=1e-7, atol=1e-7)


def test_it_finds_the_sources_when_epsilon_is_absurd_and_nothing_when_it_is_not():
    sites, mixing = make_sites()
    for epsilon, bounds in ((1e7, (0.0, 0.05)), (1.0, (0.15, 1.0))):
        result = dp_djica(sites, epsilon, 150, 1.0, scan_length=400)
        index = normalized_gain_index(result.unmixing @ mixing)
        print(f"gain index at epsilon {epsilon:g} per iteration: {index:.4f}")
        assert bounds[0] <= index <= bounds[1]


def test_the_guarantee_is_that_of_all_iterations_allowed():
    sites, _ = make_sites(2, 50)
    result = dp_djica(sites, 0.5, 40, 1e-9, scan_length=50)
    assert result.n_iter < 40, "such a rate stops at once"
    assert (result.epsilon, result.epsilon_total, result.neighbour) == (0.5, 20.0, "subject")


def test_a_seeded_run_repeats_and_is_marked():
    sites, _ = make_sites(2, 50)
    runs = [
        dp_djica(sites, 0.5, 3, noise=NoiseSource(insecure_noise_seed=1), scan_length=50) for _ in range(2)
    ]
    assert_array_equal(runs[0].unmixing, runs[1].unmixing)
    assert not runs[0].secure
    assert runs[0].epsilon_total == math.inf
    fresh = dp_djica(sites, 0.5, 3, scan_length=50)
    assert fresh.secure
    assert (fresh.unmixing != runs[0].unmixing).any()


def test_progress_sees_every_iteration():
    sites, _ = make_sites(2, 50)
    seen = []
    dp_djica(sites, 0.5, 3, 1.0, scan_length=50, progress=lambda infomax, n, noise: seen.append((n, noise)))
    assert [n for n, _ in seen] == [1, 2, 3]
    assert seen[0][1] == pytest.approx(math.sqrt(2) * 50 / 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0}, "epsilon must be a finite number above 0, got 0"),
        ({"epsilon": math.inf}, "epsilon must be a finite number above 0, got inf"),
        ({"n_iterations": 0}, "n_iterations must be a whole number of at least 1, got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"neighbour": "person"}, "neighbour must be 'subject' or 'sample', got 'person'"),
        ({"neighbour": "sample"}, "neighbour 'sample' requires a public clip"),
        ({"clip": 0.0}, "clip must be"),
        ({"sites": []}, r"samples of one dimension R, got \[\]"),
        ({"sites": [[]]}, "site 0 must contain subjects"),
        (
            {"sites": [[np.zeros((0, R))]], "neighbour": "sample", "clip": 1.0, "scan_length": None},
            "sites must contain samples",
        ),
        ({"scan_length": None}, "neighbour 'subject' requires a public scan_length"),
        ({"scan_length": 0}, "scan_length must be a whole number of at least 1, got 0"),
        ({"sites": [[np.zeros((5, 3)), np.zeros((5, 4))]]}, r"site 0 .* got R of \[3, 4\]"),
        ({"sites": [[np.zeros((5, 3))], [np.zeros((5, 4))]]}, r"samples of one dimension R, got \[3, 4\]"),
        ({"sites": [[np.zeros(5)]]}, r"site 0, subject 0 must be an array \(time, R\), got shape \(5,\)"),
        ({"sites": [[[["a"]]]]}, "site 0, subject 0 must be an array of numbers"),
    ],
)
def test_what_cannot_be_used_is_refused(options, message):
    arguments = {"sites": make_sites(1, 20)[0], "epsilon": 1.0, "n_iterations": 2, "scan_length": 20}
    arguments |= options
    with pytest.raises(InputError, match=message):
        dp_djica(**arguments)
