"""Every figure and table of the paper: ``python -m paper [--quick] [--out FOLDER] [--abide FOLDER]``.

Runs that figures share are made first, all together, then every experiment is written. Real data are left
out where no folder is given; what is committed of them then stays as it is.
"""

from __future__ import annotations

import time
from typing import Any, Final

from paper import _common, communication, composition, effective_delta, sample_imbalance
from paper._common import Shared
from paper.pca_energy import PCA_ENERGY
from paper.spatial_maps import SPATIAL_MAPS
from paper.vary_delta import VARY_DELTA
from paper.vary_epsilon import VARY_EPSILON
from paper.vary_subjects import VARY_SUBJECTS

ALONE: Final = (effective_delta, composition, communication, sample_imbalance)
SHARED: Final[tuple[Shared[Any], ...]] = (PCA_ENERGY, VARY_EPSILON, VARY_SUBJECTS, VARY_DELTA, SPATIAL_MAPS)


def main(arguments: list[str] | None = None) -> None:
    """Make everything."""
    start = time.perf_counter()
    chosen = _common.options("Every figure and table of the paper.", arguments, shared=True)
    if chosen.abide is None:
        print("real data are left out: give their folder with --abide, or make paper ABIDE=FOLDER")
    for module in ALONE:
        module.main([*(["--quick"] if chosen.quick else []), "--out", str(chosen.out)])
    _common.make_runs([run for shared in SHARED for run in shared.all_runs(chosen)], chosen)
    for shared in SHARED:
        shared.write(chosen)
    print(f"everything in {(time.perf_counter() - start) / 60:.1f} min")


if __name__ == "__main__":
    main()
