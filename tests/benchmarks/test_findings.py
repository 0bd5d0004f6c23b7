"""The benchmarks of findings: small runs write pages, moments agree with the protocol."""

import numpy as np
import pytest

from benchmarks.findings import simulated
from benchmarks.findings.__main__ import main
from benchmarks.findings.moments import Comparison, least_squares, terms_for
from capedjica.algorithms.glm.power import standard_error


def test_moments_without_noise_are_those_of_the_protocol():
    population = simulated.Population(100, simulated.some_effects())
    designs, outcomes = population.draw(np.random.default_rng(0))
    for mode in ("private", "public-groups"):
        comparison = Comparison(population.analysis(mode), terms_for(None, "none"))
        drawn = comparison.drawn(designs, outcomes, np.random.default_rng(1))
        run = comparison.run(designs, outcomes)
        assert drawn.effects == pytest.approx(run.effects, abs=1e-4)
        assert drawn.standard_errors == pytest.approx(run.standard_errors, rel=1e-3)


def test_least_squares_finds_the_effects():
    population = simulated.Population(3000, simulated.some_effects())
    effects, errors = least_squares(*population.draw(np.random.default_rng(2)))
    assert (np.abs(effects - population.effects) < 5 * errors).all()


def test_a_small_run_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(simulated, "EPSILONS", (1.0, 10.0))
    few = ["calibration", "--people", "100", "--repetitions", "4", "--whole", "1"]
    assert main([*few, "--output", str(tmp_path)]) == 0
    page = (tmp_path / "findings-calibration.md").read_text("utf-8")
    assert "| whole protocol |" in page
    assert (tmp_path / "findings-calibration.svg").exists()


def test_a_folder_without_data_is_an_error(tmp_path, capsys):
    assert main(["abide", str(tmp_path), "--output", str(tmp_path)]) == 1
    assert "participants.tsv" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["private", "public-groups"])
@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_planned_standard_errors_are_those_of_the_findings(mode, epsilon):
    # Before, plans left out what adjustment cannot remove, and were too small by up to a third.
    population, terms = simulated.Population(1000, np.zeros(20)), terms_for(epsilon)
    comparison = Comparison(population.analysis(mode), terms)
    chance = np.random.default_rng(5)
    stated = [
        float(np.mean(comparison.drawn(*population.draw(chance), chance).standard_errors)) for _ in range(20)
    ]
    planned = standard_error(comparison.analysis, terms, 0.95, simulated.CORRELATION)
    assert planned == pytest.approx(np.median(stated), rel=0.1)
