"""Who may say what to a site's processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey
from nvflare.private.defs import SysCommandTopic
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from capedjica.engines.flare import guard
from capedjica.engines.flare.controller import CHANNEL
from capedjica.study.federated.site_settings import COMMUNICATION

CLIENT, JOB = "s1", "s1.j1"
AUX, ADMIN, REPLY = CellChannel.AUX_COMMUNICATION, CellChannel.CLIENT_MAIN, CellChannel.RETURN_ONLY
NET = "cellnet.channel"


def welcome(own, origin, neighbour, channel, topic="any", inside=None):
    headers = {MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
    message = Message(headers | ({} if inside is None else {StreamHeaderKey.CHANNEL: inside}), None)
    return guard.is_welcome(FqcnInfo(own), origin, neighbour, message)


def streamed(own, origin, neighbour, inside):
    return welcome(own, origin, neighbour, STREAM_CHANNEL, STREAM_DATA_TOPIC, inside)


@pytest.mark.parametrize(
    ("own", "origin", "neighbour", "channel"),
    [
        (CLIENT, "server", "server", ADMIN),
        (CLIENT, JOB, JOB, ADMIN),
        (CLIENT, JOB, JOB, NET),
        (JOB, CLIENT, CLIENT, CellChannel.CLIENT_COMMAND),
        (JOB, "server.j1", "server", CHANNEL),
        (JOB, "server.j1", CLIENT, CHANNEL),
        (JOB, "server.j1", "server", AUX),
        (JOB, "server.j1", "server", REPLY),
    ],
)
def test_what_a_study_needs_is_let_in_also_as_a_stream(own, origin, neighbour, channel):
    assert welcome(own, origin, neighbour, channel)
    assert streamed(own, origin, neighbour, channel)


@pytest.mark.parametrize(
    ("own", "origin", "neighbour", "channel"),
    [
        # Another site, through an honest server and directly.
        (CLIENT, "s2", "server", ADMIN),
        (CLIENT, "s2.j1", "server", ADMIN),
        (JOB, "s2.j1", "server", AUX),
        (JOB, "s2.j1", "server", CHANNEL),
        (JOB, "s2.j1", "s2.j1", AUX),
        # A thief of the kit, from outside.
        (CLIENT, JOB, "server", ADMIN),
        (CLIENT, "s1.thief", "server", ADMIN),
        (JOB, CLIENT, "server", CellChannel.CLIENT_COMMAND),
        # Somebody on the machine who says to be the server.
        (CLIENT, "server", JOB, ADMIN),
        (CLIENT, "server", "s2", ADMIN),
        # Another job, and the coordinator's console.
        (JOB, "server.j2", "server", CHANNEL),
        (JOB, "server", "server", CHANNEL),
        (CLIENT, "server.j1", "server", ADMIN),
        (CLIENT, "_admin_1234", "server", ADMIN),
        # What no study needs.
        (CLIENT, "server", "server", NET),
        (CLIENT, "server", "server", AUX),
        (CLIENT, "server", "server", "_net_manager"),
        (CLIENT, "server", "server", "credential_manager"),
        (JOB, "server.j1", "server", "_net_manager"),
        (JOB, "server.j1", "server", CellChannel.CLIENT_COMMAND),
    ],
)
def test_everything_else_is_refused_also_as_a_stream(own, origin, neighbour, channel):
    assert not welcome(own, origin, neighbour, channel)
    assert not streamed(own, origin, neighbour, channel)


@pytest.mark.parametrize("topic", ["bulk", "stop", "change_root", "bye"])
def test_a_neighbour_may_say_goodbye_and_nothing_else_about_the_net(topic):
    assert welcome(CLIENT, "server", "server", NET, topic) == (topic == "bye")
    assert not welcome(CLIENT, "s2", "server", NET, topic)


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_name_is_an_error(origin, neighbour, channel, topic):
    """Headers come from outside; a stranger is refused, whatever it calls itself."""
    assert welcome(CLIENT, f"x{origin}", neighbour, channel, topic) is False
    assert welcome(JOB, origin.replace("s1", ""), f"x{neighbour}", channel, topic) is False


def test_commands_that_no_study_needs_are_not_there(monkeypatch):
    """Neither the shell nor anything else that FLARE may add to its list, unless it is on ours."""
    monkeypatch.setattr(FedAdminAgent, "register_processor", FedAdminAgent.register_processor)
    plain = object.__new__(FedAdminAgent)
    guarded = object.__new__(FedAdminAgent)
    plain.processors, guarded.processors = {}, {}
    for processor in ClientRequestProcessors.request_processors:
        plain.register_processor(processor)
    guard._leave_out_commands(FedAdminAgent)
    for processor in ClientRequestProcessors.request_processors:
        guarded.register_processor(processor)
    assert SysCommandTopic.SHELL in plain.processors
    assert guarded.processors.keys() == guard.COMMANDS


def test_a_party_and_its_jobs_show_each_other_certificates():
    assert COMMUNICATION["internal"]["resources"]["connection_security"] == "mtls"
    assert COMMUNICATION["allow_adhoc_conns"] is False
