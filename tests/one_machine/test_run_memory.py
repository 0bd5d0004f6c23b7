"""Scans are read one at a time: a run needs little memory, however much data there are."""

import subprocess
import sys

import pytest

# The peak of a process counts that of the one it was forked from, so a small one stands between.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_memory(folder, subjects):
    """Simulate a study of 0.9 MB per subject, run it in a process of its own, return its peak in MB."""
    simulate = ["simulate", str(folder), "--subjects", str(subjects), "--components", "5"]
    simulate += ["--timepoints", "250", "--image-side", "30"]
    subprocess.run([sys.executable, "-m", "capedjica", *simulate], check=True, capture_output=True)
    command = [sys.executable, "-m", "capedjica", "run", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], check=True, capture_output=True, text=True
    )
    return int(done.stdout.split()[-1]) / 1024


def test_ten_times_the_data_take_hardly_more_memory(tmp_path):
    """135 MB of scans beside 13 MB: what is kept of a scan is 1/180 of it."""
    small = peak_memory(tmp_path / "small", 15)
    large = peak_memory(tmp_path / "large", 150)
    assert large - small < 30


@pytest.mark.full
def test_four_gigabytes_run_within_one_and_a_half(tmp_path):
    peak = peak_memory(tmp_path / "study", 4800)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.npy"))
    print(f"{size / 1e9:.2f} GB of scans, peak memory {peak / 1024:.2f} GB")
    assert size > 4e9
    assert peak < 1536
