"""The aggregator's end of FLARE, in the carrier: sends bytes to sites and hands back what came."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from capedjica.coordinator.flare.posts import RELAY, Post, write_replies
from capedjica.errors import CapedjicaError
from capedjica.flare.link import VERSION, Channel, Greeting, LinkError, answer_calls, connect
from capedjica.flare.size_limits import MAX_FRAME
from capedjica.flare.wire import PARCEL, SETTINGS, TOPIC

# How long the relay of an earlier job may still be connected.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.2


class AggregatorRelay(Controller):  # type: ignore[misc]
    """Relays the aggregator's questions to the sites, until the aggregator hangs up or the job is ended."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run until the aggregator hangs up."""
        engine = fl_ctx.get_engine()
        settings = Path(engine.get_workspace().get_site_config_dir()) / SETTINGS
        try:
            channel = self._connect(settings, abort_signal)
        except LinkError as error:
            self.logger.error(f"no aggregator to work for: {error}")
            return
        over = threading.Event()
        with ThreadPoolExecutor(1) as watching, suppress(LinkError):
            watching.submit(_hang_up_with, abort_signal, over, channel)
            try:
                answer_calls(channel, lambda data: _post(engine, data))
            finally:
                over.set()

    def _connect(self, settings: Path, abort_signal: Signal) -> Channel:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                path = Path(json.loads(settings.read_text())["socket"])
                return connect(path, Greeting(VERSION, RELAY), MAX_FRAME)
            except (CapedjicaError, OSError, ValueError, LookupError, TypeError) as error:
                if time.monotonic() > until or abort_signal.triggered:
                    raise LinkError(str(error)) from None
            time.sleep(_PAUSE)

    def process_result_of_unknown_task(self, client: Any, task_name: str, *_: Any) -> None:
        """Ignore the result of a task: there are none."""


def _hang_up_with(abort_signal: Signal, over: threading.Event, channel: Channel) -> None:
    """Hang up when FLARE ends the job."""
    while not abort_signal.triggered and not over.wait(0.1):
        pass
    channel.close()


def _post(engine: Any, data: bytes) -> bytes:
    """Send a parcel to each site and return what came back in time."""
    try:
        post = msgspec.msgpack.decode(data, type=Post)
    except ValueError:
        return write_replies({})
    # Asked for a site that is not part of the job, FLARE would ask none of the others either.
    names = {client.name for client in engine.get_clients()}
    known = {name: parcel for name, parcel in post.parcels.items() if name in names}
    return write_replies(_send(engine, known, post.seconds) if known else {})


def _send(engine: Any, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
    """Send equal parcels at once, as FLARE's multicast_aux_requests fails in 2.9.0."""
    same: dict[bytes, list[str]] = {}
    for name, parcel in parcels.items():
        same.setdefault(parcel, []).append(name)
    with ThreadPoolExecutor(len(same)) as pool:
        sent = [pool.submit(_send_one, engine, parcel, names, seconds) for parcel, names in same.items()]
    replies = {name: reply for one in sent for name, reply in one.result().items()}
    return {name: reply[PARCEL] for name, reply in replies.items() if _is_sound(reply)}


def _send_one(engine: Any, parcel: bytes, names: list[str], seconds: float) -> dict[str, Any]:
    request = Shareable()
    request[PARCEL] = parcel
    # A context of its own for each call: blocks of masks are made in a second thread.
    with engine.new_context() as fl_ctx:
        replies: dict[str, Any] | None = engine.send_aux_request(
            targets=names, topic=TOPIC, request=request, timeout=seconds, fl_ctx=fl_ctx, optional=True
        )
    # FLARE returns nothing at all where it failed.
    return replies or {}


def _is_sound(reply: Any) -> bool:
    return (
        isinstance(reply, Shareable)
        and reply.get_return_code() == ReturnCode.OK
        and isinstance(reply.get(PARCEL), bytes)
        and bool(reply[PARCEL])
    )
