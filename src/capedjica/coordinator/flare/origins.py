"""What the server takes from sites: what each says for itself, to the server, and of what a study needs.

FLARE puts its server's own credentials into every message that leaves it. Whoever was sent one, every site,
can put them into messages of its own, and FLARE then looks no further at who they say to be from: one site
could command the others in the server's name. A server of FLARE also obeys its sites in much that no study
needs: it shows the passwords of all sessions, ends jobs, and writes files that are sent to it. Here a
message is from whoever handed it over, by the certificate of that connection, ends at the server, and is on
the lists below.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any, Final

from nvflare.apis.fl_constant import ReservedTopic, ServerCommandNames
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name

from capedjica.coordinator.flare.federation import COORDINATOR

# What a site has to say to FLARE's server, and to the server's job.
_FOR_SERVERS: Final = {
    (CellChannel.CELLNET, CellChannelTopic.Bye),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Challenge),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Register),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Quit),
    (CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT),
    (CellChannel.SERVER_MAIN, CellChannelTopic.REPORT_JOB_FAILURE),
}
_FOR_JOBS: Final = {
    (STREAM_CHANNEL, STREAM_ACK_TOPIC),
    (STREAM_CHANNEL, STREAM_ERROR_TOPIC),
    (CellChannel.SERVER_COMMAND, ServerCommandNames.GET_TASK),
    (CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.SYNC_RUNNER),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.JOB_HEART_BEAT),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.TASK_CHECK),
}
_LOG: Final = logging.getLogger(__name__)


def install() -> None:
    """Let every cell of this process, which is the server's, take only what a site may say."""
    _check_names(ConnManager)
    _drop_what_is_not_its_own(CoreCell)


def may_be_called(name: Any, certified: Any) -> bool:
    """Whether somebody with a certificate may have a name: who gives commands is asked for no other."""
    if isinstance(name, str):
        name = FQCN.normalize(name)  # as FLARE does before it looks
    # defence: who-gives-commands
    return certified == COORDINATOR or not is_valid_admin_client_name(name)


def speaks_for_itself(neighbour: str, message: Message) -> bool:
    """Whether a message is from whoever handed it over, and one that a server needs.

    Parameters
    ----------
    neighbour : str
        Who handed it over: a site, ``SITE``, its job, ``SITE.JOB``, the coordinator, or the server's own job.
    message : Message
        The message, of which only headers were read.
    """
    root = FQCN.get_root(neighbour)
    if root == FQCN.ROOT_SERVER:
        return True
    origin, destination = (
        message.get_header(key) for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION)
    )
    if not (isinstance(origin, str) and isinstance(destination, str)):
        return False
    # defence: in-anothers-name
    if FQCN.get_root(origin) != root or FQCN.get_root(destination) != FQCN.ROOT_SERVER:
        return False
    if (
        is_valid_admin_client_name(neighbour)
        or message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ
    ):
        return True
    # defence: what-a-server-obeys
    return _is_needed(destination, message)


def _is_needed(destination: str, message: Message) -> bool:
    channel, topic = (message.get_header(key) for key in (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC))
    to_job = destination != FQCN.ROOT_SERVER
    if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        channel, topic = (message.get_header(key) for key in (StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC))
        if channel == CellChannel.RETURN_ONLY:
            return bool(to_job)
    if not (isinstance(channel, str) and isinstance(topic, str)):
        return False
    return (channel, topic) in (_FOR_JOBS if to_job else _FOR_SERVERS)


def _check_names(kind: type[ConnManager]) -> None:
    plain = kind.update_endpoint

    @wraps(plain)
    def update(manager: ConnManager, connection: SfmConnection, data: Any) -> None:
        name = data.get(HandshakeKeys.ENDPOINT_NAME) if isinstance(data, dict) else None
        certified = connection.conn.get_conn_properties().get(DriverParams.PEER_CN.value)
        if not may_be_called(name, certified):
            connection.conn.close()
            raise CommError(CommError.BAD_DATA, f"{certified!r:.100} commands nobody here")
        plain(manager, connection, data)

    kind.update_endpoint = update


def _drop_what_is_not_its_own(kind: type[CoreCell]) -> None:
    plain = kind._process_received_msg

    @wraps(plain)
    def process(cell: CoreCell, endpoint: Endpoint, connection: Connection, message: Message) -> None:
        if speaks_for_itself(endpoint.name, message):
            plain(cell, endpoint, connection, message)
        else:
            _LOG.warning("dropped a message that %r had no reason to send", endpoint.name)

    kind._process_received_msg = process
