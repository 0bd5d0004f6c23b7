"""The capePCA experiment, small: it runs, and cape has the noise of pooled at the paper's calibration."""

import csv

import pytest

from paper.pca_energy import main


def test_quick_version_writes_table_and_figure(tmp_path):
    main(["--quick", "--out", str(tmp_path / "results")])
    with (tmp_path / "results/pca_energy.csv").open() as file:
        rows = {(r["calibration"], r["mechanism"], float(r["epsilon"])): r for r in csv.DictReader(file)}
    assert (tmp_path / "results/pca_energy.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "results/pca_energy.svg").read_text().lstrip().startswith("<?xml")
    assert "Lemma 1" in (tmp_path / "RESULTS.md").read_text()
    pooled, cape, conventional = (
        float(rows["paper", m, 5.0]["noise"]) for m in ("pooled", "cape", "conventional")
    )
    assert cape == pytest.approx(pooled, rel=1e-4)
    assert conventional == pytest.approx(pooled * 2, rel=1e-4)  # sqrt(S) with four sites
    # ... which is not the same privacy
    assert float(rows["paper", "cape", 5.0]["exact_epsilon"]) > float(
        rows["paper", "pooled", 5.0]["exact_epsilon"]
    )
    for (calibration, _, epsilon), row in rows.items():
        if calibration == "exact":
            assert float(row["exact_epsilon"]) == pytest.approx(epsilon)
