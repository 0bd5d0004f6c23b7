"""The relay of a site's carrier: passes opaque bytes between FLARE and the agent."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from capedjica.flare.link import VERSION, Caller, Greeting, LinkError, connect_carrier
from capedjica.flare.wire import ANSWERS, LARGE, MAX_FRAME, PARCEL, TICKET, TOPIC

# Longer than the agent delays any reply.
_SECONDS: Final = 30.0
# Interval at which a silent job of the server is polled, and the silence after which it is considered gone: a
# question may wait behind a large answer on a slow line.
_LOOK: Final = 10.0
_GONE: Final = 180.0


class SiteRelay(Executor):  # type: ignore[misc]
    """Relays the aggregator's messages to the agent, for as long as the job runs.

    An exception in a handler would fail the whole job, so handlers must not raise.

    Parameters
    ----------
    insecure_noise_seed : int, optional
        Noise seed of a study with insecure_noise.
    """

    def __init__(self, insecure_noise_seed: int | None = None) -> None:
        super().__init__()
        self._seed = insecure_noise_seed
        self._caller: Caller | None = None
        self._connecting = threading.Lock()
        self._heard, self._ended = 0.0, threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start and stop with the job."""
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            self._connect(engine)
            engine.register_aux_message_handler(TOPIC, self._relay)
            self._heard = time.monotonic()
            threading.Thread(target=self._watch, args=(engine,), daemon=True, name="capedjica-watch").start()
        elif event_type == EventType.END_RUN:
            self._ended.set()
            if self._caller is not None:
                self._caller.close()

    def _watch(self, engine: Any) -> None:
        """End the job when the server's job is gone, which may happen without notice.

        Otherwise FLARE's job would ask for tasks until its client is told to end it, by a server that may
        never run again.
        """
        while not self._ended.wait(_LOOK):
            with engine.new_context() as fl_ctx:
                if time.monotonic() - self._heard > _LOOK:
                    self._ask_server(engine, fl_ctx)
                silence = time.monotonic() - self._heard
                if silence > _GONE:
                    self.system_panic(f"nothing was heard from the server for {silence:.0f} s", fl_ctx)
                    return

    def _ask_server(self, engine: Any, fl_ctx: FLContext) -> None:
        """Poll the job of the server."""
        replies = engine.send_aux_request(None, ANSWERS, Shareable(), _GONE, fl_ctx, optional=True)
        # FLARE returns None on failure.
        for reply in (replies or {}).values():
            if isinstance(reply, Shareable) and reply.get_return_code() == ReturnCode.OK:
                self._heard = time.monotonic()

    def _connect(self, engine: Any) -> None:
        """Connect to the agent; without it nothing is answered, and the aggregator asks again."""
        settings = Path(engine.get_workspace().get_site_config_dir())
        try:
            greeting = Greeting(VERSION, "carrier", seed=self._seed)
            self._caller = Caller(connect_carrier(settings, greeting, MAX_FRAME))
        except LinkError as error:
            self.logger.error(f"cannot connect to the agent: {error}")

    def _relay(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        self._heard = time.monotonic()
        parcel, ticket = request.get(PARCEL), request.get(TICKET)
        reply = make_reply(ReturnCode.OK)
        # A request without a parcel only checks that this relay is running.
        if isinstance(parcel, bytes):
            answer = self._asked(parcel, fl_ctx)
            if isinstance(ticket, bytes):
                self._send(ticket, answer, fl_ctx)
            else:
                reply[PARCEL] = answer
        return reply

    def _send(self, ticket: bytes, answer: bytes, fl_ctx: FLContext) -> None:
        """Send an answer as a message without a reply; for a large answer, only announce it."""
        message = Shareable()
        message[TICKET], message[PARCEL] = ticket, answer if len(answer) <= LARGE else None
        # A timeout of 0 sends a message without a reply.
        fl_ctx.get_engine().send_aux_request(None, ANSWERS, message, 0.0, fl_ctx, optional=True)

    def _asked(self, parcel: bytes, fl_ctx: FLContext) -> bytes:
        try:
            # With several questions at once, only one of them may connect.
            with self._connecting:
                if self._caller is None or self._caller.over.is_set():
                    # The agent was restarted.
                    self._connect(fl_ctx.get_engine())
            return b"" if self._caller is None else self._caller.call(parcel, _SECONDS)
        except LinkError as error:
            self.logger.warning(f"the agent did not answer: {error}")
            return b""

    def execute(self, task_name: str, shareable: Any, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Refuse all tasks; this executor only relays messages."""
        return make_reply(ReturnCode.TASK_UNKNOWN)
