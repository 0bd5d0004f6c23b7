"""Every figure and table of the paper: ``python -m paper [--quick] [--out FOLDER] [--abide FOLDER]``.

Runs that figures share are made first, all together, then every experiment is written. Real data are left
out where no folder is given; what is committed of them then stays as it is.

What it takes, in seconds of one quiet core, from which grids and repeats were chosen (R = 20, 250 time points
and 900 pixels):

=======================================  ========  ========
one of                                    M = 256  M = 1024
=======================================  ========  ========
iteration of capeDJICA                      0.008     0.025
capeDJICA, tuned: 300 iterations              2.5       7.5
capeDJICA, until its rule stops it         0.4-8      1-25
the same without noise                         8        25
the same at one site alone               0.2-0.8   0.5-6.5
capePCA of the images                         1.5         7
djICA to convergence                          2.5        10
DP-djICA, 100 iterations                        5        20
subject, data already simulated               0.4       2-3
=======================================  ========  ========

Fifty components are five times the work. The pooled ICA that stands for the truth of the real data takes 20
seconds for 20 components and 70 for 50. The whole took 69 minutes of processor time with the real data, and
52 minutes on two cores that did other work besides.
"""

from __future__ import annotations

import time
from typing import Any, Final

from paper import communication, composition, effective_delta, sample_imbalance
from paper.pca_energy import PCA_ENERGY
from paper.shared import common
from paper.shared.common import Shared
from paper.spatial_maps import SPATIAL_MAPS
from paper.vary_delta import VARY_DELTA
from paper.vary_epsilon import VARY_EPSILON
from paper.vary_subjects import VARY_SUBJECTS

ALONE: Final = (effective_delta, composition, communication, sample_imbalance)
SHARED: Final[tuple[Shared[Any], ...]] = (PCA_ENERGY, VARY_EPSILON, VARY_SUBJECTS, VARY_DELTA, SPATIAL_MAPS)


def main(arguments: list[str] | None = None) -> None:
    """Make everything."""
    start = time.perf_counter()
    chosen = common.options("Every figure and table of the paper.", arguments, shared=True)
    if chosen.abide is None:
        print("real data are left out: give their folder with --abide, or make paper ABIDE=FOLDER")
    for module in ALONE:
        module.main([*(["--quick"] if chosen.quick else []), "--out", str(chosen.out)])
    common.make_runs([run for shared in SHARED for run in shared.all_runs(chosen)], chosen)
    for shared in SHARED:
        shared.write(chosen)
    print(f"everything in {(time.perf_counter() - start) / 60:.1f} min")


if __name__ == "__main__":
    main()
