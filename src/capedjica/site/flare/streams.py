"""Large messages at a site, which come in pieces: how many, how large, and what is said when one fails.

FLARE keeps pieces until those before them have come, as many and as large as their sender likes; it keeps
whole messages as long as their sender says, up to an hour; and it tells the sender, in words of its own,
what went wrong. Here what is ever held of one message is twice the largest that a study sends.
"""

from __future__ import annotations

import logging
import threading
from functools import wraps
from typing import Any, Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHUNK_SIZE, StreamHeaderKey

from capedjica.flare.size_limits import MAX_FRAME

# Messages that may be under way at once.
MAX_STREAMS: Final = 16
_LAST_PIECE: Final = MAX_FRAME // STREAM_CHUNK_SIZE + 1
_OPENING: Final = threading.Lock()
_LOG: Final = logging.getLogger(__name__)


def install() -> None:
    """Limit what this process keeps of large messages."""
    _limit_streams(RxTask)
    _say_no_more_than_that_it_failed(RxTask)


def is_modest(message: Message) -> bool:
    """Whether a piece is one of a message that a study could send."""
    number, place, size = (
        message.get_header(key, default)
        for key, default in (
            (StreamHeaderKey.STREAM_ID, None),
            (StreamHeaderKey.SEQUENCE, 0),
            (StreamHeaderKey.SIZE, 0),
        )
    )
    if not all(type(said) is int for said in (number, place, size)):
        return False
    # defence: pieces-within-the-limit
    if not (0 <= place <= _LAST_PIECE and 0 <= size <= MAX_FRAME):
        return False
    # defence: pieces-that-wait
    return bool(len(message.payload or b"") <= STREAM_CHUNK_SIZE)


def _limit_streams(kind: type[RxTask]) -> None:
    plain = kind.find_or_create_task

    @wraps(plain)
    def find_or_create(message: Message, cell: CoreCell) -> RxTask | None:
        # defence: pieces-of-a-large-message
        if not is_modest(message):
            _LOG.warning("refused a piece of a message that no study sends")
            return None
        # A message that was asked to be kept would stay after it was read.
        # defence: messages-that-were-read
        message.set_header(StreamHeaderKey.RELIABLE, False)
        known = (message.get_header(MessageHeaderKey.ORIGIN), message.get_header(StreamHeaderKey.STREAM_ID))
        with _OPENING:
            with kind.map_lock:
                n_open = sum(not (task.completed or task.failed) for task in kind.rx_task_map.values())
                # defence: few-streams
                may_begin = known in kind.rx_task_map or n_open < MAX_STREAMS
            if may_begin:
                return plain(message, cell)
        _LOG.warning("refused a stream beside %d others", MAX_STREAMS)
        return None

    kind.find_or_create_task = staticmethod(find_or_create)


def _say_no_more_than_that_it_failed(kind: type[RxTask]) -> None:
    plain = kind._send_error

    @wraps(plain)
    def send(task: RxTask, error_msg: Any, error_type: Any = None) -> None:
        # defence: why-a-stream-failed
        plain(task, "the message did not arrive", error_type)

    kind._send_error = send
