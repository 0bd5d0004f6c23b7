"""No file is read or written for a message, and nothing is fetched for one."""

import struct
import uuid

import msgpack
import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import decode_payload, encode_payload
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager
from nvflare.fuel.utils.fobs.fobs import Packer
from nvflare.private.admin_defs import Message as Command
from nvflare.private.aux_runner import AuxRunner

from capedjica.flare import unpacking

HEADER = struct.Struct(">BBQ")
MAIN, BLOB, FILE = 100, 102, 103
SECRET = b"what is in a file of the site"


@pytest.fixture
def flare(monkeypatch):
    """FLARE as it is, for as long as a test."""
    flare_decomposers.register()
    for owner, name in (
        (Packer, "unpack"),
        (DatumManager, "externalize"),
        (lobs, "get_datum_dir"),
        (lobs, "get_dot_handler"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))


def packed(kind, data, by="DataClassDecomposer"):
    decomposer = f"nvflare.fuel.utils.fobs.decomposer.{by}"
    return {"__fobs_type__": kind, "__fobs_dc__": decomposer, "__fobs_data__": data}


def wire(body, *sections):
    data = msgpack.packb(body)
    return HEADER.pack(MAIN, 0, len(data)) + data + b"".join(sections)


def section(marker, data, dot=0, name=None):
    return HEADER.pack(marker, dot, 16 + len(data)) + (name or uuid.uuid4()).bytes + data


def unpack(data):
    message = Message({MessageHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS}, data)
    decode_payload(message)
    return message.payload


def pack(thing):
    message = Message({}, thing)
    encode_payload(message)
    parts = message.payload if isinstance(message.payload, list) else [message.payload]
    return b"".join(bytes(part) for part in parts)


def asking_for(file):
    """A message whose cookie is a file of whoever receives it."""
    value = {"datum_id": str(uuid.uuid4()), "datum_type": 3, "dot": 0, "value": str(file)}
    cookie = packed("nvflare.fuel.utils.fobs.datum.Datum", {"data": value})
    headers = {ReservedHeaderKey.HEADERS: {ReservedHeaderKey.COOKIE_JAR: {"c": cookie}}}
    return wire(packed("nvflare.apis.shareable.Shareable", headers, "DictDecomposer"))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "identity.pem").write_bytes(SECRET)
    return tmp_path / "identity.pem"


def test_flare_by_itself_hands_over_a_file(flare, file):
    """What the others are about: FLARE answers any message of this kind, known or not, by its cookie."""
    answer = AuxRunner(None).dispatch("any", unpack(asking_for(file)), FLContext())
    assert SECRET in pack(answer)


def test_no_file_is_read_for_a_message(flare, file):
    """Neither where it is unpacked nor, should it have got in otherwise, where it is packed."""
    received = unpack(asking_for(file))
    unpacking.install()
    with pytest.raises(ValueError, match="a kind that is not expected"):
        unpack(asking_for(file))
    with pytest.raises(ValueError, match="not to hold a file"):
        pack(AuxRunner(None).dispatch("any", received, FLContext()))
    with pytest.raises(ValueError, match="not to hold a file"):
        pack({"deep": [Datum.file_datum(str(file))]})


def test_no_file_is_written_for_a_message(flare, tmp_path, monkeypatch):
    """FLARE by itself would, in a folder that all users of the machine share, through links of theirs too."""
    monkeypatch.setenv("NVFLARE_DATUM_DIR", str(tmp_path))
    data = wire({"a": 1}, section(FILE, b"evil"))
    unpacking.install()
    with pytest.raises(ValueError, match="a message held a file"):
        unpack(data)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_fetched_for_a_message(flare, monkeypatch):
    """FLARE by itself would ask whomever the message names."""
    asked = []

    class Handler:
        def process_datum(self, datum, manager):
            asked.append(datum.value)

    monkeypatch.setattr(lobs, "get_dot_handler", lambda kind: Handler())
    data = wire({"a": 1}, section(BLOB, b"somewhere", dot=5))
    unpack(data)
    assert asked == [b"somewhere"]
    unpacking.install()
    with pytest.raises(RuntimeError, match="cannot find handler"):
        unpack(data)
    assert len(asked) == 1


def test_a_site_unpacks_the_kinds_that_it_knows(flare):
    """Large parts, which FLARE packs apart, included."""
    unpacking.install()
    unpacking.take_known_types_only()
    parcel = Shareable()
    parcel["parcel"] = bytes(range(256)) * (11 << 12)
    assert unpack(pack(parcel))["parcel"] == parcel["parcel"]
    assert unpack(pack(Command("topic", b"body"))).body == b"body"
    for strange in ((1, 2), {1, 2}):
        with pytest.raises(ValueError, match="a kind that is not expected"):
            unpack(pack({"x": strange}))


@pytest.mark.parametrize("name", ["os.system", "nvflare.apis.client.Client", "", None, 7, ["x"]])
def test_a_site_unpacks_nothing_else(flare, name):
    unpacking.take_known_types_only()
    with pytest.raises((ValueError, TypeError)):
        unpack(wire(packed(name, {})))
