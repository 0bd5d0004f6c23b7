"""Networks of a template: what one person can say of them, what moves them, and what noise cannot."""

import math

import numpy as np
import pytest

from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.maps.networks import pseudo_inverse
from capedjica.algorithms.ica.maps.template_shift import movement
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.ica.template_method import TemplateMethod, difference, difference_clip
from capedjica.data import make_synthetic
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.errors import InputError

R, T, SIDE = 4, 80, 12
DATA = make_synthetic(2, 40, R, T, SIDE, 3)
TRUE = DATA.mixing.T
NAMES = ("visual", "motor", "default", "salience")


def displaced():
    """The true maps, but the first of them two pixels off."""
    maps = TRUE.copy()
    maps[0] = np.roll(TRUE[0].reshape(SIDE, SIDE), 2, axis=1).ravel()
    return Template.of(maps, NAMES)


def run(method, seed=None, **terms):
    sites = {f"s{number}": site for number, site in enumerate(DATA.sites)}
    study = EmbeddedStudy.of("t", method, sites, in_process(**terms), insecure_noise_seed=seed)
    return method.estimate(study)


def angle(one, other):
    return abs(one @ other) / (np.linalg.norm(one) * np.linalg.norm(other))


def of_one(scan, template=None, basis=None):
    maps = (template or Template.of(TRUE)).maps
    unit = maps / np.linalg.norm(maps, axis=1, keepdims=True)
    return difference(scan, unit, pseudo_inverse(unit.T), basis)[0]


def test_without_group_maps_nothing_is_asked_and_the_template_is_found():
    method = TemplateMethod(Template.of(TRUE, NAMES), T, group_maps=False)
    assert method.stages() == ()
    found = method.estimate(None)
    np.testing.assert_allclose(found.maps, Template.of(TRUE).maps, atol=1e-12)
    assert found.names == NAMES
    assert found.movements == ()
    assert found.tables() == ()
    assert found.stability is None


def test_one_release_of_which_the_norm_is_known_without_looking():
    (stage,) = TemplateMethod(displaced(), T).stages()
    assert stage.count == 1
    assert stage.query.size == TRUE.size
    assert stage.query.clip == difference_clip(R, T) == pytest.approx(2 * R / math.sqrt(T + 4 * R))
    assert difference_clip(R, 1) < math.sqrt(R)


def test_the_template_moves_to_where_the_networks_are_and_its_other_maps_stay():
    template = displaced()
    found = run(TemplateMethod(template, T), mechanism="none")
    before = [angle(template.maps[r], TRUE[r]) for r in range(R)]
    after = [angle(found.maps[r], TRUE[r]) for r in range(R)]
    assert after[0] > before[0] + 0.05
    assert found.movements[0].moved
    assert found.names == NAMES
    (table,) = found.tables()
    assert [row[0] for row in table.rows] == list(NAMES)


def test_where_all_are_as_the_template_says_noise_does_not_move_it():
    """Without shrinkage the maps would be noise; the test calls none of them moved."""
    found = run(TemplateMethod(Template.of(TRUE, NAMES), T), seed=1, epsilon=3.0)
    for network, one in enumerate(found.movements):
        assert one.noise > 0.4
        assert not one.moved
        assert angle(found.maps[network], TRUE[network]) > 0.95
    # There is no difference from the template that another run would show.
    assert (found.stability < 0.5).all()


def test_a_movement_that_stands_out_of_the_noise_is_told():
    found = run(TemplateMethod(displaced(), T), seed=1, epsilon=60.0)
    assert found.movements[0].moved
    assert found.movements[0].distance > found.movements[0].noise
    assert 0 < found.movements[0].shrinkage < 1
    assert angle(found.maps[0], TRUE[0]) > angle(displaced().maps[0], TRUE[0])


def test_a_basis_has_fewer_numbers_and_less_noise():
    basis, template = low_pass((SIDE, SIDE)), displaced()
    method = TemplateMethod(template, T, basis=basis)
    assert method.stages()[0].query.size == R * len(basis)
    quiet = run(method, mechanism="none")
    assert angle(quiet.maps[0], TRUE[0]) > angle(template.maps[0], TRUE[0]) + 0.05
    noisy, plain = (run(one, seed=2, epsilon=8.0) for one in (method, TemplateMethod(template, T)))
    assert noisy.movements[0].noise < 0.7 * plain.movements[0].noise
    assert noisy.movements[0].moved


def test_a_basis_that_keeps_nothing_of_a_network_is_refused():
    template = Template.of(np.eye(6)[:2] + np.eye(6)[4:], ["visual", "motor"])
    with pytest.raises(InputError, match="keeps 0% of the template's network 'motor'"):
        TemplateMethod(template, T, basis=np.eye(6)[[0, 4]])


def test_more_networks_than_time_points_are_refused():
    with pytest.raises(InputError, match="4 networks, but scan_length is 3"):
        TemplateMethod(Template.of(TRUE), 3)


# One person


def test_a_vector_depends_on_neither_unit_nor_sign_nor_place_of_a_scan():
    scan = np.asarray(DATA.sites[0][0], dtype=np.float64)
    scan = scan + np.random.default_rng(0).standard_normal(scan.shape)
    plain = of_one(scan)
    for other in (-3 * scan, scan * 2.0**60, scan * 2.0**-200, scan + 50):
        np.testing.assert_allclose(of_one(other), plain, atol=1e-3)


def test_no_scan_makes_a_map_longer_than_its_template():
    """Networks that are nowhere, noise, spikes, few time points: each difference is at most 1 long."""
    rng = np.random.default_rng(1)
    for number in range(60):
        scan = rng.standard_t(2, size=(T, SIDE**2)) * 10.0 ** rng.uniform(-15, 15)
        scan[:, : (number % 4) * 40] = 0
        vector = of_one(scan[: 2 + number % 9 * 8])
        lengths = np.linalg.norm(vector.reshape(R, -1), axis=1)
        assert (lengths <= 1 + 1e-6).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("length", [0, 1, 2, T])
def test_scans_without_signal_say_nothing(length):
    vector = of_one(np.zeros((length, SIDE**2)))
    assert vector.shape == (TRUE.size,)
    assert np.isnan(vector).all() if length == 0 else not vector.any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scans_with_nan_or_infinity_count_as_zero(bad):
    scan = np.ones((T, SIDE**2))
    scan[3, 5] = bad
    assert np.isnan(of_one(scan)).all()


def test_one_person_fails_alone():
    method = TemplateMethod(Template.of(TRUE), T)
    good = list(DATA.sites[0][:4])
    bad = [good[0], good[1], np.full((T, SIDE**2), np.nan), good[3]]
    alone, beside = ([*method.site(scans)(0, b"", b"")] for scans in (good, bad))
    assert np.isnan(beside[2]).all()
    for number in (0, 1, 3):
        assert np.array_equal(alone[number], beside[number])


# Shrinkage


def test_the_test_calls_few_networks_moved_that_are_noise():
    rng = np.random.default_rng(0)
    numbers, wrong = 50, 0
    for _ in range(400):
        distances = np.linalg.norm(rng.standard_normal((5, numbers)), axis=1)
        wrong += any(movement("a", float(one), 1.0, numbers, 5).moved for one in distances)
    assert wrong / 400 < 0.09


def test_shrinkage_is_closer_to_the_truth_than_what_was_measured():
    rng = np.random.default_rng(0)
    for size in (0.0, 1.0, 5.0, 50.0):
        truth = np.full(60, size / math.sqrt(60))
        error = shrunk_error = 0.0
        for _ in range(200):
            measured = truth + rng.standard_normal(60)
            kept = movement("a", float(np.linalg.norm(measured)), 1.0, 60, 1).shrinkage
            error += np.sum((measured - truth) ** 2)
            shrunk_error += np.sum((kept * measured - truth) ** 2)
        assert shrunk_error < 1.01 * error


def test_too_few_numbers_are_not_shrunk():
    assert movement("a", 1.0, 1.0, 2, 1).shrinkage == 1.0
