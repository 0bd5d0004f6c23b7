"""What a site's processes listen to: what a study needs, from the server and from the site itself.

FLARE lets a server send commands to a site's client, those of a shell among them, and asks the site's rules
about one only where the sender says that it should. It carries messages from any cell to any other, so that
sites could command each other, and every process answers questions about itself. None of that is wanted:
whatever is not on the lists below is refused before it is unpacked.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any, Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel as NetChannel
from nvflare.fuel.f3.cellnet.defs import CellChannelTopic, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN, FqcnInfo
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey
from nvflare.private.defs import CellChannel, TrainingTopic
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor

from capedjica.engines.flare.controller import CHANNEL

# What the server has to tell a site's client about jobs.
COMMANDS: Final = {
    TrainingTopic.CHECK_RESOURCE,
    TrainingTopic.CANCEL_RESOURCE,
    TrainingTopic.DEPLOY,
    TrainingTopic.START_JOB,
    TrainingTopic.NOTIFY_JOB_STATUS,
    TrainingTopic.ABORT,
}
# Replies too come as streams, under a channel of their own.
_FOR_CLIENTS: Final = {CellChannel.CLIENT_MAIN, CellChannel.RETURN_ONLY}
_FOR_JOBS: Final = {CHANNEL, CellChannel.AUX_COMMUNICATION, CellChannel.RETURN_ONLY}


def install() -> None:
    """Make every cell of this process refuse what is not welcome."""
    _refuse_unwelcome(CoreCell)
    _leave_out_commands(FedAdminAgent)


def is_welcome(own: FqcnInfo, origin: str, neighbour: str, message: Message) -> bool:
    """Whether a request may be unpacked.

    Parameters
    ----------
    own : FqcnInfo
        The cell that received it: a site's client, ``SITE``, or its job, ``SITE.JOB``.
    origin : str
        Where it says to be from. An honest server lets nobody say what it is not.
    neighbour : str
        Who handed it over, by the certificate of that connection.
    message : Message
        The request.
    """
    if FQCN.get_root(origin) == own.root:
        # From the outside only a thief of the kit would call itself so.
        return bool(FQCN.get_root(neighbour) == own.root)
    parent = "" if own.is_root else FQCN.get_parent(own.fqcn)
    if neighbour not in (FQCN.ROOT_SERVER, parent):
        return False
    channel, topic = (
        message.get_header(key, "") for key in (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC)
    )
    if (channel, topic) == (NetChannel.CELLNET, CellChannelTopic.Bye):
        return origin == neighbour
    if channel == STREAM_CHANNEL and topic == STREAM_DATA_TOPIC:
        channel = message.get_header(StreamHeaderKey.CHANNEL, "")
    if own.is_root:
        return origin == FQCN.ROOT_SERVER and channel in {*_FOR_CLIENTS, STREAM_CHANNEL}
    aggregator = FQCN.join([FQCN.ROOT_SERVER, *FQCN.split(own.fqcn)[1:]])
    return origin == aggregator and channel in {*_FOR_JOBS, STREAM_CHANNEL}


def _refuse_unwelcome(kind: type[CoreCell]) -> None:
    plain = kind._process_request

    @wraps(plain)
    def process(cell: CoreCell, origin: str, message: Message) -> Message | None:
        neighbour = message.get_prop(MessagePropKey.ENDPOINT)
        if neighbour is not None and is_welcome(cell.my_info, origin, neighbour.name, message):
            return plain(cell, origin, message)
        logging.getLogger(__name__).warning("refused a request from %r", origin)
        return make_reply(ReturnCode.INVALID_REQUEST, error="refused")

    kind._process_request = process


def _leave_out_commands(kind: type[FedAdminAgent]) -> None:
    plain = kind.register_processor

    @wraps(plain)
    def register(agent: FedAdminAgent, processor: RequestProcessor) -> Any:
        return plain(agent, processor) if set(processor.get_topics()) <= COMMANDS else None

    kind.register_processor = register
