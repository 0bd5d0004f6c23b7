"""The aggregator's end of FLARE.

Parcels travel in one of two ways. As a single message of FLARE's cells, the round trip to four sites takes a
quarter of what it takes as a stream, which is how FLARE carries everything else; but a single message must
arrive as a whole in the time allowed, and a stream only make progress. So what is large goes as a stream. An
answer that turns out to be large is asked for again as one: a site knows a parcel by its number.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.core_cell import TargetMessage
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from capedjica.coordinator.flare.courier import Send
from capedjica.flare.wire import CHANNEL, LARGE, PARCEL, TOPIC


class ConductingController(Controller):  # type: ignore[misc]
    """Runs :meth:`conduct` as a workflow of FLARE; talks to the executors by pushed messages only."""

    @abstractmethod
    def conduct(self, send: Send, settings: Path, ended: Callable[[], bool]) -> None:
        """Do the work; ``settings`` is the kit's folder ``local``. Must not raise."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the study."""
        engine = fl_ctx.get_engine()
        settings = Path(engine.get_workspace().get_site_config_dir())
        send = _sender(engine, fl_ctx.get_job_id())
        self.conduct(send, settings, lambda: bool(abort_signal.triggered))

    def process_result_of_unknown_task(self, client: Any, task_name: str, *_: Any) -> None:
        """Ignore the result of a task: there are none."""
        logging.getLogger("capedjica.run").warning("a site sent the result of a task that was never given")


def _sender(engine: Any, job: str) -> Send:
    def send(parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        # Asked for a site that is not part of the job, FLARE would ask none of the others either.
        known = {
            name: data for name, data in parcels.items() if engine.get_client_from_name(name) is not None
        }
        small = {name: data for name, data in known.items() if len(data) <= LARGE}
        slips = _send_small(engine, job, small, seconds) if small else {}
        large = {name: data for name, data in known.items() if name not in small or slips.get(name) == b""}
        if large:
            slips |= _send_large(engine, large, seconds)
        return {name: slip for name, slip in slips.items() if slip}

    return send


def _send_small(engine: Any, job: str, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
    """Send each parcel as one message; the slip of an answer that is too large for that is empty."""
    places = {FQCN.join([engine.get_client_from_name(name).get_fqcn(), job]): name for name in parcels}
    messages = {
        place: TargetMessage(place, CHANNEL, TOPIC, Message(payload=parcels[name]))
        for place, name in places.items()
    }
    replies = engine.get_cell().core_cell.broadcast_multi_requests(messages, seconds, optional=True)
    return {
        places[place]: bytes(reply.payload or b"") for place, reply in replies.items() if _is_sound(reply)
    }


def _is_sound(reply: Message) -> bool:
    sound: bool = reply.get_header(MessageHeaderKey.RETURN_CODE) == CellReturnCode.OK
    return sound and isinstance(reply.payload, bytes | bytearray | memoryview | None)


def _send_large(engine: Any, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
    """Send parcels as streams; equal ones at once, as FLARE's multicast_aux_requests fails in 2.9.0."""
    same: dict[bytes, list[str]] = {}
    for name, parcel in parcels.items():
        same.setdefault(parcel, []).append(name)
    with ThreadPoolExecutor(len(same)) as pool:
        sent = [pool.submit(_stream, engine, parcel, names, seconds) for parcel, names in same.items()]
    replies = {name: reply for one in sent for name, reply in one.result().items()}
    return {name: reply[PARCEL] for name, reply in replies.items() if _is_slip(reply)}


def _stream(engine: Any, parcel: bytes, names: list[str], seconds: float) -> dict[str, Any]:
    # A context of its own for each call: blocks of masks are made in a second thread.
    with engine.new_context() as fl_ctx:
        replies: dict[str, Any] | None = engine.send_aux_request(
            targets=names,
            topic=TOPIC,
            request=_request(parcel),
            timeout=seconds,
            fl_ctx=fl_ctx,
            optional=True,
        )
    # FLARE returns nothing at all where it failed.
    return replies or {}


def _request(parcel: bytes) -> Shareable:
    request = Shareable()
    request[PARCEL] = parcel
    return request


def _is_slip(reply: Any) -> bool:
    return (
        isinstance(reply, Shareable)
        and reply.get_return_code() == ReturnCode.OK
        and isinstance(reply.get(PARCEL), bytes)
    )
