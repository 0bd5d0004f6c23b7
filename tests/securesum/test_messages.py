import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.errors import ProtocolError
from capedjica.securesum.identity import AGGREGATOR
from capedjica.securesum.messages import (
    ENVELOPE_BYTES,
    Advertisement,
    Agreement,
    AgreementList,
    KeyList,
    MaskedInput,
    SharedKeys,
    ShareList,
    SurvivorList,
    Unmasking,
    encode,
    encode_payload,
    header,
    read_aggregator_message,
    read_site_message,
    sign,
    size_limit,
)
from capedjica.securesum.parameters import SumParameters
from tests.securesum.consortium import Consortium

CONSORTIUM = Consortium(4, length=16)
PARAMETERS = CONSORTIUM.parameters
SENDER = CONSORTIUM.names[1]
IDENTITY = CONSORTIUM.identities[SENDER]


def exactly(size):
    return st.binary(min_size=size, max_size=size)


names = st.sampled_from(CONSORTIUM.names)
FIELDS = {
    Advertisement: [exactly(32), exactly(32)],
    SharedKeys: [
        exactly(32),
        st.dictionaries(names, exactly(ENVELOPE_BYTES)),
        st.dictionaries(names, exactly(32)),
        st.dictionaries(names, exactly(32)),
    ],
    MaskedInput: [st.binary(max_size=128).map(memoryview)],
    Agreement: [exactly(32)],
    Unmasking: [st.dictionaries(names, exactly(33)), st.dictionaries(names, exactly(33))],
    KeyList: [st.lists(st.binary(max_size=300), max_size=4).map(tuple)],
    ShareList: [st.dictionaries(names, exactly(ENVELOPE_BYTES))],
    SurvivorList: [st.lists(names).map(tuple)],
    AgreementList: [st.lists(st.binary(max_size=300), max_size=4).map(tuple)],
}
SITE_KINDS = [Advertisement, SharedKeys, MaskedInput, Agreement, Unmasking]


@st.composite
def messages(draw):
    kind = draw(st.sampled_from(list(FIELDS)))
    sender = SENDER if kind in SITE_KINDS else AGGREGATOR
    return kind(*header(PARAMETERS, sender), *(draw(field) for field in FIELDS[kind]))


def read(message, data=None, parameters=PARAMETERS):
    """Send a message through its bytes."""
    if type(message) in SITE_KINDS:
        return read_site_message(data or sign(encode_payload(message), IDENTITY), parameters, type(message))
    return read_aggregator_message(data or encode(message), parameters, type(message))


def advertisement(**changes):
    message = Advertisement(*header(PARAMETERS, SENDER), bytes(32), bytes(32))
    return msgspec.structs.replace(message, **changes)


@given(messages())
def test_round_trip(message):
    assert read(message) == message


@given(messages(), st.data())
def test_truncated_or_extended_messages_are_refused(message, data):
    whole = sign(encode_payload(message), IDENTITY) if type(message) in SITE_KINDS else encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\x00"):
        with pytest.raises(ProtocolError):
            read(message, wrong or b"\xc0")


@given(messages().filter(lambda m: type(m) in SITE_KINDS), st.data())
def test_any_flipped_bit_of_a_sites_message_is_noticed(message, data):
    whole = bytearray(sign(encode_payload(message), IDENTITY))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError):
        read(message, bytes(whole))


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(data):
    for kind in SITE_KINDS:
        with pytest.raises(ProtocolError):
            read_site_message(data, PARAMETERS, kind)
    for kind in set(FIELDS) - set(SITE_KINDS):
        with pytest.raises(ProtocolError):
            read_aggregator_message(data, PARAMETERS, kind)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": 2}, "another version: 2, not 1"),
        ({"study_hash": b"\xaa" * 32}, "another study hash: aaaaaaaaaaaaaaaa…"),
        ({"roster_hash": b"\xbb" * 32}, "another roster hash"),
        ({"block": 7}, "another block: 7, not 0"),
        ({"attempt": 3}, "another attempt: 3, not 0"),
        ({"sender": "nobody"}, "no site 'nobody'"),
        ({"sender": CONSORTIUM.names[0]}, "not signed by that site's pinned key"),
        ({"sender": AGGREGATOR}, "no site 'aggregator'"),
        ({"block": -1}, "cannot be read"),
        ({"block": 2**63}, "cannot be read"),
        ({"mask_key": bytes(31)}, "cannot be read"),
        ({"sender": "x" * 65}, "cannot be read"),
        ({"sender": SENDER + "\n"}, "cannot be read"),
    ],
)
def test_a_site_message_of_another_sum_is_refused(changes, named):
    with pytest.raises(ProtocolError, match=named):
        read(advertisement(**changes))


@pytest.mark.parametrize("field", ["version", "study_hash", "roster_hash", "block", "attempt", "sender"])
def test_an_aggregator_message_of_another_sum_is_refused(field):
    other = {"version": 2, "block": 9, "attempt": 9, "sender": SENDER}.get(field, b"\x07" * 32)
    message = SurvivorList(*header(PARAMETERS, AGGREGATOR), (SENDER,))
    with pytest.raises(ProtocolError, match=field.replace("_", " ")):
        read(msgspec.structs.replace(message, **{field: other}))


def test_another_round_is_named():
    data = sign(encode_payload(advertisement()), IDENTITY)
    with pytest.raises(ProtocolError, match="sent Advertisement in the round of Unmasking"):
        read_site_message(data, PARAMETERS, Unmasking)


def test_signature_by_a_stranger_or_none_is_refused():
    payload = encode_payload(advertisement())
    for data in (payload, payload + bytes(64), sign(payload, Consortium(2).identities[CONSORTIUM.names[0]])):
        with pytest.raises(ProtocolError, match=r"signed|cannot be read"):
            read_site_message(data, PARAMETERS, Advertisement)


def test_extra_fields_and_unknown_kinds_are_refused():
    fields = [type(advertisement()).__name__, *msgspec.structs.astuple(advertisement())]
    for wrong in ([*fields, 1], fields[:-1], ["Other", *fields[1:]], dict(enumerate(fields)), fields[0]):
        with pytest.raises(ProtocolError, match="cannot be read"):
            read_site_message(
                sign(bytearray(msgspec.msgpack.encode(wrong)), IDENTITY), PARAMETERS, Advertisement
            )


def test_oversized_messages_are_refused_unread():
    short = SumParameters(PARAMETERS.study_hash, PARAMETERS.roster, 1, 0)
    data = bytes(size_limit(short) + 1)
    with pytest.raises(ProtocolError, match="too long"):
        read_site_message(data, short, MaskedInput)
    with pytest.raises(ProtocolError, match="too long"):
        read_aggregator_message(data, short, KeyList)


def test_headers_that_promise_gigabytes_are_refused():
    for bomb in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ):
        with pytest.raises(ProtocolError, match="cannot be read"):
            read_aggregator_message(b"\x98\xa7KeyList\x01" + bomb, PARAMETERS, KeyList)


def test_deep_nesting_is_refused():
    with pytest.raises(ProtocolError, match="cannot be read"):
        read_aggregator_message(b"\x91" * 5000, PARAMETERS, KeyList)


def test_error_texts_are_one_short_line_whatever_the_bytes():
    data = msgspec.msgpack.encode(["A\n" * 1000, 1])
    with pytest.raises(ProtocolError) as caught:
        read_aggregator_message(data, PARAMETERS, KeyList)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_repr_shows_no_content():
    shares = Unmasking(*header(PARAMETERS, SENDER), {SENDER: b"S" * 33}, {})
    assert repr(shares) == f"Unmasking(sender={SENDER!r}, block=0, attempt=0)"
