"""What a job of either party begins with: its settings, its study, what an earlier job may still hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from capedjica.errors import InputError
from capedjica.study.study_file import Study
from capedjica.tools.locks import BusyError

# How long a site or a run's folder may still be held by an earlier job of the same study.
_LET_GO_SECONDS: Final = 60.0

_Settings = TypeVar("_Settings", bound=msgspec.Struct)
_Claimed = TypeVar("_Claimed")


def claim_patiently(held: ExitStack, claim: Callable[[], AbstractContextManager[_Claimed]]) -> _Claimed:
    """Hold what the process of an earlier job, lost or aborted, may need a while to let go of."""
    until = time.monotonic() + _LET_GO_SECONDS
    while True:
        try:
            return held.enter_context(claim())
        except BusyError:
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def read_settings(path: Path, kind: type[_Settings]) -> _Settings:
    """Read what the owner of a kit told it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be used: {error}") from None


def load_study(settings: Path, expected: str) -> Study:
    """Return the study of this kit; refuse a job about another one."""
    study = Study.load(settings.parent / "study")
    # defence: the-study-that-a-job-names
    if study.hash.hex() != expected:
        raise InputError(
            f"the job is about study {expected[:16]}, this kit about '{study.content.title}' "
            f"({study.hash.hex()[:16]})"
        )
    return study
