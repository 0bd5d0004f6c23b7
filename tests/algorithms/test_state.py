"""Public state: what is packed comes back, and nothing else is read."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.testing import assert_array_equal

from capedjica.algorithms.state import pack, unpack
from capedjica.errors import ProtocolError

STATE = pack(W=np.arange(6.0).reshape(2, 3), b=[1.5, -2.0], rate=0.25)
arrays = npst.arrays(np.float64, npst.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=4))


@given(st.dictionaries(st.text(max_size=5), arrays, max_size=4))
def test_a_state_survives_the_journey_bit_for_bit(state):
    read = unpack(pack(**state))
    assert list(read) == list(state)
    for name, array in state.items():
        assert read[name].dtype == np.float64
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.tobytes()


def test_numbers_of_any_kind_become_double_precision():
    read = unpack(pack(counts=[1, 2], single=np.float32(0.5), turned=np.arange(6).reshape(2, 3).T))
    assert_array_equal(read["counts"], [1.0, 2.0])
    assert read["single"].shape == ()
    assert_array_equal(read["turned"], [[0, 3], [1, 4], [2, 5]])


@given(st.data())
def test_a_damaged_state_is_refused_or_read_but_never_crashes(data):
    damaged = bytearray(STATE)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        state = unpack(bytes(damaged))
    except ProtocolError:
        return
    assert pack(**state) == damaged


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read_but_never_crashes(data):
    try:
        state = unpack(data)
    except ProtocolError:
        return
    assert pack(**state) == data


def spelled(shape, values):
    return msgspec.msgpack.encode({"W": [shape, values]})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        STATE[:-1],
        STATE + b"\x00",
        spelled([2], bytes(8)),
        spelled([-1], bytes(8)),
        spelled([-1, -1], bytes(8)),
        spelled([0, 2**62], b""),
        spelled([0, 2**64 - 1], b""),
        spelled([1] * 65, bytes(8)),
        spelled([1.0], bytes(8)),
        spelled([1], bytes(7)),
        spelled([1], "8 bytes!"),
        msgspec.msgpack.encode({"W": [[1], bytes(8), 0]}),
        msgspec.msgpack.encode([1, 2]),
        b"\x82" + 2 * spelled([1], bytes(8))[1:],
        spelled([1], bytes(8)).replace(b"\x91\x01", b"\x91\xcc\x01"),
        b"\x91" * 10_000,
    ],
    ids=[
        "empty",
        "cut short",
        "something behind",
        "too few bytes",
        "a side to be inferred",
        "two sides to be inferred",
        "a side beyond memory",
        "a side beyond 64 bits",
        "too many dimensions",
        "a fractional side",
        "part of a number",
        "text for bytes",
        "a third field",
        "no names",
        "one name twice",
        "another spelling of 1",
        "nested too deep",
    ],
)
def test_anything_else_is_refused_in_one_short_line(data):
    with pytest.raises(ProtocolError) as error:
        unpack(data)
    assert str(error.value) == f"a public state of {len(data)} bytes is malformed"
