"""How many components stand out of the noise: its edge, what is found, what is refused."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from capedjica import CapeDJICA
from capedjica.algorithms.analysis import ReleasedMean
from capedjica.algorithms.ica.maps.component_number import component_number, least_shared, noise_edge
from capedjica.algorithms.ica.subject_level import FINE, ROTATION, SUBSPACE, SubjectMethod
from capedjica.algorithms.state import pack
from capedjica.algorithms.svec import svec, svec_size
from capedjica.data import make_synthetic
from capedjica.errors import InputError, ProtocolError


def released(heights, size, noise, level=0.0, seed=0):
    """Return a mean projector with given eigenvalues, and noise on it."""
    rng = np.random.default_rng(seed)
    frame = np.linalg.qr(rng.standard_normal((size, size)))[0][:, : len(heights)]
    mean = level * np.eye(size) + (frame * (np.asarray(heights) - level)) @ frame.T
    return ReleasedMean(0, svec(mean) + noise * rng.standard_normal(svec_size(size)), noise)


@pytest.mark.parametrize("size", [20, 90])
def test_noise_alone_passes_its_edge_once_in_twenty_times(size):
    """Of 400 draws; a false alarm once in 10,000. At 0.7 and 1.3 times the noise it would be noticed."""
    rng = np.random.default_rng(size)

    def passed(scale):
        draws = (scale * rng.standard_normal(svec_size(size)) for _ in range(400))
        return sum(component_number(ReleasedMean(0, draw, 1.0), 3).found > 0 for draw in draws)

    least, most = binom.ppf((5e-5, 1 - 5e-5), 400, 0.05)
    assert least <= passed(1.0) <= most
    assert passed(0.7) < least
    assert passed(1.3) > most


def test_the_edge_is_that_of_a_gaussian_orthogonal_ensemble():
    """Twice the standard deviation off the diagonal times the root of K, to first order."""
    assert noise_edge(10**6, 1.0) == pytest.approx(2000, rel=1e-4)
    assert noise_edge(100, 0.1) == pytest.approx(2.0 + 0.0979 * 100 ** (-1 / 6), rel=1e-3)


@pytest.mark.parametrize("level", [0.0, 0.1])
def test_directions_that_theory_lets_through_are_found_and_no_others(level):
    size, noise = 100, 0.03
    half = noise / np.sqrt(2) * np.sqrt(size)
    for seed in range(5):
        number = component_number(released([0.9] * 8, size, noise, level, seed), 20)
        assert abs(number.found - 8) <= 1
        hidden = component_number(released([level + 0.6 * half] * 3, size, noise, level, seed), 20)
        assert hidden.found <= 1


def test_weak_directions_that_do_not_stand_out_show_together():
    size, noise = 100, 0.03
    half = noise / np.sqrt(2) * np.sqrt(size)
    numbers = [
        component_number(released([0.9] * 5 + [0.9 * half] * 12, size, noise, 0, s), 20) for s in range(5)
    ]
    assert all(number.more and 5 <= number.found < 17 for number in numbers)
    assert "their number cannot be determined" in str(numbers[0])
    assert sum(component_number(released([0.9] * 5, size, noise, 0, s), 20).more for s in range(20)) <= 5


@pytest.mark.parametrize("heights", [[], [0.9] * 8, [0.5] * 8])
def test_more_is_said_once_in_twenty_times_where_there_are_no_more(heights):
    """Of 400 draws, those found stand far out or nearer to the noise; false alarms once in 10,000."""
    size, noise = 60, 0.03

    def said(scale):
        told = replace(released(heights, size, noise), noise=scale * noise)
        draws = (replace(told, value=released(heights, size, noise, seed=seed).value) for seed in range(400))
        return sum(component_number(one, 12).more for one in draws)

    least, most = binom.ppf((5e-5, 1 - 5e-5), 400, 0.05)
    assert least <= said(1.0) <= most
    assert said(1 / 0.7) < least
    assert said(1 / 1.3) > most


def test_more_is_said_where_some_of_many_of_the_same_height_drown():
    """Those that stand out at the threshold take as much of the noise with them as hidden ones add."""
    size, noise = 100, 0.03
    numbers = [component_number(released([0.3] * 13, size, noise, 0, seed), 20) for seed in range(10)]
    assert max(number.found for number in numbers) < 11
    assert sum(number.more for number in numbers) >= 9


def test_people_with_nothing_in_common_show_nothing_in_common():
    """Of 300 people with 3 networks and noise, 12 directions each; from a public start more stand out."""
    rng, size = np.random.default_rng(0), 100
    networks = np.linalg.qr(rng.standard_normal((size, 3)))[0]
    scans = [
        rng.standard_normal((120, 3)) @ networks.T * 8 + rng.standard_normal((120, size)) for _ in range(300)
    ]

    def found(auto):
        method, noise = SubjectMethod(size, 12, 120, 1e-4, auto=auto), 0.004
        mean = np.mean(np.concatenate(list(method.site(scans)(SUBSPACE, b"", b""))), axis=0)
        noisy = mean + noise * np.random.default_rng(1).standard_normal(mean.shape)
        return component_number(ReleasedMean(SUBSPACE, noisy, noise, len(scans)), 12).found

    assert found(auto=True) == 3
    assert found(auto=False) > 6


def test_where_noise_hides_all_nothing_is_determinable():
    number = component_number(released([0.9] * 5, 60, 0.5), 10, auto=True)
    assert number.recoverable is None
    assert number.kept == 10
    assert "cannot be determined" in str(number)
    assert least_shared(60, 10, 0.5) > 1
    assert least_shared(60, 10, 0.001) < 0.2


def test_all_that_were_asked_for_is_no_warning_and_fewer_is():
    assert component_number(released([0.9] * 5, 60, 0.01), 5).warning == ""
    number = component_number(released([0.9] * 5, 60, 0.01, seed=1), 9)
    assert "9 components were requested" in number.warning
    assert "5 components of at most 9" in number.warning
    assert [row[3] for row in number.table().rows] == ["yes"] * 5 + ["no"] * 4


@pytest.fixture(scope="module")
def data():
    return make_synthetic(4, 160, 5, 100, 12, random_state=0)


@pytest.mark.parametrize("method", ["subject", "spatial"])
def test_auto_finds_the_number_at_the_cost_of_the_maximum(data, method):
    options = {"method": method, "image_shape": (12, 12), "scan_length": 100, "insecure_noise_seed": 1}
    found = CapeDJICA("auto", 20.0, max_components=9, **options).fit(data.sites)
    assert found.n_components_ == 5
    assert found.components_.shape == (5, 144)
    assert found.stability_.min() > 0.8
    with pytest.warns(UserWarning, match="9 components were requested"):
        fixed = CapeDJICA(9, 20.0, **options).fit(data.sites)
    assert fixed.n_components_ == 9
    assert found.privacy_.mu == fixed.privacy_.mu
    assert [one.noise for one in found.privacy_.releases] == [one.noise for one in fixed.privacy_.releases]
    page = found.generate_report().html
    assert "5 components of at most 9 can be recovered" in page


def test_a_number_that_the_noise_lets_through_is_not_warned_of(data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CapeDJICA(5, 20.0, image_shape=(12, 12), scan_length=100).fit(data.sites)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_components": "auto"}, "max_components"),
        ({"n_components": 5, "max_components": 9}, "max_components is only for n_components='auto'"),
        ({"n_components": "auto", "max_components": 9, "method": "paper"}, "'subject' and 'spatial'"),
        (
            {"n_components": "auto", "max_components": 9, "method": "guided", "template": np.eye(9, 144)},
            "'guided'",
        ),
        (
            {"n_components": "auto", "max_components": 9, "method": "template", "template": np.eye(9, 144)},
            "'template'",
        ),
        ({"n_components": "automatic"}, "n_components"),
    ],
)
def test_auto_is_refused_where_it_cannot_be(data, options, said):
    with pytest.raises(InputError, match=said):
        CapeDJICA(epsilon=20.0, **options).fit(data.sites)


def test_a_site_fills_up_vectors_of_fewer_components_and_takes_no_more_than_agreed(data):
    scans = data.sites[0][:4]
    auto, fixed = (SubjectMethod(144, 6, 100, 0.01, auto=auto) for auto in (True, False))
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((144, 4)))[0]
    published = pack(V=V, sphering=np.eye(4))
    rows = np.concatenate(list(auto.site(scans)(FINE, published, b"")))
    assert rows.shape == (4, svec_size(6))
    assert not rows[:, svec_size(4) :].any()
    own = SubjectMethod(144, 4, 100, 0.01).site(scans)
    np.testing.assert_array_equal(rows[:, : svec_size(4)], np.concatenate(list(own(FINE, published, b""))))
    turned = np.concatenate(list(auto.site(scans)(ROTATION, published, pack(W=np.eye(4)))))
    assert turned.shape == (4, 15)
    assert not turned[:, 6:].any()
    with pytest.raises(ProtocolError, match="6 columns"):
        fixed.site(scans)(FINE, published, b"")
    for width in (1, 7):
        with pytest.raises(ProtocolError, match="2 to 6 columns"):
            auto.site(scans)(FINE, pack(V=np.eye(144)[:, :width], sphering=np.eye(width)), b"")
