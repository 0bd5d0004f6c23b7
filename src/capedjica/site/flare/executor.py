"""A site's end of FLARE."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply as make_cell_reply
from nvflare.fuel.f3.message import Message

from capedjica.errors import ProtocolError
from capedjica.flare.wire import CHANNEL, LARGE, PARCEL, TOPIC
from capedjica.site.flare.desk import Desk, Handle


class AnsweringExecutor(Executor):  # type: ignore[misc]
    """Answers the aggregator's messages with what :meth:`open` returns, for as long as the job runs.

    An exception of a handler would fail the whole job, and its text be logged by FLARE: none gets out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._desk: Desk | None = None
        self._aggregator = ""

    @abstractmethod
    def open(self, settings: Path) -> Handle:
        """Return what answers; ``settings`` is the kit's folder ``local``.

        A ProtocolError is told to the aggregator, so it says nothing private.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Must not raise."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin and end with the job."""
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            self._desk = self._open_desk(Path(engine.get_workspace().get_site_config_dir()))
            self._aggregator = FQCN.join([FQCN.ROOT_SERVER, fl_ctx.get_job_id()])
            engine.register_aux_message_handler(TOPIC, self._receive_large)
            engine.get_cell().core_cell.register_request_cb(CHANNEL, TOPIC, self._receive_small)
        elif event_type == EventType.END_RUN and self._desk is not None:
            self._desk.close()
            self.close()

    def _open_desk(self, settings: Path) -> Desk:
        try:
            return Desk(self.open(settings))
        except ProtocolError as error:
            return Desk(None, refusal=str(error))
        except Exception:
            self.logger.exception("cannot answer")
            return Desk(None, refusal="it cannot answer; its own log says why")

    def _receive_small(self, message: Message) -> Message:
        """Return the slip for a parcel that came as one message; none where it has to go as a stream."""
        parcel, origin = message.payload, message.get_header(MessageHeaderKey.ORIGIN)
        if self._desk is None or origin != self._aggregator or not isinstance(parcel, bytes | bytearray):
            return make_cell_reply(CellReturnCode.INVALID_REQUEST)
        slip = self._desk.receive(bytes(parcel))
        return make_cell_reply(CellReturnCode.OK, body=slip if len(slip) <= LARGE else None)

    def _receive_large(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        parcel = request.get(PARCEL)
        if self._desk is None or not isinstance(parcel, bytes):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        reply = make_reply(ReturnCode.OK)
        reply[PARCEL] = self._desk.receive(parcel)
        return reply

    def execute(self, task_name: str, shareable: Any, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Refuse tasks: there are none."""
        return make_reply(ReturnCode.TASK_UNKNOWN)
