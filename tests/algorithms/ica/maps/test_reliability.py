"""The stability of maps: told from what was published alone, and low where maps are wrong."""

import numpy as np
import pytest

from capedjica import CapeDJICA
from capedjica.algorithms.analysis import ReleasedMean, Replay
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.maps.calibration import between_runs, calibrated
from capedjica.algorithms.ica.maps.networks import (
    UNCHANGED,
    Networks,
    likeness,
    mixing_of,
    peak_order,
    pseudo_inverse,
)
from capedjica.algorithms.ica.subject_level import SubjectMethod, likeness_unclipped
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.reliability import RELIABLE
from capedjica.algorithms.svec import svec
from capedjica.data import make_synthetic
from capedjica.data.simulated.synthetic import SyntheticModel
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.metrics import match_components


def stability_and_truth(seed, n_subjects, n_components, side, epsilon):
    """Return, for each map, what is said of it and its correlation with the true one."""
    data = make_synthetic(4, n_subjects, n_components, 120, side, seed)
    # Seeded, so that the test says the same each time.
    model = CapeDJICA(n_components, epsilon, image_shape=(side, side), insecure_noise_seed=seed)
    fitted = model.fit(data.sites)
    matching = match_components(fitted.components_, data.mixing.T)
    truth = np.empty(n_components)
    truth[matching.permutation] = matching.correlations
    return fitted.stability_, truth


def odds_of_being_wrong(runs):
    said, true = map(np.concatenate, zip(*runs, strict=True))
    flagged = said < RELIABLE
    return np.mean(true[flagged] < 0.7), np.mean(true[~flagged] < 0.7), flagged


def test_flagged_maps_are_wrong_far_more_often():
    """With noise of every size: at least four times as often."""
    runs = [stability_and_truth(seed, 200, 6, 14, epsilon) for seed in (0, 1) for epsilon in (0.3, 1, 3, 10)]
    wrong_if_flagged, wrong_if_not, flagged = odds_of_being_wrong(runs)
    assert 0.1 < flagged.mean() < 0.6
    assert wrong_if_flagged > 0.4
    assert wrong_if_flagged >= 4 * wrong_if_not


@pytest.mark.full
def test_flagged_maps_are_wrong_far_more_often_in_studies_of_every_size():
    runs = [
        stability_and_truth(seed, n_subjects, n_components, side, epsilon)
        for seed in range(4)
        for n_subjects, n_components, side in ((512, 10, 20), (256, 20, 24), (1024, 20, 24))
        for epsilon in (0.5, 1, 2, 3)
    ]
    wrong_if_flagged, wrong_if_not, flagged = odds_of_being_wrong(runs)
    print(
        f"{flagged.size} maps, {flagged.mean():.0%} flagged; wrong: {wrong_if_flagged:.1%} of the flagged, "
        f"{wrong_if_not:.1%} of the others"
    )
    assert wrong_if_flagged >= 4 * wrong_if_not


def recovered_and_truth(condition, seed):
    model = SyntheticModel.draw(256, 6, 120, 16, seed).conditioned(condition)
    scans = list(model.subjects())
    sites = {f"s{number}": scans[number * 64 : (number + 1) * 64] for number in range(4)}
    terms = in_process(epsilon=10.0)
    method = SubjectMethod(256, 6, 120, terms.mean_noise([64] * 4), basis=low_pass((16, 16)))
    found = method.estimate(EmbeddedStudy.of("t", method, sites, terms, insecure_noise_seed=seed))
    matching = match_components(found.maps, model.mixing.T)
    truth = np.empty(6)
    truth[matching.permutation] = matching.correlations
    return found, truth


@pytest.mark.parametrize("seed", [0, 3])
def test_maps_that_clipping_has_buried_are_named(seed):
    """At a condition number of 1,000: all that are wrong, and none that is right."""
    found, truth = recovered_and_truth(1000, seed)
    wrong, right = truth < 0.5, truth > 0.9
    assert wrong.any()
    assert right.any()
    assert not (found.recoverable & (found.stability >= RELIABLE))[wrong].any()
    assert (found.recoverable & (found.stability >= RELIABLE))[right].all()
    (table,) = found.tables()
    assert [row[1] == "yes" for row in table.rows] == found.recoverable.tolist()


def test_all_maps_of_a_well_conditioned_mixing_matrix_are_recoverable():
    found, truth = recovered_and_truth(3, 0)
    assert truth.min() > 0.9
    assert found.recoverable.all()
    assert found.tables() == ()


def test_without_noise_all_maps_are_stable():
    data = make_synthetic(2, 40, 3, 120, 10, 0)
    fitted = CapeDJICA(3, mechanism="none", image_shape=(10, 10)).fit(data.sites)
    assert fitted.stability_ == pytest.approx(np.ones(3), abs=1e-6)


def test_stability_is_in_the_order_of_the_maps():
    """Draws that are wrong about one component lower the stability of its map and of no other."""
    rng = np.random.default_rng(0)
    unmixing = rng.standard_normal((5, 40))
    mixing = pseudo_inverse(unmixing)

    def draws():
        for _ in range(9):
            draw = mixing + 1e-9
            draw[:, 2] = rng.standard_normal(40)
            yield draw

    assert np.flatnonzero(likeness(mixing, draws()) < RELIABLE).tolist() == [2]
    said = Networks(unmixing, draws).stability
    (lowest,) = np.flatnonzero(said < RELIABLE)
    assert peak_order(mixing)[lowest] == 2
    assert abs(np.corrcoef(mixing_of(unmixing)[:, lowest], mixing[:, 2])[0, 1]) == pytest.approx(1)


@pytest.mark.parametrize("constant", [True, False])
def test_maps_are_compared_by_their_coefficients_alone(constant):
    """A basis that contains the constant map, or does not: the correlations are those of the maps."""
    rng = np.random.default_rng(3)
    parts = rng.standard_normal((12, 90))
    parts[0] = 1.0
    if not constant:
        parts -= parts.mean(axis=1, keepdims=True)
        parts[0] = rng.standard_normal(90)
    basis = np.linalg.qr(parts.T)[0].T
    coefficients = rng.standard_normal((12, 4)) + 1
    draws = [coefficients + rng.standard_normal((12, 4)) for _ in range(5)]
    maps = basis.T @ coefficients
    expected = likeness(maps, [basis.T @ draw for draw in draws])
    np.testing.assert_allclose(likeness(maps, draws, basis=basis), expected, atol=1e-9)
    assert expected.max() < 0.99


def test_other_methods_do_not_claim_to_know():
    data = make_synthetic(2, 20, 3, 60, 8, 0)
    assert CapeDJICA(3, 10.0, method="paper", max_iter=3).fit(data.sites).stability_ is None


def test_draws_replay_what_was_published_and_ask_nobody():
    data = make_synthetic(2, 20, 3, 60, 8, 0)
    method = SubjectMethod(64, 3, 60, noise=0.01, max_rotations=4)
    sites = {f"s{number}": site for number, site in enumerate(data.sites)}
    study = EmbeddedStudy.of("t", method, sites, in_process(epsilon=5.0))
    found = method.estimate(study)
    study.engine.keep_transcript = True
    still = [type(one)(one.stage, one.value, 0.0) for one in study.released]
    for draw in method.draws(still, method.solved(Replay(study.released))):
        np.testing.assert_allclose(draw, pseudo_inverse(found.estimate), atol=1e-7)
    assert study.engine.transcript == []


def test_of_maps_with_noise_of_known_size_the_correlation_between_runs_is_predicted():
    """Maps of 2,000 features: a run and its draws alone tell, within 0.03, how like another run is."""
    rng = np.random.default_rng(1)
    truth = rng.standard_normal((2000, 4))
    for part in (0.02, 0.1, 0.3):
        spread = np.sqrt(part / (1 - part))
        first, second = (truth + spread * rng.standard_normal(truth.shape) for _ in range(2))
        draws = [first + spread * rng.standard_normal(truth.shape) for _ in range(9)]
        said = between_runs(likeness(first, draws))
        actual = [np.corrcoef(one, other)[0, 1] for one, other in zip(first.T, second.T, strict=True)]
        assert said == pytest.approx(actual, abs=0.05)
        assert said.mean() == pytest.approx(1 - part, abs=0.03)
        # A prediction for other noise is not within it: what is tested can fail.
        for factor in (0.7, 1.3):
            wrong = [first + factor * spread * rng.standard_normal(truth.shape) for _ in range(9)]
            off = between_runs(likeness(first, wrong)).mean()
            assert abs(off - (1 - part)) > 0.3 * part


def test_predictions_fall_with_what_draws_and_turns_say():
    likenesses = np.array([1.0, 0.95, 0.8, 0.5, 0.0])
    near, far = calibrated(likenesses), calibrated(likenesses, 0.7)
    assert near[0] == far[0] == 1
    assert (np.diff(near) <= 0).all()
    assert (far[1:] <= near[1:]).all()
    assert calibrated(likenesses, 1.0)[1] == pytest.approx(1 - 1.62 * 0.05)


def test_with_a_template_the_difference_is_graded():
    """A map that is the template's has none, and another's difference counts, not its likeness to it."""
    rng = np.random.default_rng(0)
    maps = rng.standard_normal((2, 500))
    template = Template(maps, ("a", "b"))
    apart = 0.1 * rng.standard_normal(500)
    found = np.stack([maps[0], maps[1] + apart], axis=1)
    same, other = (
        found,
        np.stack([maps[0], maps[1] + 0.1 * rng.standard_normal(500)], axis=1),
    )
    assert likeness(found, [same] * 3, template) == pytest.approx([0, 1], abs=1e-6)
    assert likeness(found, [other] * 3, template)[1] < 0.3
    assert likeness(found, [other] * 3)[1] > 0.9


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_noise_alone_makes_no_map_unrecoverable(noise):
    """Nothing in common beyond the sphering: 300 draws, one in a hundred may be misjudged.

    More than 12 would be by chance in fewer than one of 10,000 runs of this test.
    """
    chance, size = np.random.default_rng(3), 8
    n_numbers = size * (size + 1) // 2
    misjudged = 0
    for _ in range(300):
        released = ReleasedMean(1, noise * chance.standard_normal(n_numbers), noise, 100)
        misjudged += likeness_unclipped(np.eye(size), released, 1.0, np.eye(size)).min() < UNCHANGED
    assert misjudged <= 12


def test_much_in_common_after_whitening_is_not_recoverable():
    strong = svec(np.diag([0.9, -0.9, 0, 0, 0, 0, 0, 0]) / np.sqrt(2) + 0.4 * np.ones((8, 8)) / 8)
    released = ReleasedMean(1, strong, 0.01, 100)
    turned = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0]
    assert likeness_unclipped(np.eye(8), released, 1.0, turned).min() < UNCHANGED
