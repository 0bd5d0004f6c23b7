"""Real studies: sites of very different sizes and budgets, scans of different lengths, broken people."""

import numpy as np
import pytest

from capedjica import CapeDJICA
from capedjica.data import make_synthetic
from capedjica.metrics import normalized_gain_index

SIZES = (26, 175, 60, 31)
R, SIDE = 5, 14


@pytest.fixture(scope="module")
def study():
    return make_synthetic(4, sum(SIZES), R, (80, 200), SIDE, 3, site_sizes=SIZES)


def gain_index(study, sites=None, **options):
    options = {"epsilon": 8.0, "image_shape": (SIDE, SIDE), **options}
    fitted = CapeDJICA(R, **options).fit(study.sites if sites is None else sites)
    return normalized_gain_index(fitted.unmixing_ @ study.mixing), fitted


def test_unequal_sites_with_scans_of_different_lengths(study):
    assert {len(scan) for site in study.sites for scan in site} > {80}
    assert gain_index(study)[0] < 0.1


def test_sites_with_budgets_of_their_own(study):
    budgets = {"site-1": 6.0, "site-2": 8.0, "site-3": 10.0, "site-4": 20.0}
    index, fitted = gain_index(study, epsilon=budgets)
    assert index < 0.15
    assert fitted.privacy_.site_epsilon == budgets
    for site, budget in budgets.items():
        spent = [release.site_mu[site] for release in fitted.privacy_.releases]
        assert np.linalg.norm(spent) <= fitted.privacy_.mu
        assert budget <= fitted.privacy_.epsilon


def test_messy_people_do_no_harm(study):
    """One in eight has empty regions, spikes, NaN, or a scan of another scale; nobody else is touched."""
    rng = np.random.default_rng(0)
    sites = [[scan.copy() for scan in site] for site in study.sites]
    for site in sites:
        for scan in site[::8]:
            kind = rng.integers(4)
            if kind == 0:
                scan[:, rng.choice(SIDE * SIDE, 40, replace=False)] = 0
            elif kind == 1:
                scan[rng.integers(len(scan), size=3)] += 1e4
            elif kind == 2:
                scan[5, 7] = np.nan
            else:
                scan *= 1e6
    assert gain_index(study, sites, on_bad="zero")[0] < 0.12


def test_one_broken_person_moves_no_mean_beyond_the_clip(study):
    """Without noise the first means with and without the break are apart by at most what is charged."""
    sites = [[scan.copy() for scan in site] for site in study.sites]
    sites[0][0][:] = np.random.default_rng(1).standard_t(1, size=sites[0][0].shape) * 1e8
    clean, broken = (gain_index(study, s, epsilon=None, mechanism="none")[1] for s in (study.sites, sites))
    match = np.abs(np.sum(clean.components_ * broken.components_, axis=1))
    norms = np.linalg.norm(clean.components_, axis=1) * np.linalg.norm(broken.components_, axis=1)
    assert (match / norms > 0.999).all()
