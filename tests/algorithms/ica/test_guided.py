"""Guided by a template: what is paid follows the noise, noise alone moves nothing, bad templates are told."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import logm
from scipy.stats import binom, chi2, ncx2

from capedjica.algorithms.analysis import ReleasedMean
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.guided import (
    DEAF_PLAN,
    EVIDENCE,
    LOUD_PLAN,
    QUIET_PLAN,
    SUPPORT,
    GuidedMethod,
    GuidedSite,
    overshot,
    shrunk_apart,
    signal_part,
    stiffness_of,
    support_clip,
    without_observation_noise,
)
from capedjica.algorithms.ica.maps.calibration import GUIDED
from capedjica.algorithms.ica.subject_level import ROTATION, SUBSPACE, projector
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.svec import svec, svec_size, unsvec
from capedjica.data import make_synthetic
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.errors import InputError
from capedjica.metrics import match_components, normalized_gain_index

R, T, SIDE, M = 5, 120, 22, 150
BASIS = low_pass((SIDE, SIDE))
DATA = make_synthetic(3, M, R, T, SIDE, 7)
SITES = {f"s{number}": site for number, site in enumerate(DATA.sites)}
TRUE = DATA.mixing.T
NAMES = ("visual", "motor", "default", "salience", "auditory")
RNG = np.random.default_rng(0)
# Smooth, but no networks of these data.
OTHER = RNG.standard_normal((R, len(BASIS))) @ BASIS


def guided(template, epsilon=None, seed=1, **more):
    terms = in_process(epsilon=epsilon, mechanism="none" if epsilon is None else "cape")
    noise = terms.mean_noise([len(site) for site in SITES.values()])
    method = GuidedMethod(template, T, noise, basis=BASIS, **more)
    study = EmbeddedStudy.of("t", method, SITES, terms, insecure_noise_seed=None if epsilon is None else seed)
    return method, method.estimate(study), study


def perturbed(part=0.6):
    unit, other = (maps / np.linalg.norm(maps, axis=1, keepdims=True) for maps in (TRUE, OTHER))
    return Template.of(unit + part * other, NAMES)


def gain(found):
    return normalized_gain_index(found.estimate @ DATA.mixing)


def correlations(found):
    return match_components(found.maps, TRUE).correlations


def test_what_is_paid_follows_the_noise_alone():
    template = Template.of(TRUE)
    plans = [GuidedMethod(template, T, noise, basis=BASIS).plan for noise in (0.0, 0.001, 0.02, 0.3)]
    assert plans == [QUIET_PLAN, QUIET_PLAN, LOUD_PLAN, DEAF_PLAN]
    for plan in (QUIET_PLAN, LOUD_PLAN, DEAF_PLAN):
        assert math.isclose(sum(plan.values()), 1.0)
    # The features count: more of them, more noise in the subspace.
    assert GuidedMethod(template, T, 0.006, basis=BASIS).plan == QUIET_PLAN
    assert GuidedMethod(template, T, 0.006).plan == LOUD_PLAN


def test_without_noise_it_ends_where_the_default_method_ends():
    _, found, _ = guided(perturbed())
    assert gain(found) < 0.02
    assert correlations(found).min() > 0.98
    assert found.names == NAMES
    assert all(one.moved for one in found.movements)


def test_networks_keep_the_order_and_the_sign_of_the_template():
    maps = perturbed().maps[::-1] * np.array([1, -1, 1, -1, 1])[:, np.newaxis]
    _, found, _ = guided(Template.of(maps))
    for own, template in zip(found.maps, maps, strict=True):
        assert own @ template > 0.5 * np.linalg.norm(own) * np.linalg.norm(template)


def test_little_noise_moves_a_template_towards_the_truth():
    before = np.mean([abs(np.corrcoef(a, b)[0, 1]) for a, b in zip(perturbed().maps, TRUE, strict=True)])
    method, found, study = guided(perturbed(), 40.0)
    assert SUBSPACE in method.plan
    assert correlations(found).mean() > before + 0.05
    assert study.privacy.nominal_epsilon <= 40.0


def test_where_rotations_would_be_noise_the_template_stays_and_all_is_spent_on_its_support():
    method, found, study = guided(perturbed(), 0.2)
    assert method.plan == DEAF_PLAN
    np.testing.assert_allclose(found.maps, perturbed().maps, atol=1e-9)
    assert found.n_iter == 0
    assert [release.stage for release in study.released] == [0]
    assert not any(one.moved for one in found.movements)


@pytest.mark.parametrize("epsilon", [3.0, 10.0])
def test_an_exact_template_hardly_moves(epsilon):
    """At 3 the template's subspace stays; at 10 it is measured, found to be right, and stays."""
    exact = Template.of(TRUE)
    start = normalized_gain_index(np.linalg.pinv(exact.maps.T) @ DATA.mixing)
    gains = [gain(guided(exact, epsilon, seed)[1]) for seed in range(4)]
    assert np.mean(gains) < start + 0.003


def test_a_network_without_support_is_named_at_a_small_epsilon_and_replaced_at_a_large_one():
    maps = perturbed(0.2).maps.copy()
    maps[2] = OTHER[2]
    template = Template.of(maps, NAMES)
    _, loud, _ = guided(template, 4.0)
    said = [one.supported for one in loud.movements]
    assert said[2] != "yes"
    assert said.count("no") <= 1
    _, free, _ = guided(template)
    assert [one.supported for one in free.movements] == ["yes", "yes", "no", "yes", "yes"]
    assert correlations(free).min() > 0.9


def test_random_templates_are_recovered_from_without_noise_and_told_at_any():
    _, free, _ = guided(Template.of(OTHER))
    assert {one.supported for one in free.movements} == {"no"}
    assert correlations(free).mean() > 0.9


def test_support_is_what_lies_in_the_subjects_own_directions():
    site = GuidedSite(DATA.sites[0], (SUPPORT,), unit(TRUE), None, T, exact=False)
    vectors = np.concatenate(list(site(0, b"", b"")))
    own = [projector((scan - scan.mean(axis=0)).astype(np.float32), R) for scan in DATA.sites[0]]
    expected = [[t @ P @ t - 0.5 for t in unit(TRUE)] for P in own]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert np.linalg.norm(vectors, axis=1).max() <= math.sqrt(R) / 2
    assert support_clip(R) < math.sqrt(R) / 2


def unit(maps):
    return maps / np.linalg.norm(maps, axis=1, keepdims=True)


def test_subjects_that_say_nothing_count_as_nothing():
    scans = [np.zeros((T, SIDE**2)), np.full((T, SIDE**2), np.nan), DATA.sites[0][0]]
    site = GuidedSite(scans, (SUPPORT,), unit(TRUE), None, T, exact=False)
    none, broken, good = (row[0] for row in site(0, b"", b""))
    assert not none.any()
    assert not broken.any()
    assert good.any()


class Noise:
    """Means that are nothing but noise around what a template that is right would give."""

    def __init__(self, method, mean, sizes, noise, seed, told=None):
        self.mean_of, self.sizes, self.noise = mean, sizes, noise
        self.told = noise if told is None else told
        self.rng, self.released = np.random.default_rng(seed), []

    def mean(self, stage, state=b""):
        value = self.mean_of(stage) + self.noise * self.rng.standard_normal(self.sizes[stage])
        self.released.append(ReleasedMean(stage, value, self.told, 1000))
        return value

    def publish(self, data):
        pass


def test_networks_that_did_not_move_are_rarely_said_to_have():
    """At most 5% of all studies; more than 8 of 60 have a probability below 0.3% if that is so."""
    method = GuidedMethod(Template.of(np.eye(4, 12)), T, 0.01, asked=QUIET_PLAN)
    subspace = svec(np.diag([0.8] * 4 + [0.1] * 8))
    sizes = [stage.query.size for stage in method.stages()]

    def mean(stage):
        return subspace if stage == 1 else np.zeros(sizes[stage])

    alarms = 0
    for seed in range(60):
        found = method.estimate(Noise(method, mean, sizes, 0.02, seed))
        alarms += any(one.moved for one in found.movements)
    assert alarms <= 8
    assert binom.sf(8, 60, 0.05) < 0.003


def test_a_network_that_moved_is_said_to_have():
    method = GuidedMethod(Template.of(np.eye(4, 12)), T, 0.01, asked=LOUD_PLAN)
    sizes = [stage.query.size for stage in method.stages()]
    turned = np.zeros(6)
    turned[0] = 0.2  # between the first and the second network

    def mean(stage):
        return turned if stage == 2 else np.zeros(sizes[stage])

    found = method.estimate(Noise(method, mean, sizes, 0.01, 0))
    assert [one.moved for one in found.movements] == [True, True, False, False]


def studies_that_move(plan, noise, told=0.02, size=0.0, n_studies=40):
    """Return in how many studies any map leaves a template that is right, but for ``size`` in one rotation.

    Means have ``noise``, and say that it is ``told``.
    """
    method = GuidedMethod(Template.of(np.eye(8, 30)), T, 0.02, asked=plan, max_rotations=4)
    subspace = svec(np.diag([0.8] * 8 + [0.1] * 22))
    kinds, sizes = list(plan), [stage.query.size for stage in method.stages()]
    turned = np.zeros(sizes[-1])
    turned[0] = size

    def mean(stage):
        return {SUBSPACE: subspace, ROTATION: turned}.get(kinds[stage], np.zeros(sizes[stage]))

    moved = 0
    for seed in range(n_studies):
        found = method.estimate(Noise(method, mean, sizes, noise, seed, told))
        moved += max(one.distance for one in found.movements) > 1e-6
    return moved


@pytest.mark.parametrize("plan", [LOUD_PLAN, QUIET_PLAN])
def test_nothing_moves_for_noise_alone(plan):
    """A study has at most eight tests at 0.5%: more than 6 of 40 move but once in 1,000 times."""
    assert binom.sf(6, 40, 8 * EVIDENCE) < 0.001
    assert studies_that_move(plan, 0.02) <= 6
    # Noise that is larger than it is told to be is noticed; where it is smaller nothing moves at all.
    assert studies_that_move(plan, 0.02 * 1.3) > 12
    assert studies_that_move(plan, 0.02 * 0.7) == 0


def test_rotations_that_do_not_tell_alone_tell_together():
    """Of four, 3.5 standard deviations long, the first tells in a quarter of studies, all in nearly all."""
    limit = chi2.isf(EVIDENCE, 28)
    assert ncx2.sf(limit, 28, 3.5**2) < 0.3
    assert ncx2.sf(limit, 28, 4 * 3.5**2) > 0.95
    assert studies_that_move(LOUD_PLAN, 0.02, size=0.07) > 30


def test_what_other_people_would_give_by_chance_does_not_move_a_template():
    """Sampling noise of 1,000 people has a norm of sqrt(2 / 1000) clips, whatever the noise of privacy."""
    method = GuidedMethod(Template.of(np.eye(8, 30)), T, 0.02, asked=LOUD_PLAN, max_rotations=4)
    clip = method.stages()[-1].query.clip
    chance = clip * math.sqrt(2 / 1000)
    tiny = 1e-6
    assert studies_that_move(LOUD_PLAN, tiny, tiny, size=chance, n_studies=1) == 0
    assert studies_that_move(LOUD_PLAN, tiny, tiny, size=2 * chance, n_studies=1) == 1


@pytest.mark.parametrize("n_rotations", [1, 2, 3, 4, 8, 16])
def test_few_turns_are_short(n_rotations):
    """A turn of networks that respond as those of synthetic data do leaves them nearer, not farther."""
    response, step = 0.35, 1 / stiffness_of(n_rotations)
    assert abs(1 - response * step) < 1
    assert step == min(n_rotations, 5)


def test_a_mean_that_has_turned_round_was_overshot():
    def released(value, noise):
        return ReleasedMean(3, np.array(value), noise, 100)

    for noise, partly in ((0.0, True), (0.1, False)):
        assert overshot(released([1.0, 0.0], noise), released([-1.0, 0.0], noise))
        assert overshot(released([1.0, 0.0], noise), released([-0.3, 1.0], noise)) == partly
        assert not overshot(released([1.0, 0.0], noise), released([0.3, 1.0], noise))


def test_noise_of_the_scans_is_no_reason_to_move():
    """Time courses by a frame F of maps that overlap have covariance D + s F'F, exactly."""
    maps = np.random.default_rng(3).standard_normal((6, 30))
    frame = np.linalg.pinv(unit(maps))
    covariance = np.diag(np.linspace(0.8, 1.2, 6)) + 0.05 * frame.T @ frame
    log_covariance = logm(covariance)

    def rest(matrix):
        return np.linalg.norm(matrix - np.diag(np.diag(matrix)))

    cleared = without_observation_noise(log_covariance, frame)
    assert rest(cleared) < 0.1 * rest(log_covariance)
    np.testing.assert_array_equal(np.diag(cleared), np.diag(log_covariance))
    # No noise has a negative variance: what points the other way stays.
    np.testing.assert_array_equal(without_observation_noise(-log_covariance, frame), -log_covariance)


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.3])
def test_the_part_that_is_signal_takes_the_right_noise_away(scale):
    """Of 4,000 numbers of noise the squared norm is within 7% of its mean but once in 400 times."""
    noise = np.random.default_rng(5).standard_normal(4000)
    part = signal_part(float(np.sum(noise**2)), 4000, scale)
    assert (part < 0.07) == (scale >= 1)
    assert (scale == 1.3) == (1 - 3998 * scale**2 / np.sum(noise**2) < -0.5)


def test_diagonal_and_rest_are_shrunk_apart():
    rng = np.random.default_rng(2)
    noise = 0.05
    strong = np.diag(np.linspace(-1, 1, 20))
    measured = strong + unsvec(noise * rng.standard_normal(svec_size(20)))
    shrunk = shrunk_apart(measured, noise)
    rest = shrunk - np.diag(np.diag(shrunk))
    assert np.linalg.norm(rest) < 0.5 * noise * math.sqrt(190)
    np.testing.assert_allclose(np.diag(shrunk), np.diag(strong), atol=4 * noise)
    np.testing.assert_allclose(shrunk_apart(strong, 0.0), strong)


def test_the_same_means_give_the_same_networks():
    _, one, _ = guided(perturbed(), 20.0, seed=3)
    _, other, _ = guided(perturbed(), 20.0, seed=3)
    np.testing.assert_array_equal(one.estimate, other.estimate)
    assert one.movements == other.movements


def test_stability_is_that_of_the_difference_and_none_where_nothing_could_move():
    _, found, _ = guided(perturbed(), 0.2)
    np.testing.assert_array_equal(found.stability, 0.0)
    _, found, _ = guided(perturbed(), 20.0)
    assert found.stability.shape == (R,)
    # Never good: another run may find evidence to move where this one found none.
    assert ((found.stability >= 0) & (found.stability <= GUIDED)).all()
    assert found.stability.max() > 0


def test_what_cannot_be():
    with pytest.raises(InputError, match="but scan_length is 4"):
        GuidedMethod(Template.of(TRUE), 4)
    fine = TRUE.copy()
    fine[1] = TRUE[0] + 1e-6 * RNG.standard_normal(SIDE**2)
    with pytest.raises(InputError, match="collinear"):
        GuidedMethod(Template.of(fine), T)
    high = np.eye(R, SIDE**2)
    high -= high @ BASIS.T @ BASIS
    with pytest.raises(InputError, match="its resolution is finer"):
        GuidedMethod(Template.of(high), T, basis=BASIS)


def test_the_number_of_rotations_can_be_given():
    method = GuidedMethod(Template.of(TRUE), T, 0.02, max_rotations=3, basis=BASIS)
    assert method.stages()[list(method.plan).index(ROTATION)].count == 3
    assert replace(method, max_rotations=None).n_rotations >= 1
