"""The aggregator's end of FLARE."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from capedjica.engines.flare.carriage import Send

TOPIC: Final = "capedjica"
PARCEL: Final = "parcel"


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
        self.conduct(_sender(engine), settings, lambda: bool(abort_signal.triggered))

    def process_result_of_unknown_task(self, client: Any, task_name: str, *_: Any) -> None:
        """Ignore the result of a task: there are none."""
        logging.getLogger("capedjica.run").warning("a site sent the result of a task that was never given")


def _sender(engine: Any) -> Send:
    def send_one(parcel: bytes, names: list[str], seconds: float) -> dict[str, Any]:
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

    def send(parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        # FLARE 2.9.0 cannot send different requests at once (its multicast_aux_requests raises TypeError).
        same: dict[bytes, list[str]] = {}
        for name, parcel in parcels.items():
            # Asked for a site that is not part of the job, FLARE would ask none of the others either.
            if engine.get_client_from_name(name) is not None:
                same.setdefault(parcel, []).append(name)
        with ThreadPoolExecutor(max(1, len(same))) as pool:
            sent = [pool.submit(send_one, parcel, names, seconds) for parcel, names in same.items()]
        replies = {name: reply for one in sent for name, reply in one.result().items()}
        return {name: reply[PARCEL] for name, reply in replies.items() if _is_slip(reply)}

    return send


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
