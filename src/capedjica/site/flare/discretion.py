"""What a site keeps to itself: its address, and why something went wrong.

FLARE's client tells the server the address of its machine within the hospital, and answers a command that
failed with the words of the error, which may be about files. A server can also have its own words written
into the record that FLARE keeps of a job.
"""

from __future__ import annotations

import re
from functools import wraps
from typing import Any, Final

from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as Command
from nvflare.private.admin_defs import MsgHeader, ReturnCode
from nvflare.private.defs import ERROR_MSG_PREFIX
from nvflare.private.fed import authenticator
from nvflare.private.fed.client import client_runner
from nvflare.private.fed.client.admin import FedAdminAgent

NOWHERE: Final = "0.0.0.0"  # noqa: S104 (nobody listens there)
# What may come into a log or a record.
WORD: Final = re.compile(r"[\w.@:+-]{0,100}")


def install() -> None:
    """Keep these from the server, and the record from its words."""
    # defence: the-machines-address
    authenticator._get_client_ip = lambda: NOWHERE
    _give_no_reasons(FedAdminAgent)
    client_runner.add_job_audit_event = _with_plain_references(client_runner.add_job_audit_event)


def without_reasons(reply: Message) -> Message:
    """Leave out of an answer to a command what went wrong: the site's own log has it."""
    said = reply.payload
    if isinstance(said, Command):
        failed = said.get_header(MsgHeader.RETURN_CODE) == ReturnCode.ERROR
        if isinstance(said.body, str) and said.body.startswith(ERROR_MSG_PREFIX):
            said.body = f"{ERROR_MSG_PREFIX}: the site's own log says why"
        elif failed:
            # defence: why-a-command-failed
            said.body = "refused"
    return reply


def _give_no_reasons(kind: type[FedAdminAgent]) -> None:
    plain = kind._dispatch_request

    @wraps(plain)
    def dispatch(agent: FedAdminAgent, request: Message) -> Message:
        return without_reasons(plain(agent, request))

    kind._dispatch_request = dispatch


def _with_plain_references(plain: Any) -> Any:
    @wraps(plain)
    def add(fl_ctx: Any, ref: Any = "", msg: str = "") -> Any:
        is_plain = isinstance(ref, str) and WORD.fullmatch(ref)
        # defence: the-record-of-a-job
        return plain(fl_ctx=fl_ctx, ref=ref if is_plain else "", msg=msg)

    return add
