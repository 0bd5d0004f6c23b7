"""A site of images needs the memory of one person's image, however many there are."""

import pytest

from benchmarks.extraction import FULL, MOST_MEMORY, compare, in_fresh_process, write_site


def test_peak_memory_of_a_small_site(tmp_path):
    write_site(tmp_path, 3, 24)
    assert in_fresh_process("memory", tmp_path, "atlas")["peak"] < MOST_MEMORY / 4


@pytest.mark.full
def test_peak_memory_of_a_site():
    for row in compare(*FULL):
        print(row)  # time depends on the machine, so it is told and not asserted
        assert row["peak"] < MOST_MEMORY
