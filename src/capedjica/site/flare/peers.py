"""Who a site's processes are connected with, and what they take from whom.

A client and its job have one connection to the server each, which they made themselves, and one to each other
within the machine. FLARE makes further ones, in the clear and to any address, when a message asks for it; it
lets whoever has a certificate of the site be a part of the site, also at the server's end of a connection;
it carries messages on to others as they are; and it unpacks answers before it looks whether anybody asked.
Here names go with connections, and what comes from outside ends where it arrives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN, FqcnInfo
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

_LOG: Final = logging.getLogger(__name__)


def install() -> None:
    """Let every cell of this process keep to its neighbours."""
    # defence: names-go-with-connections
    _check_names(ConnManager)
    # defence: unasked-answers
    _drop_what_is_not_expected(CoreCell)


def is_family(own: FqcnInfo, name: str) -> bool:
    """Whether a cell is of the same site."""
    return bool(FQCN.get_root(name) == own.root)


def may_be_called(cell: CoreCell, connector: str, name: Any) -> bool:
    """Whether the other end of a connection may have a name, by which connector it came.

    The connection to the server ends at the server, and those within the machine at the site itself.
    """
    if not isinstance(name, str):
        return False
    name = FQCN.normalize(name)
    if cell.bb_ext_connector is not None and connector == cell.bb_ext_connector.handle:
        return bool(name == FQCN.ROOT_SERVER)
    internal = [one.handle for one in (cell.int_listener, cell.bb_int_connector) if one is not None]
    return connector in internal and is_family(cell.my_info, name)


def is_expected(
    own: FqcnInfo, neighbour: str, message: Message, asked: Callable[[str], Collection[str]]
) -> bool:
    """Whether a message may be looked at.

    Parameters
    ----------
    own : FqcnInfo
        The cell that received it.
    neighbour : str
        Who handed it over.
    message : Message
        The message, of which only headers were read.
    asked : callable
        Returns who was asked a question that waits for an answer; nobody if there is none by this name.
    """
    if is_family(own, neighbour):
        return True
    origin, destination, kind = (
        message.get_header(key)
        for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION, MessageHeaderKey.MSG_TYPE)
    )
    # defence: nothing-is-carried-into-a-site
    if not isinstance(origin, str) or destination != own.fqcn or is_family(own, origin):
        return False
    # FLARE would wait for a stranger's key, an hour for each message. Connections are encrypted.
    if any(message.get_header(key) for key in (MessageHeaderKey.SECURE, MessageHeaderKey.ENCRYPTED)):
        return False
    if kind == MessageType.REQ:
        return True
    given = message.get_header(MessageHeaderKey.REQ_ID)
    questions = given if isinstance(given, list) else [given]
    if not questions or not all(isinstance(one, str) and asked(one) for one in questions):
        return False
    # A question that could not be delivered is returned by whoever gave up.
    answered = kind == MessageType.REPLY and all(origin in asked(one) for one in questions)
    return answered or kind == MessageType.RETURN


def _check_names(kind: type[ConnManager]) -> None:
    plain = kind.update_endpoint

    @wraps(plain)
    def update(manager: ConnManager, connection: SfmConnection, data: Any) -> None:
        cell = manager.receivers.get(CoreCell.APP_ID)
        name = data.get(HandshakeKeys.ENDPOINT_NAME) if isinstance(data, dict) else None
        if cell is None or not may_be_called(cell, connection.conn.connector.handle, name):
            connection.conn.close()
            raise CommError(CommError.BAD_DATA, f"nobody called {name!r:.100} is expected there")
        plain(manager, connection, data)

    kind.update_endpoint = update


def _drop_what_is_not_expected(kind: type[CoreCell]) -> None:
    plain = kind._process_received_msg

    @wraps(plain)
    def process(cell: CoreCell, endpoint: Endpoint, connection: Connection, message: Message) -> None:
        def asked(question: str) -> Collection[str]:
            waiter = cell.waiters.get(question)
            return () if waiter is None else waiter.targets

        if is_expected(cell.my_info, endpoint.name, message, asked):
            plain(cell, endpoint, connection, message)
        else:
            _LOG.warning("dropped a message that %r handed over", endpoint.name)

    kind._process_received_msg = process
