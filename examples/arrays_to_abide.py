"""Region time series in one NumPy archive, laid out as nilearn's fetcher leaves ABIDE.

The archive holds one (time, regions) array per participant; the table says of which site each one is
(columns ``participant_id`` and ``site``). Then continue with docs/user-guide/getting-started.md,
"ABIDE from nilearn".

Run: python examples/arrays_to_abide.py timeseries.npz participants.tsv nilearn_data
"""

import csv
import sys
from pathlib import Path

import numpy as np


def main(archive: Path, participants: Path, out: Path) -> None:
    """Write a ``.1D`` table for each participant, and the table of all."""
    folder = out / "ABIDE_pcp" / "cpac" / "nofilt_noglobal"
    folder.mkdir(parents=True)
    with participants.open(encoding="utf-8", newline="") as file:
        people = [(row["participant_id"], row["site"]) for row in csv.DictReader(file, delimiter="\t")]
    with (out / "ABIDE_pcp" / "Phenotypic_V1_0b_preprocessed1.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("FILE_ID", "SITE_ID"), *people])
    with np.load(archive) as series:
        for name, _ in people:
            regions = "\t".join(f"#{number}" for number in range(1, series[name].shape[1] + 1))
            table = folder / f"{name}_rois_cc200.1D"
            np.savetxt(table, series[name], fmt="%.5g", delimiter="\t", header=regions, comments="")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
