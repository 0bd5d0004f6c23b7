"""The capePCA experiment, small: it runs, and cape has the noise of pooled at the paper's calibration."""

import csv

import pytest

from paper.pca_energy import FULL, QUICK, Row, cells, main, over_epsilon, over_samples, over_sites, runs
from paper.shared.pca_runs import make_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pca_energy")
    main(["--quick", "--out", str(folder / "results"), "--runs", str(folder / "runs")])
    return folder


@pytest.fixture(scope="module")
def rows(folder):
    with (folder / "results/pca_energy.csv").open() as file:
        return list(csv.DictReader(file))


def at(rows, calibration, mechanism, epsilon, n_samples=400, n_sites=4):
    wanted = (calibration, mechanism, epsilon, n_samples, n_sites)
    names = ("calibration", "mechanism", "epsilon", "n_samples", "n_sites")
    found = [r for r in rows if tuple(type(w)(r[n]) for n, w in zip(names, wanted, strict=True)) == wanted]
    (row,) = found
    return {name: float(row[name]) for name in ("noise", "exact_epsilon", "captured_energy")}


def test_quick_version_writes_everything(folder):
    assert (folder / "results/pca_energy.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "results/pca_energy.svg").read_text().lstrip().startswith("<?xml")
    assert "Lemma 1" in (folder / "RESULTS.md").read_text()


def test_same_tau_is_the_same_noise_but_not_the_same_privacy(rows):
    pooled, cape, conventional = (at(rows, "paper", m, 5.0) for m in ("pooled", "cape", "conventional"))
    assert cape["noise"] == pytest.approx(pooled["noise"], rel=1e-4)
    assert conventional["noise"] == pytest.approx(2 * pooled["noise"], rel=1e-4)  # sqrt(S), four sites
    assert cape["exact_epsilon"] > pooled["exact_epsilon"]


def test_noise_over_samples_and_sites(rows):
    """At equal exact epsilon cape has S/S_H times the variance of pooled, conventional S times it."""
    for place, honest in (({}, 3), ({"n_samples": 200}, 3), ({"n_sites": 8}, 6)):
        pooled, cape, conventional = (
            at(rows, "exact", m, 5.0, **place)["noise"] for m in ("pooled", "cape", "conventional")
        )
        sites = place.get("n_sites", 4)
        assert (cape / pooled) ** 2 == pytest.approx(sites / honest, rel=1e-3)
        assert (conventional / pooled) ** 2 == pytest.approx(sites, rel=1e-3)
    half, whole = (at(rows, "exact", "cape", 5.0, n_samples=n)["noise"] for n in (200, 400))
    assert half == pytest.approx(2 * whole, rel=1e-3)


def test_masks_of_the_paper_cost_noise_at_equal_epsilon(rows):
    """S/(S+1)(1 + S/S_H) times the variance of pooled: four sites, one colluding."""
    pooled, cape = at(rows, "exact", "pooled", 5.0), at(rows, "exact, the paper's masks", "cape", 5.0)
    assert (cape["noise"] / pooled["noise"]) ** 2 == pytest.approx(4 / 5 * (1 + 4 / 3), rel=1e-3)


def test_repeats_have_data_of_their_own():
    first, again, other = (make_data(QUICK.spectrum, repeat)[1] for repeat in (0, 0, 1))
    assert (first == again).all()
    assert not (first == other).any()


def test_exact_calibration_spends_what_the_axis_says(rows):
    for row in rows:
        if row["calibration"].startswith("exact"):
            assert float(row["exact_epsilon"]) == pytest.approx(float(row["epsilon"]))


def test_every_panel_has_its_runs_and_shares_those_it_can():
    """Epsilon for both calibrations, N and S; the middle of the latter two is a point of the first."""
    points = (len(cells(FULL)) - len(FULL.epsilons)) // 4  # the paper's masks are cape's alone
    assert points == 2 * len(FULL.epsilons) + len(FULL.samples) + len(FULL.sites) - 2
    assert len(set(runs(FULL))) == len(runs(FULL)) == len(cells(FULL)) * FULL.repetitions


def test_panels_choose_their_rows(rows):
    typed = [
        Row(**{n: t(r[n]) for n, t in zip(r, (str, str, int, int, *[float] * 5), strict=True)}) for r in rows
    ]
    assert len(over_epsilon(QUICK, typed, "paper")) == len(over_epsilon(QUICK, typed, "exact")) == 8
    for mechanism in ("pooled", "cape"):  # in the order of the axis
        samples = [row.n_samples for row in over_samples(QUICK, typed) if row.mechanism == mechanism]
        sites = [row.n_sites for row in over_sites(QUICK, typed) if row.mechanism == mechanism]
        assert (tuple(samples), tuple(sites)) == (QUICK.samples, QUICK.sites)
