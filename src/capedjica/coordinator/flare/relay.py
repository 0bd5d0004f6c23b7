"""Relay of the aggregator in a FLARE job of the carrier: sends bytes to sites and returns their replies."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from capedjica.coordinator.flare.carrier_messages import MOST_BYTES, RELAY, Post, write_replies
from capedjica.flare.link import VERSION, Channel, Greeting, LinkError, answer_calls, connect_carrier
from capedjica.flare.wire import ANSWERS, LARGE, PARCEL, TICKET, TOPIC

# Time limits for the sites' jobs to start after this one, and for each of them to respond.
_BEGINNING: Final = 15.0
_PING: Final = 3.0
_PAUSE: Final = 0.2


class AggregatorRelay(Controller):  # type: ignore[misc]
    """Relay of the aggregator's requests to the sites, until the aggregator disconnects or the job ends."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Register the handler of answers."""
        self._desk = _Desk(fl_ctx.get_engine())

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run until the aggregator disconnects."""
        settings = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
        self._desk.await_sites(abort_signal)
        try:
            greeting = Greeting(VERSION, RELAY)
            channel = connect_carrier(settings, greeting, MOST_BYTES, lambda: abort_signal.triggered)
        except LinkError as error:
            self.logger.error(f"the aggregator cannot be reached: {error}")
            return
        over = threading.Event()
        with ThreadPoolExecutor(1) as watching, suppress(LinkError):
            watching.submit(_hang_up_with, abort_signal, over, channel, self._desk)
            try:
                answer_calls(channel, self._desk.post)
            finally:
                over.set()

    def process_result_of_unknown_task(self, client: Any, task_name: str, *_: Any) -> None:
        """Ignore the result of a task; the relay sends none."""


def _hang_up_with(abort_signal: Signal, over: threading.Event, channel: Channel, desk: _Desk) -> None:
    """Disconnect when FLARE ends the job."""
    while not abort_signal.triggered and not over.wait(0.1):
        pass
    channel.close()
    desk.close()


class _Desk:
    """Sender of parcels to sites and collector of their replies.

    Requests and answers are FLARE messages without a reply (documented timeout of 0). FLARE keeps a thread
    alive for some time for every message with a reply, which would need too many threads. A lost message is
    detected by its missing answer. Large parcels are sent as a FLARE request with a reply, whose timeout
    applies to progress and not to completion. A site with a large answer reports this, and the answer is
    then fetched by such a request.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        # The result is None if the answer is large.
        self._waiting: dict[bytes, Future[bytes | None]] = {}
        engine.register_aux_message_handler(ANSWERS, self._answered)

    def _answered(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        ticket, parcel = request.get(TICKET), request.get(PARCEL)
        answer = self._waiting.pop(ticket, None) if isinstance(ticket, bytes) else None
        # Late answers, for which no request is pending, are dropped.
        if answer is not None:
            answer.set_result(parcel if isinstance(parcel, bytes | None) else b"")
        return make_reply(ReturnCode.OK)

    def post(self, data: bytes) -> bytes:
        """Send a parcel to each site and return the replies that arrived in time."""
        try:
            post = msgspec.msgpack.decode(data, type=Post)
        except (ValueError, RecursionError):
            return write_replies({})
        # FLARE knows only the sites that are part of the job.
        members = {client.name for client in self._engine.get_clients()}
        known = {name: parcel for name, parcel in post.parcels.items() if name in members}
        return write_replies(_send(self, known, post.seconds))

    def send_small(self, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes | None]:
        """Send parcels as messages without replies; the result is None for a large answer."""
        places = {name: (secrets.token_bytes(16), Future[bytes | None]()) for name in parcels}
        self._waiting.update(places.values())
        try:
            for name, (ticket, _) in places.items():
                self._request([name], {PARCEL: parcels[name], TICKET: ticket}, 0.0)
            wait([answer for _, answer in places.values()], seconds)
            return {name: answer.result() for name, (_, answer) in places.items() if answer.done()}
        finally:
            # Later answers are dropped.
            for ticket, _ in places.values():
                self._waiting.pop(ticket, None)

    def fetch(self, name: str, parcel: bytes, seconds: float) -> bytes:
        """Return the reply to a parcel that is sent as a request; empty if there is none."""
        reply = self._request([name], {PARCEL: parcel}, seconds).get(name, {})
        answer = reply.get(PARCEL)
        return answer if isinstance(answer, bytes) else b""

    def _request(self, names: list[str], content: Mapping[str, bytes], seconds: float) -> dict[str, Any]:
        """Send a message to sites and return the valid replies; none with a timeout of 0 seconds."""
        request = Shareable()
        request.update(content)
        # Each call has its own context, as blocks of masks are prepared in a second thread.
        with self._engine.new_context() as fl_ctx:
            replies = self._engine.send_aux_request(names, TOPIC, request, seconds, fl_ctx, optional=True)
        # FLARE returns None if it failed.
        return {
            name: reply
            for name, reply in (replies or {}).items()
            if isinstance(reply, Shareable) and reply.get_return_code() == ReturnCode.OK
        }

    def close(self) -> None:
        """End all pending requests."""
        for ticket in list(self._waiting):
            if (answer := self._waiting.pop(ticket, None)) is not None:
                answer.set_result(b"")

    def await_sites(self, abort_signal: Signal) -> None:
        """Wait until the jobs of all sites have started, as earlier messages would be lost."""
        missing, until = {one.name for one in self._engine.get_clients()}, time.monotonic() + _BEGINNING
        while missing and time.monotonic() < until and not abort_signal.triggered:
            missing -= self._request(sorted(missing), {}, _PING).keys()
            if missing:
                time.sleep(_PAUSE)


def _send(desk: _Desk, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
    """Send a parcel to each site and return the replies that arrived in time."""
    small = {name: parcel for name, parcel in parcels.items() if len(parcel) <= LARGE}
    answers = desk.send_small(small, seconds)
    large = [name for name in parcels if name not in small or answers.get(name, b"") is None]
    with ThreadPoolExecutor(max(1, len(large))) as together:
        fetched = together.map(lambda name: desk.fetch(name, parcels[name], seconds), large)
        whole = dict(zip(large, fetched, strict=True))
    return {name: answer for name, answer in {**answers, **whole}.items() if answer}
