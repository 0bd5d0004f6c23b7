"""Every estimator is an analysis on terms: what it returns, and what it guarantees, follow from these."""

import numpy as np
import pytest

from capedjica import CapeDJICA, CapePCA, PaperOptions, private_mean
from capedjica.algorithms.ica.paper_method import PaperMethod
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.pca import PrincipalComponents
from capedjica.algorithms.tables.histogram import HistogramOfRows
from capedjica.algorithms.tables.kmeans import ClustersOfRows
from capedjica.algorithms.tables.mean import MeanOfRows
from capedjica.algorithms.tables.regression import LogisticOfRows
from capedjica.applications import PrivateHistogram, PrivateKMeans, PrivateLogisticRegression
from capedjica.engines.embedded import EmbeddedStudy
from capedjica.mechanisms.aggregator.history import privacy_statement
from capedjica.mechanisms.terms import NO_RESERVE, Terms
from capedjica.securesum.identity import Identity

RNG = np.random.default_rng(0)
ROWS = {f"s{number}": RNG.standard_normal((20 + number, 2)) for number in range(4)}
LABELS = {name: (rows[:, 0] > 0).astype(float) for name, rows in ROWS.items()}
LABELLED = {name: np.column_stack([rows, LABELS[name]]) for name, rows in ROWS.items()}
SCANS = {f"s{number}": list(RNG.laplace(size=(5 + number, 30, 6))) for number in range(4)}
EDGES = (np.linspace(-2, 2, 5), np.array([-1.0, 0.0, 1.0]))
GIVEN = {"epsilon": 3.0, "delta": 1e-6, "mechanism": "cape", "masking": "paper", "n_colluding": 2}
TERMS = Terms(**GIVEN, reserve=NO_RESERVE)
OPTIONS = PaperOptions(learning_rate=0.5, pca_share=0.4, clip_g=20.0, clip_h=4.0, tol=1e-9)


def people(data):
    return [len(site) for site in data.values()]


def networks(**options):
    return lambda **given: CapeDJICA(2, scan_length=30, max_iter=3, **options, **given).fit(SCANS)


CASES = {
    "mean": (MeanOfRows(2, 1.5), ROWS, lambda **given: private_mean(ROWS, 1.5, **given)),
    "PCA": (
        PrincipalComponents(6, 2, 1.0),
        SCANS,
        lambda **given: CapePCA(2, **given).fit(SCANS),
    ),
    "histogram": (HistogramOfRows(EDGES), ROWS, lambda **given: PrivateHistogram(EDGES, **given).fit(ROWS)),
    "k-means": (
        ClustersOfRows(2, 2, 2.0, 4, 5),
        ROWS,
        lambda **given: PrivateKMeans(2, 2.0, max_iter=4, random_state=5, **given).fit(ROWS),
    ),
    "regression": (
        LogisticOfRows(2, 2.0, max_iter=4),
        LABELLED,
        lambda **given: PrivateLogisticRegression(2.0, max_iter=4, **given).fit(ROWS, LABELS),
    ),
    "subject ICA": (
        SubjectMethod(6, 2, 30, TERMS.mean_noise(people(SCANS)), 3),
        SCANS,
        networks(basis=None),
    ),
    "paper ICA": (
        PaperMethod(6, 2, 3, 30, **vars(OPTIONS)),
        SCANS,
        networks(method="paper", paper_options=OPTIONS),
    ),
}
RESULTS = {
    "mean": {"value": "value", "noise": "noise"},
    "PCA": {"components": "components_"},
    "histogram": {"counts": "counts_", "noise": "noise_", "shares": "shares_", "density": "density_"},
    "k-means": {"centers": "cluster_centers_", "shares": "shares_"},
    "regression": {"coefficients": "coef_", "intercept": "intercept_"},
    "subject ICA": {"mixing": "mixing_", "maps": "components_", "stability": "stability_"},
    "paper ICA": {"mixing": "mixing_", "n_iter": "n_iter_"},
}


@pytest.mark.parametrize("case", CASES)
def test_an_estimator_returns_what_its_analysis_found(case):
    analysis, data, fit = CASES[case]
    found = analysis.estimate(EmbeddedStudy.of("by hand", analysis, data, TERMS, insecure_noise_seed=7))
    estimator = fit(**GIVEN, insecure_noise_seed=7)
    for name, kept in RESULTS[case].items():
        np.testing.assert_array_equal(getattr(found, name), getattr(estimator, kept))


@pytest.mark.parametrize("case", CASES)
def test_an_estimator_guarantees_what_a_contract_on_its_terms_does(case):
    analysis, data, fit = CASES[case]
    sites = [Identity.generate().public(name) for name in data]
    contract = TERMS.contract("by hand", sites, people(data), analysis.stages())
    expected, fitted = privacy_statement(contract, []), fit(**GIVEN)
    stated = fitted.privacy if case == "mean" else fitted.privacy_
    for name in ("epsilon", "delta", "mu", "site_epsilon", "n_colluding", "neighbour", "adversary"):
        assert getattr(stated, name) == getattr(expected, name)
    assert stated.spent_epsilon <= expected.epsilon


def test_defaults_are_those_of_the_terms():
    estimators = [
        CapeDJICA(2),
        CapePCA(2),
        PrivateHistogram([0, 1]),
        PrivateKMeans(2, 1.0),
        PrivateLogisticRegression(1.0),
    ]
    for estimator in estimators:
        assert estimator._terms() == Terms(reserve=NO_RESERVE)
