"""A site of images needs the memory of a few images, however many there are."""

import pytest

from benchmarks.extraction import MOST_MEMORY, N_VOLUMES, TABLES, in_fresh_process, write_site


def test_peak_memory_of_a_small_site(tmp_path):
    write_site(tmp_path, 3, 24)
    assert in_fresh_process("site", "regions", tmp_path) < MOST_MEMORY / 4


@pytest.mark.full
def test_peak_memory_of_a_site(tmp_path):
    write_site(tmp_path, 64, N_VOLUMES)
    for kind in TABLES:
        assert in_fresh_process("site", kind, tmp_path) < MOST_MEMORY
