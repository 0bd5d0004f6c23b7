"""The peer's side: read a task name, do it, answer in JSON. Imports nothing of capedjica."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping


def serve(version: str, tasks: Mapping[str, Callable[[], object]]) -> None:
    """Answer each line of the standard input with the version or the seconds that a task took."""
    for line in sys.stdin:
        task = line.strip()
        answer = version if task == "version" else _seconds(tasks[task])
        print(json.dumps(answer), flush=True)


def _seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start
