"""Outcomes of one person against independent computations, and against scans that mean them harm."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from capedjica.algorithms.outcomes import (
    OUTCOMES,
    Outcome,
    default_clip,
    effective_length,
    from_public_cohort,
    from_theory,
)
from capedjica.algorithms.tables.rows import clip_rows
from capedjica.algorithms.tables.values import Values
from capedjica.errors import InputError

RNG = np.random.default_rng(1)
SCAN = RNG.standard_normal((200, 6)) @ RNG.standard_normal((6, 6))
UNMIXING = RNG.standard_normal((4, 6))
EXTRA = {
    "blocks": {"groups": ("visual", "motor", "visual", "motor")},
    "band-power": {"bands": ((0.0, 0.1), (0.1, 0.5))},
}


def values(kind: str) -> Values:
    return Values(kind, 4, **EXTRA.get(kind, {}))


def found(kind: str, scan=SCAN):
    return values(kind).of(scan, UNMIXING)


def test_partial_correlations_are_those_of_regression_on_all_others():
    """Without shrinkage: the correlation of what the other courses leave of two."""
    courses = (SCAN - SCAN.mean(axis=0)) @ UNMIXING.T
    rest = courses[:, 2:]
    left = courses[:, :2] - rest @ np.linalg.lstsq(rest, courses[:, :2], rcond=None)[0]
    outcome = Values("partial-connectivity", 4, shrinkage=1e-12)
    np.testing.assert_allclose(np.tanh(outcome.of(SCAN, UNMIXING)[0]), np.corrcoef(left.T)[0, 1], atol=1e-6)


def test_shrinkage_of_one_leaves_no_correlation():
    assert np.abs(Values("partial-connectivity", 4, shrinkage=1.0).of(SCAN, UNMIXING)).max() < 1e-12


def test_blocks_are_means_of_connectivity():
    z = found("connectivity")  # pairs 01, 02, 03, 12, 13, 23
    assert values("blocks").names(["a", "b", "c", "d"]) == (
        "within visual",
        "visual - motor",
        "within motor",
    )
    expected = [z[1], z[[0, 2, 3, 5]].mean(), z[4]]
    np.testing.assert_allclose(found("blocks"), expected)


def test_a_group_of_one_network_has_no_block_of_its_own():
    outcome = Outcome("blocks", 3, groups=("visual", "motor", "motor"))
    assert list(outcome.blocks) == ["visual - motor", "within motor"]


def test_power_of_a_wave_is_in_its_band():
    time = np.arange(200)
    waves = np.stack([np.sin(2 * np.pi * f * time) for f in (0.05, 0.3)], axis=1)
    low, high, other_low, other_high = Values("band-power", 2, bands=((0, 0.1), (0.1, 0.5))).of(waves, None)
    assert low > 1 > 0 > high
    assert other_high > 0 > other_low


def test_white_noise_has_a_flat_spectrum():
    noise = np.random.default_rng(2).standard_normal((20_000, 2))
    spectrum = Values("spectra", 2).of(noise, None)
    assert spectrum.shape == (16,)
    assert np.abs(spectrum).max() < 0.1


def test_a_map_of_its_own_loads_less():
    rng = np.random.default_rng(3)
    mixing, courses = rng.standard_normal((60, 4)), rng.standard_normal((300, 4))
    unmixing = np.linalg.pinv(mixing)
    assert np.tanh(Values("loadings", 4).of(courses @ mixing.T, unmixing)).min() > 0.99
    other = mixing + np.outer(rng.standard_normal(60), [2.0, 0.0, 0.0, 0.0])
    changed, *same = np.tanh(Values("loadings", 4).of(courses @ other.T, unmixing))
    assert changed < 0.7 < 0.9 < min(same)


@pytest.mark.parametrize("kind", OUTCOMES)
class TestEveryOutcome:
    def test_every_number_has_a_name(self, kind):
        names = values(kind).names(["a", "b", "c", "d"])
        assert len(set(names)) == len(names) == values(kind).size == len(found(kind))
        assert np.isfinite(found(kind)).all()

    def test_the_unit_of_a_scan_does_not_matter(self, kind):
        np.testing.assert_allclose(found(kind, 37.0 * SCAN + 5.0), found(kind), atol=1e-8)

    @pytest.mark.parametrize(
        "scan", [np.empty((0, 6)), SCAN[:2], np.full((50, 6), np.nan), np.full((50, 6), np.inf)]
    )
    def test_a_scan_of_no_use_is_no_number(self, kind, scan):
        assert np.isnan(found(kind, scan)).all()

    def test_theory_standardises_what_varies_as_assumed(self, kind):
        standard = from_theory(values(kind).outcome, 200)
        assert standard.center.shape == standard.scale.shape == (values(kind).size,)
        assert (standard.scale > 0).all()
        assert standard.clip == pytest.approx(0.8 * np.sqrt(values(kind).size))

    @given(
        scan=arrays(
            np.float64,
            st.tuples(st.integers(0, 12), st.just(6)),
            elements=st.floats(width=32) | st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e300]),
        )
    )
    def test_hostile_scans_never_exceed_the_norm(self, kind, scan):
        """Whatever a scan holds, the vector has the declared size, and its norm at most C or no number."""
        standard = from_theory(values(kind).outcome, 200)
        try:
            row = found(kind, scan)
        except np.linalg.LinAlgError:
            return  # a site takes that as no number: test_values
        assert row.shape == (values(kind).size,)
        clipped = clip_rows(((row - standard.center) / standard.scale)[np.newaxis], standard.clip)[0]
        norm = np.linalg.norm(np.where(np.isfinite(clipped), clipped, 0.0))
        assert norm <= standard.clip * (1 + 1e-12)


def test_the_scale_of_theory_is_that_of_autocorrelated_courses():
    """Fisher's z of unrelated AR(1) courses varies by 1 / (T_eff - 3): 4,000 pairs, 5 standard errors."""
    rng, length = np.random.default_rng(5), 200
    noise = rng.standard_normal((length + 50, 4_000, 2))
    courses = np.zeros_like(noise)
    for step in range(1, len(noise)):
        courses[step] = 0.5 * courses[step - 1] + noise[step]
    courses = courses[50:]
    z = [Values("connectivity", 2).of(courses[:, pair], None)[0] for pair in range(4_000)]
    expected = 1 / (effective_length(length) - 3)
    assert abs(np.var(z) / expected - 1) < 5 * np.sqrt(2 / 4_000)


def test_a_public_cohort_gives_its_mean_and_deviation():
    rows = np.random.default_rng(6).normal(3.0, 2.0, (50, 4))
    standard = from_public_cohort(rows, attested_public=True, source="a public data set")
    np.testing.assert_allclose(standard.center, rows.mean(axis=0))
    np.testing.assert_allclose(standard.scale, rows.std(axis=0, ddof=1))
    assert standard.clip == default_clip(4)
    assert "a public data set" in standard.origin


@pytest.mark.parametrize(
    ("rows", "attested", "words"),
    [
        (np.ones((9, 2)), False, "attested_public=True"),
        (np.ones((9, 2)), True, "at least 3 subjects"),
        (RNG.standard_normal(9), True, r"got shape \(9,\)"),
        (np.full((9, 2), np.nan), True, "finite"),
    ],
)
def test_a_cohort_that_is_none_is_refused(rows, attested, words):
    with pytest.raises(InputError, match=words):
        from_public_cohort(rows, attested_public=attested, source="nobody")


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome("blocks", 3, groups=("a",)), "for each of the 3 networks"),
        (Outcome("amplitudes", 2, groups=("a", "b")), "groups is only for outcome 'blocks'"),
        (Outcome("band-power", 2), "bands must be given for outcome"),
        (Outcome("band-power", 2, bands=((0.2, 0.1),)), "got 0.2 to 0.1"),
        (Outcome("partial-connectivity", 2, shrinkage=0.0), "shrinkage must be greater than 0"),
    ],
)
def test_what_cannot_be_computed_is_said(outcome, words):
    assert any(words in problem for problem in outcome.problems())


def test_nothing_is_wrong_with_what_can():
    assert not any(values(kind).outcome.problems() for kind in OUTCOMES)
