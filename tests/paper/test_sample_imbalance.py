"""Noise with unequal sites: measured on real releases, against Remark 2 and against the exact theory."""

import csv
import math

import numpy as np
import pytest
from scipy.stats import chi2

from capedjica.privacy import Cape
from capedjica.securesum.noise import NoiseSource
from paper.sample_imbalance import (
    QUICK,
    Setting,
    all_sizes,
    asymmetric,
    dropouts,
    findings,
    main,
    measure,
    paper_noise,
    paper_scheme,
    proposition_2,
    release,
    secure_sum,
    site_sizes,
)
from paper.shared import formulas

FALSE_ALARM = 1e-7  # of each comparison


@pytest.fixture(scope="module")
def rows():
    return measure(QUICK)


def agrees(ratio: float, size: int = QUICK.size) -> bool:
    """Whether a measured variance, over the expected one, is within what chance does."""
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], size) / size
    return bool(low < ratio < high)


def test_quick_version_writes_everything(tmp_path):
    main(["--quick", "--out", str(tmp_path / "results")])
    with (tmp_path / "results/sample_imbalance.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(QUICK.ratios) + 1
    assert (tmp_path / "results/sample_imbalance.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "results/sample_imbalance.svg").read_text().lstrip().startswith("<?xml")
    assert "S/S_H" in (tmp_path / "RESULTS.md").read_text()


@pytest.mark.parametrize("setting", [QUICK, Setting()])
def test_sizes_keep_n_and_grow_unequal(setting):
    chosen = all_sizes(setting)
    assert all(sum(sizes) == setting.n_samples and min(sizes) >= 1 for sizes in chosen)
    ratios = [formulas.sample_size_ratio(sizes) for sizes in chosen]
    assert ratios == sorted(ratios)
    low, high = formulas.sample_size_ratio_bounds(setting.n_samples, setting.n_sites)
    assert ratios[0] == pytest.approx(low)
    assert ratios[-1] == pytest.approx(high)


def test_measured_noise_is_the_expected_one_and_no_other(rows):
    """9 comparisons: 1e-6 in all of a false alarm; 0.7 or 1.3 of the noise is noticed."""
    for row in rows:
        for measured, expected in (
            (row.h_measured, row.h_formula),
            (row.equal_weights_measured, row.equal_weights_stated),
            (row.size_weights_measured, row.size_weights_stated),
        ):
            ratio = measured / expected
            assert agrees(ratio)
            assert not agrees(ratio * 0.7**2)
            assert not agrees(ratio * 1.3**2)


def test_weights_by_size_cost_s_over_s_h_whatever_the_sizes(rows):
    for row in rows:
        assert row.size_weights_stated == pytest.approx(4 / 3, rel=1e-4)
    assert rows[-1].equal_weights_stated > 100


def test_pooled_release_has_the_noise_it_states():
    value, noise = release(QUICK, (60, 30, 20, 10), "pooled")
    ratio = float(value @ value) / len(value) / noise**2
    assert agrees(ratio)
    assert not agrees(ratio * 0.7**2)
    assert not agrees(ratio * 1.3**2)


def test_masks_of_the_paper_cancel_to_the_last_bit():
    """Masks a million times as wide as the noise leave its variance alone; false alarm 1e-7."""
    scheme = Cape(1e12, 1.0, np.full(4, 0.25), 1)
    noise = paper_noise(scheme, 2000, NoiseSource())
    ratio = float(noise @ noise) / 2000 / scheme.output_variance
    assert agrees(ratio)
    assert not agrees(ratio * 0.7**2)
    assert not agrees(ratio * 1.3**2)


def test_secure_sum_adds_up():
    vectors = [np.arange(5, dtype=np.uint64) * np.uint64(k) for k in (1, 2, 3)]
    np.testing.assert_array_equal(secure_sum(vectors), np.arange(5, dtype=np.uint64) * np.uint64(6))


def test_paper_noise_hides_a_small_site_hardly_better_than_conventional():
    """Equal sites: S/(S+1)(1 + S/S_H). Halving sizes: the smallest site's exact mu^2 nears S."""
    equal = paper_scheme((100,) * 10)
    assert np.max(equal.mu(1 / 100) ** 2) == pytest.approx(10 / 11 * (1 + 10 / 7))
    sizes = np.array(site_sizes(1000, 10, 0.6))
    unequal = paper_scheme(tuple(sizes)).mu(1 / sizes) ** 2
    assert 9.5 < unequal[-1] == unequal.max() < 10


def test_lost_sites_leave_the_gain_and_weaken_privacy():
    """mu^2 = S/(S+1) + (S/(S+1))^2 / (S_H/(S+1)) with S_H honest survivors: S = 4, S_C = 1, one lost."""
    before, after = (4 / 5 + (4 / 5) ** 2 / (honest / 5) for honest in (3, 2))
    assert f"grows {after / before:.2f} times" in dropouts(QUICK).measured
    assert "gain 4 before, 4 after" in dropouts(QUICK).measured


def test_asymmetric_scheme_has_the_pooled_variance_and_not_its_privacy():
    found = asymmetric(Setting())
    assert "variance 1.000 times" in found.measured
    # Equal w_s tau_s: as if the sites were equal.
    assert f"{10 / 11 * (1 + 10 / 7):.2f} times the one calibrated for" in found.measured


def test_proposition_2_by_hand():
    """H = S Delta^2(N/S) / (S^3 Delta^2(N)): 1, 1/S and S^2."""
    assert "1 for Δ(N) = 1/N, 0.1 for Δ(N) = 1/√N, 100 for Δ(N) = 1/N²" in proposition_2(Setting()).measured


def test_findings_follow_the_numbers(rows):
    """Six standard errors for three measurements: below 1e-6 of a false alarm."""
    answers = findings(QUICK, rows)
    assert [finding.holds for finding in answers] == ["yes", "yes", "no", *["in part"] * 3]
    assert math.isclose(rows[0].worst_mu_squared, 4 / 5 * (1 + 4 / 3))
