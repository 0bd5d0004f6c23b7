"""Predicted quality: at the planned noise, by the method's own code, and borne out by actual runs."""

import io
import json
import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from rich.console import Console

from capedjica.algorithms.parallel import one_thread
from capedjica.algorithms.pca import leading_subspace
from capedjica.algorithms.svec import svec
from capedjica.coordinator.planning import prediction as module
from capedjica.coordinator.planning.plan import plan_study, sketch
from capedjica.coordinator.planning.plan_text import show_prediction
from capedjica.coordinator.planning.prediction import (
    FACTORS,
    TEMPLATE_CORRELATION,
    NoisyMeans,
    Setup,
    SimulatedSubjects,
    as_with_more_subjects,
    near,
    predict,
    subspace_noise_factor,
    with_budget,
)
from capedjica.data import FeatureTable, make_synthetic
from capedjica.errors import InputError
from capedjica.estimators import CapeDJICA
from capedjica.metrics import matched_map_correlation, normalized_gain_index
from capedjica.study.analyses import IcaTable
from capedjica.study.public_files import hash_of
from capedjica.study.study_file import PrivacyTable, Study
from tests.support.drafts import apart

SMALL = {"n_components": 8, "n_features": 256, "scan_length": 120, "image_shape": (16, 16)}
FULL = {"n_components": 20, "n_features": 900, "scan_length": 250, "image_shape": (30, 30)}
# Prediction and median of actual runs agree up to this factor, where a gain index is between 0.01 and 0.2.
AGREEMENT = 1.5


def sketched(subjects=(128,) * 4, analysis=SMALL, **privacy):
    ica, scans = apart(analysis)
    terms = PrivacyTable(**{"epsilon": 2.0, "reserve": 0.0} | privacy)
    return sketch(subjects, IcaTable(**ica), FeatureTable(**scans), terms)


# Against actual runs


def actual(study, n_runs):
    """Median gain index and map correlation of runs of the estimator, on data and noise of other seeds."""
    method, privacy, contract = study.analysis, study.content.privacy, study.contract
    scores = []
    for seed in range(1000, 1000 + n_runs):
        data = make_synthetic(
            len(contract.subjects),
            sum(contract.subjects),
            method.n_components,
            method.scan_length,
            math.isqrt(method.n_features),
            seed,
            site_sizes=contract.subjects,
        )
        estimator = CapeDJICA(
            method.n_components,
            privacy.epsilon,
            mechanism=privacy.mechanism,
            masking=privacy.masking,
            image_shape=study.content.features.image_shape,
            insecure_noise_seed=seed,
        )
        with one_thread():
            estimator.fit(data.sites)
        maps = matched_map_correlation(estimator.components_, data.mixing.T)
        scores.append([normalized_gain_index(estimator.unmixing_ @ data.mixing), maps])
    return np.median(scores, axis=0)


@pytest.fixture
def _one_budget(monkeypatch):
    """Predict for the budget of the plan alone, which other budgets have no part in."""
    monkeypatch.setattr(module, "FACTORS", (1.0,))


def check_agreement(study, factors, n_runs):
    predicted = dict(zip(module.FACTORS, predict(study).qualities, strict=True))
    for factor in factors:
        gain, maps = actual(with_budget(study, factor), n_runs)
        assert gain / AGREEMENT < predicted[factor].gain_index < gain * AGREEMENT, (factor, gain)
        assert abs(predicted[factor].map_correlation - maps) < 0.25 * (1 - maps) + 0.02, (factor, maps)
    return predicted


@pytest.mark.parametrize(
    ("subjects", "analysis", "privacy", "side"),
    [
        ((128,) * 4, {}, {}, 30),
        ((60, 300, 100, 52), {"image_shape": None}, {"epsilon": 3.0, "masking": "paper"}, 12),
        ((128,) * 4, {}, {"mechanism": "conventional", "epsilon": 4.0}, 30),
    ],
    ids=["cape", "paper masks, unequal sites, no basis, smaller images", "conventional"],
)
@pytest.mark.usefixtures("_one_budget")
def test_a_prediction_is_borne_out_by_actual_runs(monkeypatch, subjects, analysis, privacy, side):
    monkeypatch.setattr(module, "LARGEST_SIDE", side)
    check_agreement(sketched(subjects, SMALL | analysis, **privacy), [1.0], 4)


@pytest.mark.usefixtures("_one_budget")
def test_a_study_that_is_far_too_noisy_is_predicted_to_be():
    study = sketched(epsilon=0.15)
    gain, _ = actual(study, 2)
    assert gain > 0.15
    assert predict(study).planned.gain_index > 0.15


@pytest.mark.usefixtures("_one_budget")
def test_noise_beyond_all_numbers_is_predicted_to_leave_nothing():
    study = sketched((10,) * 2, epsilon=1e-4)
    assert predict(study).planned.gain_index > 0.2


@pytest.mark.full
@pytest.mark.parametrize("shape", [(30, 30), None], ids=["basis", "no basis"])
def test_full_size_predictions_are_borne_out(shape):
    study = sketched((256,) * 4, FULL | {"image_shape": shape}, epsilon=1.0)
    predicted = check_agreement(study, [1.0, 2.0], 3)
    assert predicted[0.25].gain_index > 0.15
    assert all(predicted[factor].gain_index < 0.06 for factor in (1.0, 2.0, 4.0))


def with_method(method, folder, **privacy):
    """A study of a method, beside its template where it has one."""
    study = sketched(**privacy)
    (table,) = study.content.analyses
    changes = {"method": method}
    if method != "spatial":
        np.save(folder / "template.npy", make_synthetic(1, 2, 8, 40, 16, 0).mixing.T)
        name = {"template": "template.npy", "template_origin": "public"}
        changes |= name | {"template_sha256": hash_of(folder / "template.npy")}
    content = msgspec.structs.replace(study.content, analyses=(msgspec.structs.replace(table, **changes),))
    return Study(content, folder)


@pytest.mark.parametrize("method", ["spatial", "template", "guided"])
def test_other_methods_are_predicted_better_with_a_larger_budget(tmp_path, method):
    qualities = predict(with_method(method, tmp_path, epsilon=4.0)).qualities
    maps = [one.map_correlation for one in qualities]
    assert len(maps) == len(FACTORS)
    assert maps[-1] > maps[0] - 0.02
    assert maps[-1] > (0.8 if method != "template" else TEMPLATE_CORRELATION - 0.02)


def test_a_template_is_predicted_as_good_as_templates_are():
    data = make_synthetic(1, 2, 8, 40, 16, 0)
    found = near(data.mixing.T).maps
    for one, true in zip(found, data.mixing.T, strict=True):
        assert math.isclose(np.corrcoef(one, true)[0, 1], TEMPLATE_CORRELATION, rel_tol=1e-9)


# The noise


@pytest.mark.parametrize(
    "privacy",
    [
        {},
        {"masking": "paper"},
        {"mechanism": "conventional"},
        {"mechanism": "local"},
        {"mechanism": "pooled", "reserve": 0.05},
        {"mechanism": "none", "epsilon": None},
    ],
    ids=str,
)
def test_every_stage_has_the_noise_of_the_plan(privacy):
    study = sketched((100, 120, 140, 152), **privacy)
    setup = Setup.of(study)
    assert setup.simulated(study).noise == tuple(stage.noise for stage in plan_study(study).stages)
    assert setup.n_planned == (152 if privacy.get("mechanism") == "local" else 512)


def test_the_noise_on_the_means_is_that_of_the_plan():
    """The standard deviation of 780 numbers is off by 15% with odds below 1e-8."""
    study = sketched(subjects=(10,) * 4)
    simulated = Setup.of(study).simulated(study)
    mean = SimulatedSubjects(Setup.of(study).data(0)).means_of(simulated.method)
    noise = NoisyMeans(mean, simulated.noise, 0, 1).mean(0) - mean(0, b"", b"")
    assert noise.size == simulated.method.stages()[0].query.size == 39 * 40 // 2

    def matches(scale):
        return abs(noise.std() / (scale * simulated.noise[0]) - 1) < 0.15

    assert matches(1.0)
    assert not matches(0.7)
    assert not matches(1.3)


def lost(method, noise, seed):
    """How much of a subspace noise on its projector turns out of its place."""
    rng = np.random.default_rng(seed)
    true = np.linalg.qr(rng.standard_normal((method.n_kept, method.n_components)))[0]
    noisy = svec(true @ true.T)
    noisy = noisy + noise * rng.standard_normal(noisy.shape)
    return 1 - np.sum((true.T @ leading_subspace(noisy, method.n_components)) ** 2) / method.n_components


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_smaller_images_lose_as_much_of_the_subspace(noise):
    """Means over 4 (K - R, R) matrices are within 3%; without the factor half as much would be lost."""
    planned = sketched(analysis=SMALL | {"n_features": 400, "image_shape": None}).analysis
    smaller = sketched(analysis=SMALL | {"n_features": 196, "image_shape": None}).analysis
    factor = subspace_noise_factor(planned, smaller)
    with one_thread():
        whole, part, unscaled = (
            np.mean([lost(method, sigma, seed) for seed in range(4)])
            for method, sigma in ((planned, noise), (smaller, factor * noise), (smaller, noise))
        )
    assert part == pytest.approx(whole, rel=0.15)
    assert unscaled < 0.7 * whole


# Fewer subjects


def test_without_noise_few_subjects_stand_for_many(monkeypatch):
    """The sampling error of 64 subjects, corrected by equation (1), is that of 512: it falls as 1/sqrt(M)."""
    study, floors = sketched(mechanism="none", epsilon=None), []
    for most in (64, 512):
        monkeypatch.setattr(module, "MOST_SUBJECTS", most)
        setup = Setup.of(study)
        assert setup.n_subjects == most
        with one_thread():
            scores = [
                SimulatedSubjects(setup.data(seed)).score(setup.simulated(study), 0) for seed in range(3)
            ]
        floor = float(np.median(scores, axis=0)[0])
        floors.append((floor, float(as_with_more_subjects(np.array(floor), floor, setup))))
    (raw, corrected), (truth, same) = floors
    assert same == truth
    assert truth / 1.4 < corrected < 1.4 * truth
    assert raw > 2 * truth


def test_a_correction_never_goes_below_what_sampling_leaves():
    setup = Setup(100, 8, 120, 16, 400)
    corrected = as_with_more_subjects(np.array([0.5, 0.05, 0.03]), 0.04, setup)
    assert corrected == pytest.approx([math.sqrt(0.25 - 0.0012), math.sqrt(0.0025 - 0.0012), 0.02])


# What is shown, and what is refused


def test_without_privacy_there_is_one_budget_to_predict():
    prediction = predict(sketched((10,) * 2, mechanism="none", epsilon=None))
    assert len(prediction.qualities) == 1
    assert prediction.planned.epsilon == math.inf
    assert json.loads(json.dumps(prediction.as_dict(), allow_nan=False))["qualities"][0]["epsilon"] is None


@pytest.mark.parametrize(
    ("analysis", "message"),
    [
        ({"method": "paper", "image_shape": None}, "a prediction needs a study with a single analysis"),
        (
            {"n_components": 101, "n_features": 900, "image_shape": None, "scan_length": 200},
            "at most 100, got 101",
        ),
        ({"scan_length": 5000}, "scan_length of at most 4096, got 5000"),
    ],
    ids=str,
)
def test_what_cannot_be_predicted_is_refused(analysis, message):
    with pytest.raises(InputError, match=message):
        predict(sketched(analysis=SMALL | analysis))


@pytest.mark.parametrize(
    ("analysis", "side"),
    [
        ({}, 16),
        ({"image_shape": (8, 32)}, 16),
        ({"n_features": 3600, "image_shape": (60, 60)}, 30),
        ({"n_features": 3600, "image_shape": None}, 30),
        ({"n_features": 9, "image_shape": None}, 6),
        ({"n_components": 60, "n_features": 3600, "image_shape": (60, 60)}, 48),
        ({"n_components": 60, "n_features": 100, "image_shape": None}, 16),
    ],
    ids=str,
)
def test_images_are_about_as_large_as_planned_and_show_every_network(analysis, side):
    study = sketched(analysis=SMALL | analysis)
    setup = Setup.of(study)
    simulated = setup.simulated(study)
    assert setup.image_side == side
    assert simulated.method.n_kept > simulated.method.n_components
    assert setup.n_subjects * setup.scan_length * side**2 <= module.MOST_NUMBERS
    assert simulated.method.n_rotations == study.analysis.n_rotations


def capedjica(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "capedjica", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "", "COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        check=False,
    )


PLAN = ["plan", "--subjects", "64", "--components", "4", "--image-shape", "12x12", "--timepoints", "60"]


def test_the_chart_has_the_numbers_of_the_json():
    prediction, out = predict(sketched((20,) * 4, epsilon=4.0)), io.StringIO()
    show_prediction(prediction, Console(file=out, width=80))
    lines, numbers = out.getvalue().splitlines(), json.loads(json.dumps(prediction.as_dict()))
    assert max(map(len, lines)) <= 80
    assert [quality["epsilon"] for quality in numbers["qualities"]] == [1, 2, 4, 8, 16]
    assert [quality["planned"] for quality in numbers["qualities"]] == [False, False, True, False, False]
    for line, quality in zip(lines[3:8], numbers["qualities"], strict=True):
        assert line.strip().startswith(f"{quality['epsilon']:g}{' (planned)' if quality['planned'] else ''} ")
        gains = [quality["gain_index"], *quality["gain_index_range"]]
        assert line.split()[-4:] == [*(f"{gain:.3f}" for gain in gains), f"{quality['map_correlation']:.2f}"]
        assert gains[1] <= gains[0] <= gains[2]


def test_the_command_shows_a_chart_and_says_what_it_is_worth(cli):
    shown = capedjica(*PLAN, "--epsilon", "4", "--predict")
    assert (shown.returncode, shown.stderr) == (0, "")
    chart = shown.stdout[shown.stdout.index("Predicted quality of the maps") :]
    assert len({line.index("│") for line in chart.splitlines()[1:7]}) == 1
    words = " ".join(chart.split())
    assert "usable below 0.1" in words
    assert "Real data are harder" in words
    assert "has no privacy cost" in words
    numbers = json.loads(cli(*PLAN, "--epsilon", "4", "--predict", "--json").stdout)["prediction"]
    assert len(numbers["qualities"]) == 5
    assert numbers["caveat"] in words


def test_the_command_refuses_what_cannot_be_predicted(cli):
    result = cli(*PLAN, "--epsilon", "2", "--predict", "--method", "paper")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "'template' or 'spatial'; the plan has 'paper'" in result.stderr
