"""``CapePCA``: energy captured, neighbours, and the paper's calibration."""

import numpy as np
import pytest

from capedjica import CapePCA
from capedjica.errors import InputError
from capedjica.metrics import captured_energy

D, K, S = 24, 4, 5


def make(n_samples=400, per_subject=1, seed=0):
    """Samples within the unit ball, with K strong directions; each site a list of subjects."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((D, D)))[0]
    spectrum = np.concatenate([np.linspace(1, 0.6, K), np.full(D - K, 0.05)])
    rows = rng.standard_normal((S * n_samples, D)) * np.sqrt(spectrum) @ basis.T
    rows /= np.linalg.norm(rows, axis=1).max()
    sites = rows.reshape(S, n_samples // per_subject, per_subject, D)
    return [list(site) for site in sites], rows.T @ rows / len(rows)


def energy(estimator, covariance):
    return captured_energy(estimator.components_.T, covariance, relative=True)


@pytest.mark.parametrize("neighbour", ["subject", "sample"])
def test_without_noise_all_energy_is_captured(neighbour):
    sites, covariance = make(200, per_subject=8)
    estimator = CapePCA(K, mechanism="none", neighbour=neighbour).fit(sites)
    assert energy(estimator, covariance) == pytest.approx(1, abs=1e-5)
    assert estimator.components_ @ estimator.components_.T == pytest.approx(np.eye(K), abs=1e-9)


def test_energy_grows_with_epsilon_and_falls_from_pooled_to_local():
    sites, covariance = make(400)
    values = {
        (mechanism, epsilon): np.mean(
            [
                energy(
                    CapePCA(
                        K, epsilon, neighbour="sample", mechanism=mechanism, insecure_noise_seed=seed
                    ).fit(sites),
                    covariance,
                )
                for seed in range(4)
            ]
        )
        for mechanism in ("pooled", "cape", "conventional", "local")
        for epsilon in (1.0, 20.0)
    }
    for mechanism in ("pooled", "cape", "conventional"):
        assert values[mechanism, 20.0] > values[mechanism, 1.0]
    assert values["pooled", 20.0] > 0.95
    assert values["pooled", 1.0] > values["conventional", 1.0]
    assert values["cape", 20.0] > values["local", 20.0]


def test_a_sample_is_a_unit_of_its_own():
    sites, _ = make(40, per_subject=8)
    subject, sample = (CapePCA(K, 1.0, neighbour=n).fit(sites).privacy_ for n in ("subject", "sample"))
    # eight times as many units: an eighth of the noise
    assert subject.releases[0].noise / sample.releases[0].noise == pytest.approx(8, rel=1e-6)
    assert (subject.neighbour, subject.units_per_subject) == ("subject", 1)
    assert (sample.neighbour, sample.units_per_subject) == ("sample", 8)
    assert str(subject).startswith("Each participant (all of their data)")
    assert str(sample).startswith("Each single time point")
    assert subject.subject_epsilon == subject.epsilon == sample.epsilon == 1.0


def test_a_subject_of_many_samples_is_not_told_the_epsilon_of_one():
    sites, _ = make(400, per_subject=200)
    sites[2].append(sites[2][0][:50])
    privacy = CapePCA(K, 1.0, neighbour="sample").fit(sites).privacy_
    assert privacy.units_per_subject == 200
    assert privacy.subject_epsilon == pytest.approx(1664.7, abs=0.1)
    assert "a participant with up to 200 time points is protected only with epsilon 1665" in str(privacy)


@pytest.mark.parametrize("neighbour", ["subject", "sample"])
def test_seeded_noise_has_no_finite_cost(neighbour):
    sites, _ = make(40, per_subject=8)
    privacy = CapePCA(K, 1.0, neighbour=neighbour, insecure_noise_seed=1).fit(sites).privacy_
    (release,) = privacy.releases
    costs = [privacy.epsilon, privacy.mu, privacy.spent_epsilon, privacy.spent_mu, privacy.subject_epsilon]
    costs += [release.mu, *release.site_mu.values(), *privacy.site_epsilon.values()]
    assert costs == [np.inf] * len(costs)
    assert privacy.nominal_epsilon == 1.0


def test_transform_projects():
    sites, _ = make(40, per_subject=8)
    estimator = CapePCA(K, 1.0).fit(sites)
    assert estimator.transform(sites[0][0]).shape == (8, K)
    assert len(estimator.transform(sites[0])) == len(sites[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components must be a whole number of at least 1, got 0"),
        ({"n_components": 99}, "n_components must be at most 24, the number of features of X; got 99"),
        ({"clip": 0.0}, "clip must be a finite number above 0, got 0.0"),
        ({"neighbour": "site"}, "neighbour must be 'subject' or 'sample', got 'site'"),
        ({"epsilon": None}, "epsilon must be given for mechanism 'cape'"),
    ],
)
def test_bad_input_is_named(options, message):
    sites, _ = make(40, per_subject=8)
    with pytest.raises(InputError, match=message):
        CapePCA(**{"n_components": K, "epsilon": 1.0, **options}).fit(sites)
