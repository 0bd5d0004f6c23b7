"""Logistic regression, k-means and histograms as a researcher uses them."""

import math
import runpy

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import chi2, kstest
from scipy.stats import norm as normal

from capedjica.algorithms.tables.kmeans import Lloyd
from capedjica.algorithms.tables.regression import largest_gradient
from capedjica.applications import PrivateHistogram, PrivateKMeans, PrivateLogisticRegression
from capedjica.errors import InputError
from capedjica.mechanisms.contract import MECHANISMS
from capedjica.privacy import gaussian_mu
from tests.support.places import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("private_*.py"))
SIZES = (700, 1300, 900, 1100)
EFFECTS = np.array([1.5, -1.0, 0.5, 0.0])
BOUND = 3.0
GROUPS = np.array([[1.2, 0.4], [-0.9, 0.9], [-0.2, -1.2]])


def patients(sizes=SIZES, seed=0, steepness=1.0):
    """Sites whose labels follow a logistic model; steep ones are all but separable."""
    rng = np.random.default_rng(seed)
    X = {f"s{number}": rng.standard_normal((size, len(EFFECTS))) for number, size in enumerate(sizes)}
    y = {name: rng.random(len(x)) < expit(steepness * (x @ EFFECTS - 0.5)) for name, x in X.items()}
    return X, y


def groups(sizes=SIZES, seed=0, width=0.3):
    """Sites whose people come from three groups."""
    rng = np.random.default_rng(seed)
    return {
        f"s{number}": GROUPS[rng.integers(3, size=size)] + width * rng.standard_normal((size, 2))
        for number, size in enumerate(sizes)
    }


def pooled(sites):
    return np.concatenate(list(sites.values()))


def shortened(rows, bound):
    return rows * np.minimum(1, bound / np.linalg.norm(rows, axis=1, keepdims=True))


def fit(application, **options):
    """Any of the three, on data of its own, with few iterations."""
    if application == "regression":
        return PrivateLogisticRegression(BOUND, max_iter=3, **options).fit(*patients())
    if application == "kmeans":
        return PrivateKMeans(3, 2.0, max_iter=3, random_state=0, **options).fit(groups())
    return PrivateHistogram(np.linspace(-3, 3, 9), **options).fit({n: x[:, 0] for n, x in groups().items()})


APPLICATIONS = ("regression", "kmeans", "histogram")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("application", APPLICATIONS)
def test_every_mechanism_costs_what_was_asked(application, mechanism):
    epsilon = None if mechanism == "none" else 0.8
    privacy = fit(application, epsilon=epsilon, mechanism=mechanism).privacy_
    assert privacy.epsilon == (epsilon or math.inf)
    assert privacy.spent_epsilon <= privacy.epsilon
    assert len(privacy.releases) == (1 if application == "histogram" else 3)
    if epsilon:
        assert privacy.spent_epsilon == pytest.approx(epsilon, rel=1e-5)


@pytest.mark.parametrize("application", APPLICATIONS)
def test_masks_colluders_and_budgets_by_site(application):
    budgets = {"s0": 0.5, "s1": 2.0, "s2": 1.0, "s3": 1.0}
    privacy = fit(application, epsilon=budgets, masking="paper", n_colluding=2, delta=1e-6).privacy_
    assert privacy.site_epsilon == budgets
    assert (privacy.n_colluding, privacy.delta) == (2, 1e-6)
    assert privacy.spent_epsilon <= 2.0


@pytest.mark.parametrize("application", APPLICATIONS)
def test_seeded_noise_taints_and_noise_is_fresh(application):
    tainted = fit(application, epsilon=1.0, insecure_noise_seed=3).privacy_
    assert str(tainted).startswith("NOT PRIVATE")
    name = {"regression": "coef_", "kmeans": "cluster_centers_", "histogram": "counts_"}[application]
    one, other = (getattr(fit(application, epsilon=1.0), name) for _ in range(2))
    assert (one != other).all()


def descend(X, y, clip, n_steps, rate, l2=0.0):
    """A plain transcription; rows of X with NaN contribute nothing but count."""
    broken = ~np.isfinite(X).all(axis=1)
    extended = np.column_stack([shortened(np.where(broken[:, None], 1.0, X), BOUND), np.ones(len(X))])
    w = np.zeros(X.shape[1] + 1)
    for _ in range(n_steps):
        g = (expit(extended @ w) - y)[:, None] * extended
        g *= np.minimum(1, clip / np.linalg.norm(g, axis=1, keepdims=True))
        g[broken] = 0
        w = w - rate * (g.mean(axis=0) + l2 * np.append(w[:-1], 0))
    return w


@pytest.mark.parametrize("clip", [None, 0.4])
def test_regression_without_noise_is_plain_gradient_descent(clip):
    X, y = patients()
    X["s2"][5, 1] = np.nan
    X["s0"][0] = [1e6, 0, 0, 0]
    model = PrivateLogisticRegression(BOUND, clip, max_iter=25, l2=0.05, mechanism="none").fit(X, y)
    expected = descend(pooled(X), pooled(y), clip or math.sqrt(10) / 3, 25, 0.4, 0.05)
    assert np.append(model.coef_, model.intercept_) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("steepness", [1.0, 20.0], ids=["overlapping", "all but separable"])
def test_regression_converges_to_that_of_scikit_learn(steepness):
    sklearn = pytest.importorskip("sklearn.linear_model")
    X, y = patients((300, 200, 400), steepness=steepness)
    bound, l2 = float(np.linalg.norm(pooled(X), axis=1).max()), 0.05
    model = PrivateLogisticRegression(
        bound, largest_gradient(bound), max_iter=250, learning_rate=1.0, l2=l2, mechanism="none"
    ).fit(X, y)
    reference = sklearn.LogisticRegression(C=1 / (l2 * len(pooled(X))), tol=1e-10).fit(pooled(X), pooled(y))
    assert model.coef_ == pytest.approx(reference.coef_[0], abs=1e-4)
    assert model.intercept_ == pytest.approx(reference.intercept_[0], abs=1e-4)
    new = np.random.default_rng(9).standard_normal((50, 4)) / 2
    assert model.predict_proba(new) == pytest.approx(reference.predict_proba(new), abs=1e-4)
    assert (model.predict(new) == reference.predict(new)).mean() >= 0.98


@pytest.mark.parametrize("steepness", [1.0, 20.0], ids=["overlapping", "all but separable"])
def test_regression_at_epsilon_one_predicts_almost_as_well_as_scikit_learn(steepness):
    sklearn = pytest.importorskip("sklearn.linear_model")
    X, y = patients(steepness=steepness)
    new_X, new_y = patients((20_000,), seed=1, steepness=steepness)
    reference = sklearn.LogisticRegression().fit(pooled(X), pooled(y)).score(new_X["s0"], new_y["s0"])
    for seed in range(5):
        model = PrivateLogisticRegression(BOUND, epsilon=1.0, insecure_noise_seed=seed).fit(X, y)
        accuracy = np.mean(model.predict(new_X["s0"]) == new_y["s0"])
        assert accuracy > reference - 0.02


def test_regression_with_real_noise_stays_near_the_path_without():
    r"""False-alarm odds below 1e-6.

    Without clipping, a step at rate rho <= 1/L is non-expansive, so the final w is a Lipschitz function of
    all noise with constant rho sqrt(J), and E\|w - w_0\|^2 <= J rho^2 sigma^2 d. By Gaussian concentration
    \|w - w_0\| exceeds rho sigma sqrt(J) (sqrt(d) + t) with probability at most exp(-t^2 / 2); t = 5.3.
    """
    X, y = patients()
    options = {"clip": largest_gradient(BOUND), "max_iter": 20}
    plain = PrivateLogisticRegression(BOUND, **options, mechanism="none").fit(X, y)
    noisy = PrivateLogisticRegression(BOUND, **options, epsilon=1.0).fit(X, y)
    sigma, rate = noisy.privacy_.releases[0].noise, 4 / (BOUND**2 + 1)
    shift = np.append(noisy.coef_ - plain.coef_, noisy.intercept_ - plain.intercept_)
    limit = rate * sigma * math.sqrt(20) * (math.sqrt(5) + 5.3)
    assert 0 < np.linalg.norm(shift) <= limit
    # The bound says something: weights that point elsewhere would not pass.
    assert limit < np.linalg.norm(plain.coef_)


def lloyd(X, centers, n_steps, radius):
    """A plain transcription for data on which no center starves; the second half averages its means."""
    X = shortened(X, radius)
    counts, sums = 0, 0
    for step in range(n_steps):
        nearest = np.argmin([np.sum((X - c) ** 2, axis=1) for c in centers], axis=0)
        member = np.eye(len(centers))[nearest]
        if step <= n_steps // 2:
            counts, sums = 0, 0
        counts, sums = counts + member.sum(axis=0), sums + member.T @ X
        assert (counts > 0.1 * len(X) / len(centers)).all()
        centers = sums / counts[:, None]
    return centers


def test_kmeans_without_noise_is_lloyds_algorithm():
    data = groups()
    data["s1"][3] = [1e9, 0.0]
    model = PrivateKMeans(3, 1.4, max_iter=8, random_state=1, mechanism="none").fit(data)
    start = Lloyd(3, 2, 1.4, 8, np.random.default_rng(1)).centers
    assert model.cluster_centers_ == pytest.approx(lloyd(pooled(data), start, 8, 1.4), abs=1e-6)
    assert model.shares_.sum() == pytest.approx(1)


def inertia(X, centers):
    return np.mean(np.min([np.sum((X - c) ** 2, axis=1) for c in centers], axis=0))


@pytest.mark.parametrize(("epsilon", "margin"), [(None, 1.005), (1.0, 1.1)])
def test_kmeans_finds_what_scikit_learn_finds(epsilon, margin):
    cluster = pytest.importorskip("sklearn.cluster")
    data = groups()
    best = cluster.KMeans(3, n_init=5, random_state=0).fit(pooled(data)).inertia_ / len(pooled(data))
    for seed in range(5):
        options = {"epsilon": epsilon, "insecure_noise_seed": seed} if epsilon else {"mechanism": "none"}
        model = PrivateKMeans(3, 2.0, random_state=seed, **options).fit(data)
        assert inertia(pooled(data), model.cluster_centers_) < margin * best


def test_kmeans_with_real_noise_is_off_by_no_more_than_the_noise():
    """False-alarm odds below 1e-10: of 6 coordinates, each within 7 standard deviations.

    The groups are so narrow that noise moves nobody across, so the 5 means that are averaged differ by noise
    alone; with noise s on each number, coordinate c of a center with share n has sd s sqrt(1 + (c/R)^2) / n.
    """
    data = groups(width=0.05)
    model = PrivateKMeans(3, 2.0, random_state=0, epsilon=2.0).fit(data)
    plain = PrivateKMeans(3, 2.0, random_state=0, mechanism="none").fit(data)
    noise = model.privacy_.releases[0].noise / math.sqrt(5)
    sd = noise * np.sqrt(1 + (plain.cluster_centers_ / 2.0) ** 2) / plain.shares_[:, None]
    error = np.abs(model.cluster_centers_ - plain.cluster_centers_)
    assert (error <= 7 * 1.1 * sd).all()  # 1.1: the quotient is linear only to first order
    assert (error > 0).all()


def test_kmeans_predicts_the_nearest_center():
    model = PrivateKMeans(3, 2.0, random_state=0, epsilon=5.0).fit(groups())
    distances = model.transform(GROUPS)
    assert distances.shape == (3, 3)
    assert (model.predict(GROUPS) == distances.argmin(axis=1)).all()
    assert sorted(model.predict(GROUPS)) == [0, 1, 2]
    assert model.transform([[0.1, 0.2]])[0, 1] == pytest.approx(
        math.dist([0.1, 0.2], model.cluster_centers_[1])
    )


def fits(errors, scale):
    """Whether errors look like N(0, scale^2): variance and shape, false alarm below 1e-6 in all."""
    statistic = float(np.sum((errors / scale) ** 2))
    tail = min(chi2.cdf(statistic, len(errors)), chi2.sf(statistic, len(errors)))
    return tail > 2e-7 and kstest(errors / scale, "norm").pvalue > 2e-7


@pytest.mark.parametrize("mechanism", ["cape", "conventional", "pooled"])
def test_the_noise_on_counts_is_as_predicted(mechanism):
    """sqrt(2)/mu for a trusted curator, S/S_H times that variance for cape, S times for conventional."""
    sizes, edges = (40, 25, 60, 31), np.linspace(-3, 3, 5001)
    data = {name: x[:, 0] for name, x in patients(sizes)[0].items()}
    model = PrivateHistogram(edges, epsilon=1.0, mechanism=mechanism).fit(data)
    factor = {"cape": 4 / 3, "conventional": 4, "pooled": 1}[mechanism]
    predicted = math.sqrt(factor) * math.sqrt(2) / gaussian_mu(1.0, 1e-5)
    assert model.noise_ == pytest.approx(predicted, rel=1e-4)
    errors = model.counts_ - np.histogram(pooled(data), edges)[0]
    assert fits(errors, predicted)
    assert not fits(errors, 0.7 * predicted)
    assert not fits(errors, 1.3 * predicted)


def test_histogram_without_noise_is_that_of_numpy():
    data = groups()
    data["s3"][0, 0] = np.nan
    edges = [np.linspace(-2, 2, 9), [-1.0, 0.0, 1.5]]
    model = PrivateHistogram(edges, mechanism="none").fit(data)
    known = pooled(data)[np.isfinite(pooled(data)).all(axis=1)]
    counts, _ = np.histogramdd(known, edges)
    density, _ = np.histogramdd(known, edges, density=True)
    assert model.counts_ == pytest.approx(counts, abs=1e-6)
    assert model.shares_ == pytest.approx(counts / len(known), abs=1e-4)
    assert model.density_ == pytest.approx(density, abs=1e-3)
    assert model.pdf([[0.1, 0.5], [9.0, 0.5]]) == pytest.approx([model.density_[4, 1], 0.0])


def test_local_counts_are_those_of_the_one_site():
    data = {"large": np.full(50, 0.5), "small": np.full(20, 0.5), "other": np.full(10, 0.5)}
    model = PrivateHistogram([0, 1, 2], mechanism="local", epsilon=50.0).fit(data)
    # Noise of sd below 0.3, so 50 and 80 are worlds apart.
    assert model.noise_ < 0.3
    assert model.counts_[0] == pytest.approx(50, abs=10)


def test_the_density_approaches_the_true_one():
    """Projection cannot lose: among all cells, elsewhere included, no distribution gets farther away."""
    edges = np.linspace(-4, 4, 33)
    data = {name: x[:, 0] for name, x in patients()[0].items()}
    model = PrivateHistogram(edges, epsilon=1.0, insecure_noise_seed=1).fit(data)
    true = np.histogram(pooled(data), edges)[0] / sum(SIZES)
    noisy = model.counts_ / sum(SIZES)
    elsewhere = (5 * model.noise_ / sum(SIZES)) ** 2
    assert np.sum((model.shares_ - true) ** 2) <= np.sum((noisy - true) ** 2) + elsewhere
    assert (model.shares_ >= 0).all()
    centers = (edges[1:] + edges[:-1]) / 2
    assert model.pdf(centers) == pytest.approx(normal.pdf(centers), abs=0.05)


def test_lists_dicts_arrays_and_booleans_are_the_same():
    X, y = patients((40, 30, 50))
    options = {"feature_bound": BOUND, "max_iter": 2, "epsilon": 1.0, "insecure_noise_seed": 0}
    named = PrivateLogisticRegression(**options).fit(X, y)
    listed = PrivateLogisticRegression(**options).fit(
        {name: x.tolist() for name, x in X.items()}, [labels.astype(int).tolist() for labels in y.values()]
    )
    assert (named.coef_ == listed.coef_).all()


X3, Y3 = [[[0.0, 1.0]] * 4] * 3, [[0, 1, 1, 0]] * 3


@pytest.mark.parametrize(
    ("X", "y", "options", "message"),
    [
        ([], [], {}, "X contains no sites"),
        ([X3[0], [], X3[2]], Y3, {}, "site site-2 has no subjects"),
        ([X3[0], [[0.0, 1.0], [0.0]], X3[0]], Y3, {}, "site site-2, row 1 has 1 features, expected 2"),
        ([X3[0], [[0.0, 1.0], ["a", 1.0]], X3[0]], Y3, {}, "site site-2, row 1 is not a row of numbers"),
        ([X3[0], [[[0.0, 1.0]]], X3[0]], Y3, {}, r"site site-2, row 0 must be a row .* shape \(1, 2\)"),
        ([[[]], [[]], [[]]], Y3, {}, r"site site-1, row 0 must be a row of numbers, got shape \(0,\)"),
        (X3, Y3[:2], {}, "y must contain labels for each of the 3 sites of X"),
        (X3, None, {}, "y must contain labels for each of the 3 sites of X"),
        (
            X3,
            {"a": 0, "b": 0, "c": 0},
            {},
            "must name the same sites as X, site-1, site-2, site-3; got a",
        ),
        (
            X3,
            [Y3[0], Y3[1], [0, 1]],
            {},
            r"y: site site-3 must have 4 labels, one per row of X; got shape \(2,\)",
        ),
        (X3, [Y3[0], [0, 1, 7, 7], Y3[2]], {}, r"y: site site-2, row 2 must be 0 or 1 \(2 such rows\)"),
        (X3, [Y3[0], [0, 1, 0, math.nan], Y3[2]], {}, "y: site site-2, row 3 must be 0 or 1"),
        (X3, [Y3[0], ["0", "1", "1", "1"], Y3[2]], {}, "y: site site-2, row 0 must be 0 or 1"),
        (X3, Y3, {"epsilon": None}, "epsilon must be given for mechanism 'cape'"),
        (X3, Y3, {"epsilon": -1.0}, "epsilon must be a finite number above 0, got -1.0"),
        (X3, Y3, {"clip": 0.0}, "clip must be a finite number above 0, got 0.0"),
        (X3, Y3, {"feature_bound": -2}, "feature_bound must be a finite number above 0, got -2"),
        (X3, Y3, {"feature_bound": math.inf}, "feature_bound must be a finite number above 0, got inf"),
        (X3, Y3, {"learning_rate": 0}, "learning_rate must be a finite number above 0, got 0"),
        (X3, Y3, {"l2": -0.1}, "l2 must be at least 0, got -0.1"),
        (X3, Y3, {"max_iter": 0}, "max_iter must be a whole number of at least 1, got 0"),
        (X3, Y3, {"mechanism": "magic"}, "mechanism must be one of"),
    ],
)
def test_regression_names_bad_input_before_anything_is_spent(X, y, options, message):
    model = PrivateLogisticRegression(**{"feature_bound": 1.0, "epsilon": 1.0, **options})
    with pytest.raises(InputError, match=message) as error:
        model.fit(X, y)
    assert "7" not in str(error.value)  # no data in an error
    assert not hasattr(model, "privacy_")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be a whole number of at least 1, got 0"),
        ({"n_clusters": 1.5}, "n_clusters must be a whole number of at least 1, got 1.5"),
        ({"radius": 0.0}, "radius must be a finite number above 0, got 0.0"),
        ({"max_iter": -3}, "max_iter must be a whole number of at least 1, got -3"),
        ({"random_state": -1}, "random_state must be a whole number of at least 0, got -1"),
        ({"epsilon": None}, "epsilon must be given"),
    ],
)
def test_kmeans_names_bad_input(options, message):
    with pytest.raises(InputError, match=message):
        PrivateKMeans(**{"n_clusters": 2, "radius": 1.0, "epsilon": 1.0, **options}).fit(X3)


@pytest.mark.parametrize(
    ("edges", "X", "message"),
    [
        (5, X3, "edges must be a sequence of increasing numbers, or one for each feature; got 5"),
        ([], X3, "edges: feature 0 must have at least two edges, finite and increasing"),
        ([1.0], X3, "edges: feature 0 must have at least two edges, finite and increasing"),
        ([[0, 1], [1, 1]], X3, "edges: feature 1 must have at least two edges, finite and increasing"),
        ([[0, 1], [0, math.nan]], X3, "edges: feature 1 must have"),
        ([[0, 1], ["a", "b"]], X3, "edges: feature 1 must have"),
        ([[0, 1], 2], X3, "edges: feature 1 must have"),
        ([0, 1], X3, "site site-1, row 0 has 2 features, expected 1"),
    ],
)
def test_histogram_names_bad_input(edges, X, message):
    with pytest.raises(InputError, match=message):
        PrivateHistogram(edges, epsilon=1.0).fit(X)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "X must contain rows of numbers, one per subject"),
        (5, "X must contain rows of numbers, one per subject"),
        ([[1.0, 2.0, 3.0]], "X, row 0 has 3 features, expected 2"),
        ([[1.0, 2.0], [1.0, math.nan]], r"X, row 1 contains NaN or infinity \(1 such rows\)"),
    ],
)
def test_results_are_applied_to_people_with_numbers_only(X, message):
    model = PrivateKMeans(2, 1.0, max_iter=1, mechanism="none").fit(X3)
    with pytest.raises(InputError, match=message):
        model.predict(X)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_say_what_they_cost(example, capsys):
    runpy.run_path(str(example), run_name="__main__")
    assert "Each participant (all of their data) is protected with epsilon " in capsys.readouterr().out


def test_there_is_an_example_of_each():
    assert len(EXAMPLES) == 3
