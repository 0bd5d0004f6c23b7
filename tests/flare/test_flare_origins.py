"""What the server takes from sites."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey

from capedjica.coordinator.flare.federation import COORDINATOR
from capedjica.coordinator.flare.origins import may_be_called, speaks_for_itself

REQ, REPLY, RETURN = MessageType.REQ, MessageType.REPLY, MessageType.RETURN
CONSOLE = "_admin_0d3c2f4e-5b6a-4788-9900-aabbccddeeff"


def taken(neighbour, origin, destination, channel="task", topic="heart_beat", kind=REQ, **inside):
    headers = {
        MessageHeaderKey.ORIGIN: origin,
        MessageHeaderKey.DESTINATION: destination,
        MessageHeaderKey.CHANNEL: channel,
        MessageHeaderKey.TOPIC: topic,
        MessageHeaderKey.MSG_TYPE: kind,
    }
    return speaks_for_itself(
        neighbour,
        Message(headers | {getattr(StreamHeaderKey, key): value for key, value in inside.items()}, None),
    )


@pytest.mark.parametrize(
    ("neighbour", "destination", "channel", "topic"),
    [
        ("s1", "server", "task", "challenge"),
        ("s1", "server", "task", "register"),
        ("s1", "server", "task", "heart_beat"),
        ("s1", "server", "cellnet.channel", "bye"),
        ("s1.j1", "server.j1", "server_command", "get_task"),
        ("s1.j1", "server.j1", "aux_communication", "__sync_runner__"),
        (CONSOLE, "server", "hci_channel", "any"),
        ("server.j1", "s1.j1", "any", "any"),
    ],
)
def test_what_a_study_needs_is_taken(neighbour, destination, channel, topic):
    assert taken(neighbour, neighbour, destination, channel, topic)


@pytest.mark.parametrize("kind", [REQ, REPLY, RETURN])
@pytest.mark.parametrize(
    ("neighbour", "origin", "destination"),
    [
        # In the server's name, or another site's.
        ("s2", "server", "s1"),
        ("s2.j1", "server.j1", "s1.j1"),
        ("s2.j1", "server.j1", "server.j1"),
        ("s2", "s1", "server"),
        ("s2.j1", "s1.j1", "server.j1"),
        # To another site.
        ("s2", "s2", "s1"),
        ("s2.j1", "s2.j1", "s1.j1"),
        (CONSOLE, CONSOLE, "s1"),
        ("s2", None, "server"),
        ("s2", "s2", None),
        ("s2", ["s2"], "server"),
    ],
)
def test_a_site_speaks_for_itself_and_to_the_server_alone(kind, neighbour, origin, destination):
    assert not taken(neighbour, origin, destination, kind=kind)


@pytest.mark.parametrize(
    ("destination", "channel", "topic"),
    [
        ("server", "_net_manager", "process_info"),
        ("server", "_net_manager", "stop_cell"),
        ("server", "server_parent_listener", "get_clients"),
        ("server", "server_command", "update_run_status"),
        ("server", "aux_communication", "ObjectStreamer.Request"),
        ("server", "hci_channel", "any"),
        ("server", "cellnet.channel", "bulk"),
        ("server", "credential_manager", "key_exchange"),
        ("server.j1", "server_command", "abort"),
        ("server.j1", "aux_communication", "capedjica"),
        ("server.j1", "aux_communication", "fed.event"),
        ("server", ["task"], "heart_beat"),
        ("server", None, None),
    ],
)
def test_a_site_tells_the_server_nothing_that_no_study_needs_also_in_pieces(destination, channel, topic):
    for neighbour in ("s1", "s1.j1"):
        assert not taken(neighbour, neighbour, destination, channel, topic)
        inside = {"CHANNEL": channel, "TOPIC": topic}
        assert not taken(neighbour, neighbour, destination, STREAM_CHANNEL, STREAM_DATA_TOPIC, **inside)


def test_large_answers_are_for_jobs():
    inside = {"CHANNEL": "return_only", "TOPIC": "any"}
    assert taken("s1.j1", "s1.j1", "server.j1", STREAM_CHANNEL, STREAM_DATA_TOPIC, **inside)
    assert not taken("s1", "s1", "server", STREAM_CHANNEL, STREAM_DATA_TOPIC, **inside)


ANY = st.none() | st.text(max_size=10) | st.integers() | st.binary(max_size=5) | st.lists(st.text(max_size=3))


@given(ANY, ANY, ANY, ANY, ANY)
def test_no_header_is_an_error(origin, destination, channel, topic, kind):
    assert taken("s1", origin, destination, channel, topic, kind) in (True, False)


def test_commands_are_given_under_the_coordinators_certificate_alone():
    assert may_be_called(CONSOLE, COORDINATOR)
    assert not may_be_called(CONSOLE, "s2")
    assert not may_be_called(CONSOLE, None)
    # FLARE takes spaces away before it looks.
    assert not may_be_called(f" {CONSOLE}", "s2")
    assert not may_be_called(f"{CONSOLE}\n", "s2")
    assert may_be_called("s2", "s2")
