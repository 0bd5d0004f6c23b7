"""Data are not copied: the peak of a whole run stays below 1.6 times the data it was given."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from capedjica import CapeDJICA

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def data(n_subjects, n_features):
    rng = np.random.default_rng(0)
    sources = rng.laplace(size=(250, 8)).astype(np.float32)
    mixing = rng.standard_normal((8, n_features)).astype(np.float32)
    for _ in range(n_subjects):
        rng.shuffle(sources)
        noise = rng.standard_normal((250, n_features), dtype=np.float32)
        yield sources @ mixing + noise

n_subjects, n_features = int(sys.argv[1]), int(sys.argv[2])
# compile and load everything first, on little data
CapeDJICA(4, 1.0, method="paper", max_iter=2).fit([list(data(3, n_features)) for _ in range(4)])
before = peak()
sites = [list(data(n_subjects // 4, n_features)) for _ in range(4)]
CapeDJICA(8, 1.0, method="paper", max_iter=3).fit(sites)
size = sum(subject.nbytes for site in sites for subject in site)
print((peak() - before) / size)
"""


@pytest.mark.parametrize(
    ("n_subjects", "n_features"),
    [(160, 300), pytest.param(1024, 900, marks=pytest.mark.full)],
    ids=["small", "full"],
)
def test_peak_memory(n_subjects, n_features):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(n_subjects), str(n_features)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(result.stdout) < 1.6
