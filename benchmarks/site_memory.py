"""Peak memory of one site up to its masked input, in a fresh process: ``python -m benchmarks.site_memory``.

Prints JSON: the high-water marks of all Python and NumPy allocations and of the resident set, both counted
from just before the site's vector exists, in units of that vector.
"""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.sum_in_process import SumInProcess

SITES: Final = 10
LENGTH: Final = 2_000_000


def main() -> None:
    """Run rounds 1 and 2 with all sites, then let one of them make its masked input."""
    SumInProcess(SITES, 8).run()  # so that what is loaded on first use is not counted
    parties = SumInProcess(SITES, LENGTH)
    # Rounds 1 and 2 read no vector: the peers share one that takes no memory.
    nothing = np.broadcast_to(np.uint64(0), LENGTH)
    sites = {name: parties.site(name, nothing) for name in parties.identities}
    tracemalloc.start()
    resident = _peak_resident()
    vector = np.full(LENGTH, 7, dtype=np.uint64)
    measured = next(iter(sites))
    sites[measured] = parties.site(measured, vector)
    key_lists = parties.collect({name: site.start() for name, site in sites.items()})
    share_lists = parties.collect({name: sites[name].receive(keys) for name, keys in key_lists.items()})
    sites[measured].receive(share_lists[measured])
    peaks = {"allocated": tracemalloc.get_traced_memory()[1], "resident": _peak_resident() - resident}
    json.dump({what: peak / vector.nbytes for what, peak in peaks.items()}, sys.stdout)


def _peak_resident() -> int:
    """Bytes; not ru_maxrss, which a child takes over from its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
