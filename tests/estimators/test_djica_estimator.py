"""``CapeDJICA`` as a researcher uses it."""

import itertools
import math

import numpy as np
import pytest

from capedjica import CapeDJICA, PaperOptions
from capedjica.data import make_synthetic
from capedjica.errors import InputError
from capedjica.metrics import matched_map_correlation, normalized_gain_index
from capedjica.privacy import pure_mu

R = 5
STUDY = make_synthetic(4, 80, R, 150, 14, random_state=1)


def fit(**options):
    options = {"n_components": R, "image_shape": STUDY.image_shape, **options}
    return CapeDJICA(**options).fit(STUDY.sites)


def gain_index(estimator):
    return normalized_gain_index(estimator.unmixing_ @ STUDY.mixing)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("subject", {}),
        ("paper", {"paper_options": PaperOptions(learning_rate=0.5), "max_iter": 150}),
        ("djica", {"random_state": 0}),
    ],
)
def test_without_noise_every_method_finds_the_maps(method, options):
    estimator = fit(method=method, mechanism="none", **options)
    assert gain_index(estimator) < 0.06
    assert matched_map_correlation(estimator.components_, STUDY.mixing.T) > 0.95
    assert str(estimator.privacy_).startswith("NOT PRIVATE")


@pytest.mark.parametrize("mechanism", ["cape", "conventional", "pooled"])
def test_a_generous_budget_is_enough(mechanism):
    estimator = fit(epsilon=60.0, mechanism=mechanism, insecure_noise_seed=1)
    assert gain_index(estimator) < 0.15
    assert estimator.privacy_.epsilon == math.inf
    assert estimator.privacy_.nominal_epsilon == 60
    assert estimator.privacy_.nominal_spent_epsilon <= 60


def test_every_stage_is_in_the_one_epsilon():
    privacy = fit(epsilon=2.0, max_iter=6).privacy_
    labels = [release.label for release in privacy.releases]
    assert labels == ["subspace", "log-covariance", "log-covariance, whitened"] + ["rotation"] * 6
    assert privacy.epsilon == 2.0
    assert privacy.spent_epsilon == pytest.approx(2.0, rel=1e-4)
    assert privacy.spent_epsilon <= 2.0


def test_the_paper_method_says_what_the_descent_cost():
    estimator = fit(method="paper", epsilon=5.0, max_iter=7, paper_options=PaperOptions(tol=1e-300))
    privacy = estimator.privacy_
    assert estimator.n_iter_ == 7
    assert [release.label for release in privacy.releases] == ["second moments (PCA)"] + [
        "gradients of W and b"
    ] * 7
    descent = privacy.epsilon_of("gradients of W and b")
    assert 0 < descent < privacy.spent_epsilon <= 5.0


@pytest.mark.parametrize("epsilon", [0.5, 10.0, 500.0])
def test_all_that_dp_djica_releases_is_spent(epsilon):
    """The PCA and every step of the descent, within the cap, and reached by it at the last allowed step."""
    spent = []

    def look(estimator, iteration):
        privacy = estimator.privacy_
        assert len(privacy.releases) == 1 + iteration
        spent.append((privacy.spent_epsilon, privacy.spent_mu))

    privacy = fit(method="dp-djica", epsilon=epsilon, max_iter=5, callback=look).privacy_
    steps = privacy.releases[1:]
    assert sum(one.pure_epsilon for one in steps) == pytest.approx(0.7 * epsilon)
    assert all(one.mu == pytest.approx(pure_mu(0.7 * epsilon / 5)) for one in steps)
    assert all(one.noise > 0 for one in privacy.releases)
    assert (privacy.spent_epsilon, privacy.spent_mu) == spent[-1]
    assert spent == sorted(set(spent)), "every step adds to it"
    assert privacy.spent_epsilon <= epsilon * (1 + 1e-9)
    assert privacy.spent_mu == pytest.approx(privacy.mu)
    assert "floating point" in str(privacy)
    seeded = fit(method="dp-djica", epsilon=epsilon, max_iter=2, insecure_noise_seed=1).privacy_
    assert all(one.pure_epsilon == math.inf for one in seeded.releases[1:])
    assert (seeded.epsilon, seeded.spent_epsilon, seeded.subject_epsilon) == (math.inf,) * 3


def test_dp_djica_pays_in_pure_epsilon():
    estimator = fit(method="dp-djica", epsilon=10.0, max_iter=5)
    assert estimator.privacy_.epsilon == 10.0
    assert estimator.components_.shape == (R, 14 * 14)


def test_order_sign_and_scale_are_stable():
    first, again = (fit(epsilon=200.0, insecure_noise_seed=seed) for seed in (3, 4))
    for estimator in (first, again):
        peaks = np.argmax(np.abs(estimator.components_), axis=1)
        assert (np.diff(peaks) >= 0).all()
        assert estimator.components_[np.arange(R), peaks] == pytest.approx(np.ones(R))
        assert estimator.unmixing_ @ estimator.mixing_ == pytest.approx(np.eye(R), abs=1e-9)
    correlations = [
        np.corrcoef(a, b)[0, 1] for a, b in zip(first.components_, again.components_, strict=True)
    ]
    assert min(correlations) > 0.9


def test_transform_gives_time_courses():
    estimator = fit(mechanism="none")
    subject = STUDY.sites[0][0]
    assert estimator.transform(subject).shape == (150, R)
    assert [t.shape for t in estimator.transform([subject, subject[:100]])] == [(150, R), (100, R)]
    with pytest.raises(InputError, match=r"a subject must have shape \(time, 196\), got \(3, 5\)"):
        estimator.transform(np.ones((3, 5)))


def test_scans_of_different_length_and_sites_of_different_size():
    rng = np.random.default_rng(0)
    sites = {
        f"h{k}": [subject[: rng.integers(60, 151)] for subject in site[: 20 - 4 * k]]
        for k, site in enumerate(STUDY.sites)
    }
    estimator = CapeDJICA(R, 80.0, image_shape=STUDY.image_shape, insecure_noise_seed=3).fit(sites)
    assert gain_index(estimator) < 0.3


def test_one_broken_subject_moves_the_result_by_no_more_than_the_clip_allows():
    """A subject of spikes, one of zeros, one of NaN among eighty: the maps stay."""
    sites = [list(site) for site in STUDY.sites]
    spikes = np.zeros((150, 196), np.float32)
    spikes[3, 5] = 1e9
    sites[0][0], sites[1][0], sites[2][0] = spikes, np.zeros((150, 196)), np.full((150, 196), np.nan)
    estimator = CapeDJICA(R, mechanism="none", image_shape=STUDY.image_shape, on_bad="zero").fit(sites)
    assert gain_index(estimator) < 0.08


def test_callback_sees_every_iteration():
    seen = []
    fit(epsilon=5.0, max_iter=4, callback=lambda e, i: seen.append((i, e.privacy_.spent_epsilon)))
    assert [i for i, _ in seen] == [1, 2, 3, 4]
    assert all(a < b for (_, a), (_, b) in itertools.pairwise(seen))


def bad(position, value):
    sites = [list(site) for site in STUDY.sites]
    sites[position[0]][position[1]] = value
    return sites


@pytest.mark.parametrize(
    ("X", "options", "message"),
    [
        (STUDY.sites, {}, "epsilon must be given for mechanism 'cape'"),
        (STUDY.sites, {"epsilon": -1.0}, "epsilon must be a finite number above 0, got -1.0"),
        (
            STUDY.sites,
            {"epsilon": 1.0, "method": "magic"},
            "method must be one of subject, paper, template",
        ),
        (
            STUDY.sites,
            {"epsilon": 1.0, "n_components": 1},
            "n_components must be a whole number of at least 2, got 1",
        ),
        (
            STUDY.sites,
            {"epsilon": 1.0, "image_shape": (3, 3)},
            "image_shape .* must match the 196 features of X",
        ),
        (
            STUDY.sites,
            {"epsilon": 1.0, "basis": "wavelet"},
            "basis must be 'auto', None or an array, got 'wavelet'",
        ),
        (STUDY.sites, {"epsilon": 1.0, "basis": np.ones((2, 196))}, "K at least 5, got"),
        (STUDY.sites, {"epsilon": 1.0, "n_components": 100}, "must be at most 30, the size of the basis"),
        (
            STUDY.sites,
            {"method": "djica"},
            "method 'djica' is not private; pass mechanism='none', got 'cape'",
        ),
        (
            STUDY.sites,
            {"epsilon": 1.0, "max_iter": 0},
            "max_iter must be a whole number of at least 1, got 0",
        ),
        (
            bad((1, 2), np.ones((150, 9))),
            {"epsilon": 1.0},
            "site site-2, subject 2 has 9 features, .* has 196",
        ),
        (
            bad((3, 1), np.ones((4, 196))),
            {"epsilon": 1.0},
            "site site-4, subject 1 has 4 time points, fewer than",
        ),
        (
            bad((0, 1), np.full((150, 196), np.nan)),
            {"epsilon": 1.0},
            "site site-1, subject 1, feature 0 contains NaN",
        ),
        (bad((0, 1), np.ones((150, 196))), {"epsilon": 1.0}, "site site-1, subject 1, feature 0 is constant"),
        (
            bad((0, 1), np.ones(5)),
            {"epsilon": 1.0},
            r"subject 1 must be \(time, features\), got shape \(5,\)",
        ),
        (bad((0, 1), object()), {"epsilon": 1.0}, "site site-1, subject 1 is not an array of numbers"),
        (
            bad((0, 1), "scan.nii"),
            {"epsilon": 1.0},
            "none of mask_img, atlas and masker is given; a mask computed",
        ),
        ([STUDY.sites[0], []], {"epsilon": 1.0}, "site site-2 has no subjects"),
        ([STUDY.sites[0][:1]], {"epsilon": 1.0}, "a private result needs at least two"),
        ([STUDY.sites[0]], {"epsilon": 1.0}, "needs at least two sites, got 1"),
    ],
)
def test_bad_input_is_named_before_any_budget_is_spent(X, options, message):
    options = {"n_components": R, "image_shape": STUDY.image_shape, **options}
    with pytest.raises(InputError, match=message):
        CapeDJICA(**options).fit(X)


def test_no_privacy_means_infinite_epsilon():
    assert fit(mechanism="none", max_iter=2).privacy_.epsilon == math.inf


class Fragile:
    """A scan whose file cannot be read once the run has begun."""

    def __sub__(self, other):
        raise OSError("the disk of Mrs. Smith is broken")

    mean = min = max = __sub__


@pytest.mark.parametrize("site_class", ["subject", "paper"])
def test_a_subject_that_fails_changes_nobody_elses_part(site_class):
    """With a scan that raises, each stage gives the other subjects exactly what they gave without it."""
    from capedjica.algorithms.ica.paper_method import PaperSite
    from capedjica.algorithms.ica.subject_level import SubjectSite
    from capedjica.algorithms.state import pack

    healthy = STUDY.sites[0][:6]
    broken = [*healthy[:2], Fragile(), *healthy[3:]]
    make = SubjectSite if site_class == "subject" else PaperSite
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((196, R)))[0]
    published, state = pack(V=V, sphering=np.eye(R)), pack(W=np.eye(R))
    stages = (0, 1, 2)
    if site_class == "paper":
        published, state, stages = pack(V=V), pack(W=np.eye(R), b=np.zeros(R)), (0, 1)
    for stage in stages:
        rows = [collect(make(subjects, R)(stage, published, state)) for subjects in (healthy, broken)]
        for number in (0, 1, 3, 4, 5):
            assert rows[0][number] == pytest.approx(rows[1][number])
        assert not np.any(np.nan_to_num(rows[1][2]))


def collect(batches):
    """The rows of an iterable whose steps may fail, as a site counts them."""
    rows, steps = [], iter(batches)
    while True:
        try:
            rows += list(next(steps))
        except StopIteration:
            return rows
        except Exception:
            rows.append(np.zeros(1))
