"""A site of images needs the memory of one person's image, however many there are."""

import pytest

from benchmarks.extraction import FULL, MOST_MEMORY, compare


@pytest.mark.parametrize(
    ("n_people", "n_volumes"), [(2, 10), pytest.param(*FULL, marks=pytest.mark.full)], ids=["small", "full"]
)
def test_peak_memory_of_a_site(n_people, n_volumes):
    for row in compare(n_people, n_volumes):
        print(row)  # time depends on the machine, so it is told and not asserted
        assert row["peak"] < MOST_MEMORY
        assert row["ours"] > 0
        assert row["nilearn"] > 0
