"""One vector per person from a scan, and several analyses in a row: what a site makes of what it is told."""

import msgspec
import numpy as np
import pytest

from capedjica.algorithms.analysis import ReleasedMean, Replay
from capedjica.algorithms.sequence import InSequence, Part, Step
from capedjica.algorithms.state import pack
from capedjica.algorithms.tables.mean import MeanOfRows
from capedjica.algorithms.tables.values import OfScans, Values
from capedjica.errors import ProtocolError

RNG = np.random.default_rng(0)
SCANS = [RNG.standard_normal((length, 5)).astype(np.float32) for length in (40, 60, 50)]
UNMIXING = RNG.standard_normal((3, 5))


def test_an_average_is_that_over_time():
    for scan in SCANS:
        np.testing.assert_allclose(Values("average", 5).of(scan, None), scan.mean(axis=0), atol=1e-6)


def test_connectivity_is_fishers_z_of_numpys_correlations():
    for scan in SCANS:
        found = Values("connectivity", 3).of(scan, UNMIXING)
        right = np.arctanh(np.corrcoef((scan @ UNMIXING.T).T)[np.triu_indices(3, 1)])
        np.testing.assert_allclose(found, right, atol=1e-5)


def test_amplitudes_are_relative_to_the_persons_own_mean():
    for scan in SCANS:
        found = Values("amplitudes", 5).of(scan, None)
        logarithms = np.log(scan.astype(float).std(axis=0))
        np.testing.assert_allclose(found, logarithms - logarithms.mean(), atol=1e-6)
        np.testing.assert_allclose(Values("amplitudes", 5).of(7 * scan, None), found, atol=1e-5)


@pytest.mark.parametrize("kind", ["average", "connectivity", "amplitudes"])
def test_a_scan_that_cannot_be_used_is_no_number(kind):
    values = Values(kind, 5)
    for scan in (np.empty((0, 5)), np.full((9, 5), np.nan)):
        assert np.isnan(values.of(scan, None)).all()


class Unreadable(list):
    """Scans of which one cannot be had."""

    error: Exception

    def __getitem__(self, index):
        if index == 1:
            raise self.error
        return super().__getitem__(index)


@pytest.mark.parametrize("error", [MemoryError(), ValueError(), np.ones((9, 4))])
def test_one_persons_scan_changes_nobody_elses_part(error):
    """Too long for the memory, not to be read, or of another width: that person alone counts as zero."""
    if isinstance(error, Exception):
        scans = Unreadable(SCANS)
        scans.error = error
    else:
        scans = [SCANS[0], error, SCANS[2]]
    analysis = OfScans(MeanOfRows(5, 2.0), Values("average", 5), 5, 100)
    rows, right = (np.concatenate(list(analysis.site(one)(0, b"", b""))) for one in (scans, SCANS))
    assert np.isnan(rows[1]).all()
    np.testing.assert_array_equal(rows[[0, 2]], right[[0, 2]])


def test_the_memory_of_all_rows_is_in_use_before_a_scan_is_read():
    statistics = OfScans(MeanOfRows(5, 2.0), Values("average", 5), 5, 100).site(SCANS)
    assert np.isnan(statistics._rows).all()


def test_names_go_with_the_numbers():
    assert Values("connectivity", 3).names(["a", "b", "c"]) == ("a - b", "a - c", "b - c")
    assert Values("average", 3, (2, 0)).names(["a", "b", "c"]) == ("c", "a")
    assert Values("average", 3, (2, 0)).of(np.array([[1.0, 2.0, 3.0]]), None).tolist() == [3.0, 1.0]


def of_networks():
    return OfScans(MeanOfRows(3, 2.0), Values("connectivity", 3), 5, 100, "networks")


def published(networks, own=b""):
    return msgspec.msgpack.encode((networks, own))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        published(b""),
        published(pack(unmixing=UNMIXING[:2])),
        published(pack(unmixing=UNMIXING, more=UNMIXING)),
        published(pack(other=UNMIXING)),
        msgspec.msgpack.encode((pack(unmixing=UNMIXING), b"", b"")),
        msgspec.msgpack.encode({"unmixing": 1}),
    ],
)
def test_public_data_that_are_not_networks_are_refused(data):
    with pytest.raises(ProtocolError):
        list(of_networks().site(SCANS)(0, data, b""))


def test_networks_without_numbers_give_vectors_that_count_as_zero():
    site = of_networks().site(SCANS)
    rows = np.concatenate(list(site(0, published(pack(unmixing=np.full((3, 5), np.inf))), b"")))
    assert np.isnan(rows).all()


def test_rows_are_made_once_for_every_matrix():
    class Counted(list):
        n_read = 0

        def __getitem__(self, index):
            Counted.n_read += 1
            return super().__getitem__(index)

    site = of_networks().site(Counted(SCANS))
    for networks, n_read in ((UNMIXING, 3), (UNMIXING, 3), (2 * UNMIXING[::-1], 6)):
        list(site(0, published(pack(unmixing=networks)), b""))
        assert Counted.n_read == n_read


def test_a_row_depends_on_its_own_scan_alone():
    data = published(pack(unmixing=UNMIXING))
    first = np.concatenate(list(of_networks().site(SCANS)(0, data, b"")))
    others = np.concatenate(list(of_networks().site([SCANS[0], *SCANS[:0:-1]])(0, data, b"")))
    np.testing.assert_array_equal(first[0], others[0])
    np.testing.assert_array_equal(first[1:], others[:0:-1])


def test_stages_are_numbered_through_and_no_others_are_known():
    two = InSequence((Step("one", 0.25, MeanOfRows(5, 1.0)), Step("two", 0.75, of_networks())))
    assert [stage.query.label for stage in two.stages()] == [
        "one: mean of the subjects' vectors",
        "two: mean of the subjects' vectors",
    ]
    assert [stage.share for stage in two.stages()] == [0.25, 0.75]
    with pytest.raises(ProtocolError, match="there is no stage 2"):
        two.site([np.ones(5)] * 3)(2, b"", b"")


def test_each_analysis_sees_its_own_means():
    made = [ReleasedMean(stage, np.array([float(stage)]), 0.1, 9) for stage in (0, 0, 1, 2)]
    replay = Replay(made)
    for stage in (0, 0, 1):
        replay.mean(stage)
    part = Part(replay, range(1, 3))
    assert part.mean(1) == 2.0
    assert [(one.stage, float(one.value[0])) for one in part.released] == [(0, 1.0), (1, 2.0)]
