"""The runs behind the figures on capeDJICA: data, noise and accounts, each against another way to get it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from capedjica.algorithms.ica.infomax import Infomax, gradient_query
from capedjica.algorithms.ica.paper_method import reduce
from capedjica.algorithms.pca import subject_moments, within_unit_ball
from capedjica.data import make_synthetic
from capedjica.mechanisms.contract import Query, Stage
from capedjica.privacy import gaussian_delta, paper
from paper.shared.ica_runs import (
    PAPER,
    TUNED,
    Data,
    Descent,
    Djica,
    DpDjica,
    Quiet,
    Reduction,
    Steady,
    Subject,
    _Moments,
    _real_scans,
    longest_scan,
    paper_tau,
    scans_of,
    study_with_noise,
)
from paper.shared.runs import Kept, make_and_store
from paper.shared.scores import accounts

SMALL = Data(12, 3, 5, 4, 40, 8)
FALSE_ALARM = 1e-7
SCHEMES = ("cape", "conventional")


@pytest.fixture(scope="module")
def images():
    """The same study with all its pixels."""
    return make_synthetic(4, 12, 3, 40, 8, random_state=5)


def test_frame_stands_for_the_pixels(images):
    scans = scans_of(SMALL)
    for site, pixels in zip(scans.sites.values(), images.sites, strict=True):
        for scan, full in zip(site, pixels, strict=True):
            np.testing.assert_allclose(scan @ scans.frame.T, full, atol=1e-5)
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 3)))[0]
    first = next(iter(scans.reduced(V).values()))[0]
    np.testing.assert_allclose(first, reduce(images.sites[0][0], V.astype(np.float32)), atol=1e-4)


def test_moments_are_those_of_the_pixels(images):
    scans = scans_of(SMALL)
    rows = list(_Moments(next(iter(scans.sites.values())), scans.frame)(0, b"", b""))
    expected = list(subject_moments(map(within_unit_ball, images.sites[0])))
    np.testing.assert_allclose(np.concatenate(rows), np.concatenate(expected), atol=1e-6)


@pytest.mark.parametrize(("mechanism", "units"), [("cape", 40), ("local", 10), ("conventional", 20)])
def test_noise_is_that_of_the_paper_and_no_other(mechanism, units):
    """3 comparisons of 20,000 numbers, 3e-7 in all of a false alarm; 0.7 or 1.3 of the noise is noticed.

    Conventional noise is sqrt(S) = 2 times cape's.
    """
    sizes = {f"site-{s}": 10 for s in range(4)}
    zeros = {name: lambda *_: [np.zeros((1, 20_000))] * 10 for name in sizes}
    noise = paper_tau(2 / units, 0.5, 1e-2)
    assert noise == pytest.approx(2 / units / 0.5 * math.sqrt(2 * math.log(125)))
    study, mu = study_with_noise(sizes, zeros, Stage(Query("zeros", 20_000, 1.0), 3), noise, mechanism)
    value = study.mean(0)
    ratio = float(value @ value) / len(value) / noise**2
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(value)) / len(value)
    assert low < ratio < high
    assert not low < ratio * 0.7**2 < high
    assert not low < ratio * 1.3**2 < high
    # The paper's masks with S=4, S_C=1 cost S/(S+1)(1 + S/S_H) times the output's mu^2; alone there is none.
    # Conventional: a site's own message, as if it were alone.
    factor = 4 / 5 * (1 + 4 / 3) if mechanism == "cape" else 1.0
    assert mu == pytest.approx(2 / units / noise * math.sqrt(factor), rel=1e-6)
    assert study.privacy.releases[0].mu == pytest.approx(mu, rel=1e-6)


def test_gradients_of_w_and_b_each_have_the_noise_of_the_paper():
    """In units of their clips both have sensitivity 2/M; the vector of both moves by sqrt(2) times that."""
    assert gradient_query(20).clip == pytest.approx(math.sqrt(2))
    sizes = dict.fromkeys("abcd", 256)
    statistics = dict.fromkeys("abcd", lambda *_: [])
    noise = paper_tau(2 / 1024, 1.0, 1e-2)
    mu = study_with_noise(sizes, statistics, Stage(gradient_query(20), 10), noise, "cape")[1]
    assert mu**2 == pytest.approx(2 / (2 * math.log(125)) * 4 / 5 * (1 + 4 / 3), rel=1e-6)


def test_steady_descent_keeps_its_rate_and_the_usual_one_does_not():
    rng = np.random.default_rng(0)
    steady, usual = Steady(4, 0.1), Infomax(4, 0.1)
    for _ in range(20):
        step = rng.standard_normal((4, 4))
        steady.move(step, np.zeros(4))
        usual.move(step, np.zeros(4))
    assert steady.learning_rate == 0.1
    assert usual.learning_rate < 0.02
    np.testing.assert_array_equal(steady.W, usual.W)
    steady.move(np.full((4, 4), 1e9), np.zeros(4))  # a restart lowers it all the same
    assert steady.learning_rate == pytest.approx(0.09)


def test_recipes_are_the_paper_and_what_the_notes_say():
    assert PAPER.infomax(20).learning_rate == pytest.approx(0.015 / math.log(20))
    assert (PAPER.max_iter, PAPER.infomax(20).tolerance) == (1000, 1e-6)
    assert (TUNED.max_iter, TUNED.infomax(20).learning_rate, TUNED.infomax(20).tolerance) == (300, 1.0, 0.0)
    assert isinstance(TUNED.infomax(20), Steady)


def test_accounts_of_a_descent():
    run = Descent(Data(), 0.5)
    each = 0.5 / math.sqrt(2 * math.log(125))
    view = each * math.sqrt(2 * 4 / 5 * (1 + 4 / 3))
    spent = accounts(run, {"n_iter": 40.0, "mu": view, "pca_mu": 50.0}, 1e-5)
    assert spent.paper_descent == pytest.approx(paper.rdp_epsilon(40, each**-2, each**-2, 1e-5))
    assert spent.paper_descent < spent.paper_with_pca < 1.05 * spent.paper_descent
    assert gaussian_delta(view * math.sqrt(40), spent.exact_descent) == pytest.approx(1e-5)
    assert gaussian_delta(math.sqrt(40 * view**2 + 2500), spent.exact_with_pca) == pytest.approx(1e-5)
    assert gaussian_delta(math.sqrt(1000 * view**2 + 2500), spent.guarantee) == pytest.approx(1e-5)


def test_pca_without_noise_costs_everything_by_every_account():
    spent = accounts(Descent(Data(), 0.5), {"n_iter": 40.0, "mu": 0.5, "pca_mu": math.inf}, 1e-5)
    assert spent.paper_with_pca == spent.exact_with_pca == spent.guarantee == math.inf
    assert spent.paper_descent < spent.exact_descent < math.inf


def test_accounts_of_the_others():
    dp = accounts(DpDjica(Data(), 0.5), {"n_iter": 80.0}, 1e-5)
    assert (dp.paper_descent, dp.guarantee) == (40.0, 0.5 * 100 * 250)
    assert accounts(Subject(Data(), 2.0), {}, 1e-5).guarantee == 2.0
    assert accounts(Djica(Data()), {}, 1e-5).guarantee == math.inf


def test_a_person_loses_much_more_by_the_pca_than_a_time_point(tmp_path):
    kept, run = Kept(tmp_path), Reduction(SMALL, 2.0)
    make_and_store(run, kept)
    per_point = 2.0 / math.sqrt(2 * math.log(125)) * math.sqrt(4 / 5 * (1 + 4 / 3))
    assert kept.load(run).numbers["mu"] == pytest.approx(SMALL.n_timepoints * per_point, rel=1e-6)


def test_subject_takes_epsilon_at_its_own_delta(tmp_path, monkeypatch):
    """The problem is analysed at 1e-5; there the same mu has another epsilon."""
    asked = []

    def analyse(self, epsilon):
        asked.append(epsilon)
        return np.eye(3, 64), 1

    monkeypatch.setattr("paper.shared.ica_runs.Problem.analyse", analyse)
    for delta in (1e-5, 1e-2):
        make_and_store(Subject(SMALL, 2.0, delta), Kept(tmp_path))
    assert asked[0] == pytest.approx(2.0)
    assert asked[1] > 3.0


def test_conventional_descent_shares_the_pca_of_cape_and_has_twice_its_noise(tmp_path):
    """Four sites: mu^2 of an iteration is 2/tau^2 in units of a site's own sensitivity."""
    kept = Kept(tmp_path)
    cape, conventional = (Descent(SMALL, 1.0, each, replace(PAPER, max_iter=3)) for each in SCHEMES)
    assert cape.needs == conventional.needs
    for run in (*cape.needs, conventional):
        make_and_store(run, kept)
    assert kept.load(conventional).numbers["mu"] ** 2 == pytest.approx(2 / (2 * math.log(125)), rel=1e-6)


def test_quiet_descent_is_the_descent_with_next_to_no_noise(tmp_path):
    kept = Kept(tmp_path)
    recipe = replace(PAPER, max_iter=40)
    quiet, noisy = Quiet(SMALL, recipe), Descent(SMALL, 2000.0, "cape", recipe)
    for run in (*noisy.needs, noisy, quiet):
        make_and_store(run, kept)
    own, theirs = (kept.load(run).arrays["unmixing"] for run in (quiet, noisy))
    rotation = own @ np.linalg.pinv(theirs)  # the PCA orders and signs directions as it likes
    assert np.allclose(np.sort(np.abs(rotation).max(axis=1)), 1.0, atol=0.02)


def test_a_bound_that_is_too_small_changes_the_descent(tmp_path):
    kept = Kept(tmp_path)
    runs = [Quiet(SMALL, replace(TUNED, max_iter=20), bound) for bound in (1.0, 1e6, 1e9)]
    for run in runs:
        make_and_store(run, kept)
    tight, wide, wider = (kept.load(run).arrays["unmixing"] for run in runs)
    np.testing.assert_allclose(wide, wider, rtol=1e-4, atol=1e-6)
    assert np.abs(tight - wide).max() > 0.1


def abide_folder(folder):
    """Write real data of a shape like ABIDE's: two sites, 30 people, 12 regions."""
    rng = np.random.default_rng(1)
    mixing = rng.standard_normal((12, 3))
    scans = {f"p{m:02d}": (rng.laplace(size=(60, 3)) @ mixing.T).astype(np.float16) for m in range(30)}
    np.savez(folder / "timeseries.npz", **scans)
    lines = [f"{name}\t{'NYU' if m < 20 else 'UCLA'}\tcontrol" for m, name in enumerate(scans)]
    (folder / "participants.tsv").write_text("participant_id\tsite\tdiagnosis\n" + "\n".join(lines) + "\n")


def test_real_data_have_a_truth_equal_sites_or_their_own(tmp_path):
    abide_folder(tmp_path)
    data = Data(28, 3, 0, 4, 60, fingerprint="x", folder=str(tmp_path))
    assert longest_scan(tmp_path) == 60
    assert list(_real_scans(data).sizes.values()) == [7, 7, 7, 7]
    assert _real_scans(replace(data, n_sites=0)).sizes == {"nyu": 20, "ucla": 10}
    kept, run = Kept(tmp_path / "runs"), Djica(data)
    for one in (*run.needs, run):
        make_and_store(one, kept)
    # Sources far from Gaussian: djICA finds what the pooled analysis of all finds.
    assert kept.load(run).numbers["gain_index"] < 0.15
