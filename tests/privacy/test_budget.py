"""One budget for many calls: it adds up exactly, refuses in time, and cannot be doubled."""

import copy
import math
import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from capedjica import CapeDJICA, CapePCA, PaperOptions, PrivacyBudget, private_mean
from capedjica.applications import PrivateHistogram, PrivateKMeans, PrivateLogisticRegression
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.errors import BudgetExceededError, CapedjicaError, InputError
from capedjica.mechanisms.contract import Query, Stage
from capedjica.privacy import gaussian_delta, gaussian_epsilon, gaussian_mu, pure_mu
from capedjica.privacy.ledger import LedgerError, RestoredError
from capedjica.privacy.reserved_delta import RESERVED_DELTA

ROWS = [np.random.default_rng(s).normal(size=(30, 2)) for s in range(3)]
SCANS = [[np.random.default_rng(10 * s + m).normal(size=(40 + m, 5)) for m in range(6)] for s in range(3)]
DELTA = 1e-5


def cost(epsilon, delta=DELTA):
    return gaussian_mu(epsilon, delta * (1 - RESERVED_DELTA))


def test_a_new_budget_is_whole():
    budget = PrivacyBudget(2.0)
    assert (budget.epsilon, budget.delta) == (2.0, 1e-5)
    assert budget.mu == pytest.approx(cost(2.0), rel=1e-12)
    assert (budget.spent_mu, budget.spent_epsilon, budget.left_epsilon) == (0.0, 0.0, 2.0)
    assert str(budget) == "epsilon 0 of 2 spent at delta 1e-5 by 0 calls; one more call may use up to 2"


def test_a_call_may_take_all_of_it_and_then_nothing_is_left():
    budget = PrivacyBudget(1.0)
    private_mean(ROWS, 1.0, 1.0, budget=budget)
    assert budget.spent_epsilon == pytest.approx(1.0, rel=1e-8)
    assert budget.spent_epsilon <= 1.0
    with pytest.raises(BudgetExceededError, match="nothing was computed or charged"):
        private_mean(ROWS, 1.0, 0.01, budget=budget)
    assert "by 1 call;" in str(budget)


def test_costs_add_up_in_mu_squared_whatever_their_deltas():
    budget = PrivacyBudget(5.0, 1e-6)
    private_mean(ROWS, 1.0, 1.0, 1e-5, budget=budget)
    private_mean(ROWS, 1.0, 0.5, 1e-7, budget=budget)
    private_mean(ROWS, 1.0, {"site-1": 0.1, "site-2": 0.7, "site-3": 0.2}, budget=budget)
    expected = math.hypot(cost(1.0), cost(0.5, 1e-7), cost(0.7))
    assert budget.spent_mu == pytest.approx(expected, rel=1e-8)
    assert budget.spent_epsilon == pytest.approx(gaussian_epsilon(expected, 1e-6), rel=1e-5)


def test_a_hundred_calls_at_epsilon_one_cost_what_the_documents_say():
    budget = PrivacyBudget(100.0)
    for _ in range(100):
        budget.charge(cost(1.0), "a call", ["site-1"])
    assert budget.spent_epsilon == pytest.approx(14.4, abs=0.05)


@settings(deadline=None, max_examples=60)
@given(st.floats(0.1, 20), st.lists(st.tuples(st.floats(0.01, 5), st.floats(1e-9, 1e-3)), max_size=12))
def test_no_calls_bring_the_total_above_the_budget(epsilon, calls):
    budget, mus = PrivacyBudget(epsilon), []
    for asked, delta in calls:
        before = budget.spent_mu
        try:
            budget.charge(cost(asked, delta), "a call", ["site-1"])
            mus.append(cost(asked, delta))
        except BudgetExceededError:
            assert budget.spent_mu == before
            assert math.hypot(*mus, cost(asked, delta)) > budget.mu * (1 - 1e-12)
    assert gaussian_delta(math.hypot(*mus), epsilon) <= DELTA * (1 - RESERVED_DELTA) * (1 + 1e-9)
    assert budget.spent_mu == pytest.approx(math.hypot(*mus), rel=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.floats(0.1, 8), st.floats(0.01, 0.99))
def test_what_is_left_may_be_asked_for_and_no_more(epsilon, part):
    budget = PrivacyBudget(epsilon)
    private_mean(ROWS, 1.0, part * epsilon, budget=budget)
    with pytest.raises(BudgetExceededError):
        private_mean(ROWS, 1.0, budget.left_epsilon * (1 + 1e-6), budget=budget)
    private_mean(ROWS, 1.0, budget.left_epsilon, budget=budget)
    assert budget.left_epsilon < 1e-3 * epsilon


def test_threads_never_exceed_it_together():
    """400 charges from 16 threads at a budget for 100: exactly 100 succeed."""
    each = cost(1.0)
    budget = PrivacyBudget(gaussian_epsilon(10 * each, DELTA * (1 - RESERVED_DELTA)) * (1 + 1e-9))

    def attempt(_):
        try:
            budget.charge(each, "a call", ["site-1"])
        except BudgetExceededError:
            return False
        return True

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(attempt, range(400))) == 100
    assert budget.spent_mu <= budget.mu


def test_calls_in_threads_share_one_budget():
    budget = PrivacyBudget(1.0)

    def attempt(_):
        try:
            return private_mean(ROWS, 1.0, 0.5, budget=budget)
        except BudgetExceededError:
            return None

    with ThreadPoolExecutor(8) as threads:
        made = [result for result in threads.map(attempt, range(12)) if result is not None]
    assert budget.spent_mu == pytest.approx(math.sqrt(len(made)) * cost(0.5), rel=1e-8)
    assert len(made) == math.floor((budget.mu / cost(0.5)) ** 2)


LABELS = [(rows[:, 0] > 0).astype(int) for rows in ROWS]
FITS = {
    "mean": lambda **options: private_mean(ROWS, 1.0, **options),
    "pca": lambda **options: CapePCA(2, **options).fit(SCANS),
    "subject": lambda **options: CapeDJICA(2, max_iter=4, **options).fit(SCANS),
    "paper": lambda **options: CapeDJICA(2, method="paper", max_iter=2, **options).fit(SCANS),
    "histogram": lambda **options: PrivateHistogram([[-3, 0, 3]] * 2, **options).fit(ROWS),
    "kmeans": lambda **options: PrivateKMeans(2, 2.0, max_iter=2, **options).fit(ROWS),
    "regression": lambda **options: PrivateLogisticRegression(2.0, max_iter=2, **options).fit(ROWS, LABELS),
}


@pytest.mark.parametrize("name", FITS)
def test_every_call_is_charged_its_whole_cap_whatever_it_spent(name):
    budget = PrivacyBudget(3.0)
    result = FITS[name](epsilon=2.0, budget=budget)
    privacy = result.privacy if name == "mean" else result.privacy_
    assert budget.spent_mu == pytest.approx(cost(2.0), rel=1e-8)
    assert budget.spent_mu >= privacy.spent_mu
    with pytest.raises(BudgetExceededError):
        FITS[name](epsilon=2.7, budget=budget)
    assert budget.spent_mu == pytest.approx(cost(2.0), rel=1e-8)


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mechanism": "none"}, "mechanism 'none' adds no noise"),
        ({"epsilon": 1.0, "insecure_noise_seed": 3}, "seeded noise gives no privacy"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": 1.0, "n_colluding": 9}, "n_colluding"),
        ({"epsilon": 1e30}, "too small for exact integer arithmetic"),
        ({"epsilon": 1.0, "delta": 1e-40}, "delta"),
    ],
)
def test_what_is_refused_before_it_begins_charges_nothing(name, options, words):
    budget = PrivacyBudget(1e31)
    with pytest.raises(InputError, match=words):
        FITS[name](**options, budget=budget)
    assert budget.spent_mu == 0


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("wrong", [1.0, "epsilon 1", PrivacyBudget, object()])
def test_what_is_no_budget_is_refused(name, wrong):
    with pytest.raises(InputError, match="budget must be a PrivacyBudget or None"):
        FITS[name](epsilon=1.0, budget=wrong)


def test_a_refused_call_computes_nothing():
    budget = PrivacyBudget(0.5)
    asked = []

    def statistics(*_):
        asked.append(True)
        return [np.zeros((4, 1))]

    sites = {"a": 4, "b": 4, "c": 4}
    with pytest.raises(BudgetExceededError):
        EmbeddedStudy(
            "a study",
            sites,
            dict.fromkeys(sites, statistics),
            [Stage(Query("q", 1, 1.0))],
            in_process(epsilon=1.0, delta=DELTA),
            budget=budget,
        )
    assert not asked
    assert budget.spent_mu == 0


def test_a_call_that_fails_on_the_way_stays_charged():
    budget = PrivacyBudget(3.0)

    def stop(estimator, iteration):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CapeDJICA(2, epsilon=2.0, max_iter=6, callback=stop, budget=budget).fit(SCANS)
    assert budget.spent_mu == pytest.approx(cost(2.0), rel=1e-8)


def test_early_stopping_earns_nothing_back():
    budget = PrivacyBudget(3.0)
    model = CapeDJICA(
        2, epsilon=2.0, method="paper", max_iter=50, paper_options=PaperOptions(tol=1e6), budget=budget
    ).fit(SCANS)
    assert model.n_iter_ < 50
    assert model.privacy_.spent_mu < 0.9 * budget.spent_mu
    assert budget.spent_mu == pytest.approx(cost(2.0), rel=1e-8)


def test_pure_and_gaussian_parts_are_charged_together():
    budget = PrivacyBudget(20.0)
    model = CapeDJICA(
        2,
        epsilon=4.0,
        method="dp-djica",
        max_iter=2,
        paper_options=PaperOptions(pca_share=0.25),
        budget=budget,
    ).fit(SCANS)
    assert budget.spent_mu == pytest.approx(math.hypot(cost(1.0), math.sqrt(2) * pure_mu(1.5)), rel=1e-8)
    assert budget.spent_mu == pytest.approx(model.privacy_.mu, rel=1e-8)


def test_samples_as_neighbours_are_charged_for_a_whole_person():
    budget = PrivacyBudget(1000.0)
    CapePCA(2, epsilon=1.0, neighbour="sample", budget=budget).fit(SCANS)
    assert budget.spent_mu == pytest.approx(45 * cost(1.0), rel=1e-8)
    with pytest.raises(BudgetExceededError):
        CapePCA(2, epsilon=1.0, neighbour="sample", budget=PrivacyBudget(1.0)).fit(SCANS)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda b: copy.deepcopy([b])[0]])
def test_a_copy_is_the_same_budget(duplicate):
    budget = PrivacyBudget(1.0)
    assert duplicate(budget) is budget


@pytest.mark.parametrize(
    "estimator",
    [CapePCA(2, epsilon=1.0), CapeDJICA(2, epsilon=1.0), PrivateHistogram([0, 1], epsilon=1.0)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_copies_of_an_estimator_share_its_budget(estimator):
    estimator.budget = PrivacyBudget(1.0)
    assert copy.deepcopy(estimator).budget is estimator.budget
    if hasattr(estimator, "get_params"):
        assert clone(estimator).budget is estimator.budget
        assert estimator.get_params()["budget"] is estimator.budget
        assert "PrivacyBudget(epsilon=1, delta=1e-05)" in repr(estimator)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_not_pickled(protocol):
    with pytest.raises(TypeError, match="another process would have a second budget"):
        pickle.dumps(PrivacyBudget(1.0), protocol)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_estimator_leaves_its_budget_behind(protocol):
    """Its results can be used anywhere; to fit it again without a budget would be spending nobody counts."""
    budget = PrivacyBudget(2.0)
    fitted = CapePCA(2, epsilon=1.0, budget=budget).fit(SCANS)
    spent = budget.spent_mu
    restored = pickle.loads(pickle.dumps(fitted, protocol))
    assert (restored.components_ == fitted.components_).all()
    assert fitted.budget is budget
    for refused in (restored, clone(restored)):
        with pytest.raises(InputError, match="pickled without its budget"):
            refused.fit(SCANS)
    assert budget.spent_mu == spent
    restored.set_params(budget=budget).fit(SCANS)
    assert budget.spent_mu > spent


@pytest.mark.parametrize(
    "estimator",
    [CapeDJICA(2, epsilon=1.0), PrivateHistogram([0, 1], epsilon=1.0)],
    ids=lambda e: type(e).__name__,
)
def test_no_pickled_estimator_is_fitted_without_its_budget(estimator):
    estimator = clone(estimator).set_params(budget=PrivacyBudget(1.0))
    restored = pickle.loads(pickle.dumps(estimator))
    with pytest.raises(InputError, match="pickled without its budget"):
        restored.fit(SCANS if isinstance(estimator, CapeDJICA) else {"a": [0.5] * 9, "b": [0.5] * 9})


def test_other_processes_cannot_spend_a_budget_in_memory():
    joblib = pytest.importorskip("joblib")
    budget = PrivacyBudget(1.0)
    with pytest.raises(pickle.PicklingError, match=r"(?i)could not .*pickle"):
        joblib.Parallel(n_jobs=2)(joblib.delayed(budget.charge)(0.01, "x", ["a"]) for _ in range(4))
    # A forked child has the object without any pickling.
    pid = os.fork()
    if not pid:
        try:
            budget.charge(0.01, "x", ["a"])
        except LedgerError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert budget.spent_mu == 0


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (math.inf, 1e-5), (1, 0), (1, 1), ("x", 1e-5)]
)
def test_what_makes_no_budget_is_refused(epsilon, delta):
    with pytest.raises(InputError):
        PrivacyBudget(epsilon, delta)


def test_a_ledger_remembers(tmp_path):
    path = tmp_path / "budget.ledger"
    with PrivacyBudget.on_ledger(path, 1.0) as budget:
        private_mean(ROWS, 1.0, 0.6, budget=budget)
        spent = budget.spent_mu
    with PrivacyBudget.on_ledger(path, 1.0) as again, PrivacyBudget.on_ledger(path, 1.0) as beside:
        assert again.spent_mu == beside.spent_mu == spent
        private_mean(ROWS, 1.0, again.left_epsilon, budget=beside)
        with pytest.raises(BudgetExceededError):
            private_mean(ROWS, 1.0, 0.1, budget=again)
        assert "by 2 calls" in str(again)
    with pytest.raises(CapedjicaError, match=r"already approved|this site's limit for one study"):
        PrivacyBudget.on_ledger(path, 2.0)
    assert (path.with_name("budget.ledger.key").stat().st_mode & 0o077) == 0


def test_a_ledger_that_was_set_back_is_refused(tmp_path):
    path = tmp_path / "budget.ledger"
    PrivacyBudget.on_ledger(path, 1.0).close()
    older = path.read_bytes()
    with PrivacyBudget.on_ledger(path, 1.0) as budget:
        private_mean(ROWS, 1.0, 1.0, budget=budget)
    for file in tmp_path.glob("budget.ledger-*"):
        file.unlink()
    path.write_bytes(older)
    with pytest.raises(RestoredError):
        PrivacyBudget.on_ledger(path, 1.0)
    path.unlink()
    with pytest.raises(LedgerError):
        PrivacyBudget.on_ledger(path, 1.0)


def spend(path, barrier, results):
    barrier.wait()
    made = 0
    with PrivacyBudget.on_ledger(path, 1.0) as budget:
        for _ in range(30):
            try:
                budget.charge(cost(0.2), "a call", ["site-1"])
                made += 1
            except BudgetExceededError:
                break
    results.put(made)


def test_processes_share_a_ledger(tmp_path):
    """Four processes, which also race to make it, get as many calls together as one would."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    barrier, results = context.Barrier(4), context.Queue()
    workers = [context.Process(target=spend, args=(tmp_path / "b", barrier, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    made = sum(results.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
    assert made == math.floor((cost(1.0) / cost(0.2)) ** 2)
