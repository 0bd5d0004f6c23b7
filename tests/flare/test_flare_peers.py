"""Who a site's processes are connected with, and which messages they look at."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.fuel.f3.message import Message

from capedjica.site.flare.peers import is_expected, may_be_called

CLIENT, JOB = "s1", "s1.j1"
REQ, REPLY, RETURN = MessageType.REQ, MessageType.REPLY, MessageType.RETURN
ASKED = {"q": ["server"], "many": ["server.j1", "s1.j1"]}


def expected(own, neighbour, origin, destination, kind, number="new", **more):
    headers = {
        MessageHeaderKey.ORIGIN: origin,
        MessageHeaderKey.DESTINATION: destination,
        MessageHeaderKey.MSG_TYPE: kind,
        MessageHeaderKey.REQ_ID: number,
    }
    message = Message(headers | {getattr(MessageHeaderKey, key): value for key, value in more.items()}, None)
    return is_expected(FqcnInfo(own), neighbour, message, lambda question: ASKED.get(question, ()))


@pytest.mark.parametrize(
    ("own", "neighbour", "origin", "destination", "kind", "number"),
    [
        (CLIENT, "server", "server", CLIENT, REQ, "new"),
        (JOB, "server", "server.j1", JOB, REQ, "new"),
        (CLIENT, "server", "server", CLIENT, REPLY, "q"),
        (CLIENT, "server", "server", CLIENT, REPLY, ["q"]),
        (JOB, "server", "server.j1", JOB, REPLY, ["many"]),
        (JOB, "server", "server", JOB, RETURN, ["many"]),
        (CLIENT, JOB, JOB, "server", REQ, "new"),
        (CLIENT, JOB, JOB, CLIENT, REPLY, "q"),
        (CLIENT, CLIENT, CLIENT, CLIENT, REQ, "new"),
    ],
)
def test_what_goes_on_in_a_run_is_looked_at(own, neighbour, origin, destination, kind, number):
    assert expected(own, neighbour, origin, destination, kind, number)


@pytest.mark.parametrize(
    ("own", "neighbour", "origin", "destination", "kind", "number"),
    [
        # To be carried on, and under the site's own name.
        (CLIENT, "server", "server", JOB, REQ, "new"),
        (CLIENT, "server", "server.j1", JOB, REPLY, "many"),
        (CLIENT, "server", JOB, CLIENT, REQ, "new"),
        (JOB, "server", CLIENT, JOB, REQ, "new"),
        (JOB, "server", JOB, JOB, REPLY, "many"),
        # Answers that nobody waits for, or of others than were asked.
        (CLIENT, "server", "server", CLIENT, REPLY, "new"),
        (CLIENT, "server", "server", CLIENT, REPLY, ["q", "new"]),
        (CLIENT, "server", "s2", CLIENT, REPLY, "q"),
        (CLIENT, "server", "server", CLIENT, RETURN, ["new"]),
        (CLIENT, "server", "server", CLIENT, REPLY, []),
        (CLIENT, "server", "server", CLIENT, REPLY, None),
        (CLIENT, "server", "server", CLIENT, REPLY, [["q"]]),
        (CLIENT, "server", "server", CLIENT, "other", "q"),
    ],
)
def test_everything_else_is_dropped(own, neighbour, origin, destination, kind, number):
    assert not expected(own, neighbour, origin, destination, kind, number)


@pytest.mark.parametrize("kind", [REQ, REPLY, RETURN])
@pytest.mark.parametrize("key", ["SECURE", "ENCRYPTED"])
def test_nothing_is_asked_of_a_stranger_to_read_a_message(kind, key):
    assert expected(CLIENT, "server", "server", CLIENT, kind, "q")
    assert not expected(CLIENT, "server", "server", CLIENT, kind, "q", **{key: True})


ANY = st.none() | st.text(max_size=10) | st.integers() | st.binary(max_size=5) | st.lists(st.text(max_size=3))


@given(ANY, ANY, ANY, ANY)
def test_no_header_is_an_error(origin, destination, kind, number):
    assert expected(CLIENT, "server", origin, destination, kind, number) in (
        False,
        isinstance(origin, str) and destination == CLIENT and kind == REQ,
    )


def connected(internal):
    cell = SimpleNamespace(my_info=FqcnInfo(CLIENT), bb_ext_connector=SimpleNamespace(handle="outside"))
    cell.int_listener, cell.bb_int_connector = (
        (SimpleNamespace(handle="inside"), None)
        if internal == "listener"
        else (None, SimpleNamespace(handle="inside"))
    )
    return cell


@pytest.mark.parametrize("internal", ["listener", "connector"])
@pytest.mark.parametrize(
    "name", ["server", "s1", "s1.j1", "s1.evil", "s2", "s2.j1", "server.j1", "", None, 7]
)
def test_names_go_with_connections(internal, name):
    cell = connected(internal)
    assert may_be_called(cell, "outside", name) == (name == "server")
    assert may_be_called(cell, "inside", name) == (name in ("s1", "s1.j1", "s1.evil"))
    assert not may_be_called(cell, "another", name)
