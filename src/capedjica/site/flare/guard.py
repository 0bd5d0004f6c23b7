"""What a site's processes listen to: what a study needs, from the server and from the site itself.

FLARE lets a server send commands to a site's client, those of a shell among them, and asks the site's rules
about one only where the sender says that it should. It carries messages from any cell to any other, so that
sites could command each other, and every process answers questions about itself. A job may bring settings
of FLARE along, of logs and drivers for example, which name code to be run; what is said about a job can have
the site's list of classes set aside, and its name is that of a folder to be emptied. None of that is wanted:
whatever is not on the lists below is refused before it is unpacked.
"""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import zipfile
import zlib
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from nvflare.apis.fl_constant import ReservedTopic
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel as NetChannel
from nvflare.fuel.f3.cellnet.defs import (
    CellChannelTopic,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FQCN, FqcnInfo
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.admin_defs import Message as Command
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import CellChannel, RequestHeader, TrainingTopic
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor
from nvflare.private.fed.client.client_runner import ClientRunner
from nvflare.private.fed.client.scheduler_cmds import StartJobProcessor
from nvflare.private.fed.client.training_cmds import DeployProcessor

from capedjica.flare import unpacking
from capedjica.flare.wire import CHANNEL, TOPIC
from capedjica.site.flare import discretion, peers, streams

# What the server has to tell a site's client about jobs.
COMMANDS: Final = {
    TrainingTopic.CHECK_RESOURCE,
    TrainingTopic.CANCEL_RESOURCE,
    TrainingTopic.DEPLOY,
    TrainingTopic.START_JOB,
    TrainingTopic.NOTIFY_JOB_STATUS,
    TrainingTopic.ABORT,
}
_FOR_CLIENTS: Final = {(CellChannel.CLIENT_MAIN, "admin")}
# What the aggregator has to tell a site's job: parcels, the large ones by the second channel, that it is
# over, and what became of large answers.
_FOR_JOBS: Final = {
    (CHANNEL, TOPIC),
    (CellChannel.AUX_COMMUNICATION, TOPIC),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.END_RUN),
    (STREAM_CHANNEL, STREAM_ACK_TOPIC),
    (STREAM_CHANNEL, STREAM_ERROR_TOPIC),
}
_PIECE: Final = (STREAM_CHANNEL, STREAM_DATA_TOPIC)
_FAILED: Final = (STREAM_CHANNEL, STREAM_ERROR_TOPIC)
# Jobs that may run at once, one of which may hang; and seconds before a job asks the server again.
MAX_JOBS: Final = 3
MAX_PAUSE: Final = 5.0
# What a client and its job need to know about the job. What else FLARE says of one chooses how and by which
# rules it is run.
_KNOWN: Final = {
    key.value
    for key in (
        JobMetaKey.JOB_ID,
        JobMetaKey.JOB_NAME,
        JobMetaKey.SUBMITTER_NAME,
        JobMetaKey.SUBMITTER_ORG,
        JobMetaKey.SUBMITTER_ROLE,
        JobMetaKey.JOB_CLIENTS,
        JobMetaKey.MIN_CLIENTS,
        JobMetaKey.STUDY,
    )
}
_WORD: Final = discretion.WORD
_JOB_NAME: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# A job: who does what, for the server and for sites, and who signed it.
_SIGNED: Final = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
_SETTINGS: Final = "config/config_fed_client.json"
_JOB: Final = {
    "config/",
    _SETTINGS,
    "config/config_fed_server.json",
    *_SIGNED,
    *(f"config/{name}" for name in _SIGNED),
}
_MOST_BYTES: Final = 1 << 16
_STARTING: Final = threading.Lock()
_LOG: Final = logging.getLogger(__name__)


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    # Nothing with a brace: FLARE takes every string for a template, of the environment among other things.
    study: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    insecure_noise_seed: int | msgspec.UnsetType = msgspec.UNSET


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    # By its name, as this layer does not know the one above; a test compares it with what jobs are made of.
    # defence: the-class-of-a-job
    path: Literal["capedjica.site.flare.party.SiteParty"]
    # defence: no-templates-in-arguments
    args: _Arguments


class _Executor(msgspec.Struct, forbid_unknown_fields=True):
    # defence: no-templates-in-tasks
    tasks: tuple[Literal["none"]]
    executor: _Part


class _Settings(msgspec.Struct, forbid_unknown_fields=True):
    """All that a job may say to a site: to run our one class, with plain arguments."""

    format_version: Literal[2]
    # defence: one-class-in-a-job
    executors: Annotated[list[_Executor], msgspec.Meta(min_length=1, max_length=1)]


def install() -> None:
    """Make every cell of this process refuse what is not welcome."""
    # Within what peers do, which look first at who a message says to be from.
    # defence: names-of-what-is-refused
    _name_what_is_refused(CoreCell)
    peers.install()
    # defence: known-types-only
    unpacking.take_known_types_only()
    streams.install()
    discretion.install()
    _refuse_unwelcome(CoreCell)
    _leave_out_commands(FedAdminAgent)
    _refuse_strange_names(FedAdminAgent)
    _refuse_strange_jobs(DeployProcessor)
    _limit_jobs(StartJobProcessor)
    _limit_pauses(ClientRunner)


def is_welcome(own: FqcnInfo, origin: str, neighbour: str, message: Message) -> bool:
    """Whether a request may be unpacked.

    Parameters
    ----------
    own : FqcnInfo
        The cell that received it: a site's client, ``SITE``, or its job, ``SITE.JOB``.
    origin : str
        Where it says to be from. An honest server lets nobody say what it is not
        (:mod:`capedjica.coordinator.flare.origins`).
    neighbour : str
        Who handed it over, by the certificate of that connection.
    message : Message
        The request.
    """
    if peers.is_family(own, origin):
        # From the outside only a thief of the kit would call itself so.
        # defence: who-handed-a-message-over
        return peers.is_family(own, neighbour)
    parent = "" if own.is_root else FQCN.get_parent(own.fqcn)
    if neighbour not in (FQCN.ROOT_SERVER, parent):
        return False
    about = _about(message, MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC)
    if about == (NetChannel.CELLNET, CellChannelTopic.Bye):
        return origin == neighbour
    if own.is_root:
        # defence: clients-take-no-streams
        return origin == FQCN.ROOT_SERVER and about in _FOR_CLIENTS
    if about == _FAILED and origin == FQCN.ROOT_SERVER:
        return True
    if about == _PIECE:
        about = _about(message, StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC)
        # Answers come in pieces too, by a channel of their own, under the name of the question.
        # defence: what-is-inside-a-stream
        wanted = about[0] == CellChannel.RETURN_ONLY or about in _FOR_JOBS
    else:
        # defence: events-of-flare
        wanted = about in _FOR_JOBS
    aggregator = FQCN.join([FQCN.ROOT_SERVER, *FQCN.split(own.fqcn)[1:]])
    # defence: messages-of-other-sites
    return origin == aggregator and wanted


def _about(message: Message, channel: str, topic: str) -> tuple[str, str]:
    """Return what a message is about; nothing where that is not said in plain words."""
    said = message.get_header(channel, ""), message.get_header(topic, "")
    # defence: plain-words
    return said if all(isinstance(word, str) and _WORD.fullmatch(word) for word in said) else ("", "")


def _name_what_is_refused(kind: type[CoreCell]) -> None:
    """Give all that will be refused one name: FLARE counts messages by theirs, and forgets none of these."""
    plain = kind._process_received_msg

    @wraps(plain)
    def process(cell: CoreCell, endpoint: Endpoint, connection: Connection, message: Message) -> None:
        if not peers.is_family(cell.my_info, endpoint.name):
            message.remove_header(MessageHeaderKey.ROUTE)
            origin, kind = (
                message.get_header(key) for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.MSG_TYPE)
            )
            if kind == MessageType.REQ and not is_welcome(cell.my_info, origin, endpoint.name, message):
                message.set_header(MessageHeaderKey.CHANNEL, "refused")
                message.set_header(MessageHeaderKey.TOPIC, "refused")
        plain(cell, endpoint, connection, message)

    kind._process_received_msg = process


def _refuse_unwelcome(kind: type[CoreCell]) -> None:
    plain = kind._process_request

    @wraps(plain)
    def process(cell: CoreCell, origin: str, message: Message) -> Message | None:
        neighbour = message.get_prop(MessagePropKey.ENDPOINT)
        if neighbour is not None and is_welcome(cell.my_info, origin, neighbour.name, message):
            return plain(cell, origin, message)
        _LOG.warning("refused a request from %r", origin)
        return make_reply(ReturnCode.INVALID_REQUEST, error="refused")

    kind._process_request = process


def _leave_out_commands(kind: type[FedAdminAgent]) -> None:
    plain = kind.register_processor

    @wraps(plain)
    def register(agent: FedAdminAgent, processor: RequestProcessor) -> Any:
        # defence: flares-commands
        return plain(agent, processor) if set(processor.get_topics()) <= COMMANDS else None

    kind.register_processor = register


def _refuse_strange_names(kind: type[FedAdminAgent]) -> None:
    plain = kind._dispatch_request

    @wraps(plain)
    def dispatch(agent: FedAdminAgent, request: Message) -> Message:
        origin = request.get_header(MessageHeaderKey.ORIGIN)
        if keep_to_the_job(request.payload, peers.is_family(agent.cell.core_cell.my_info, origin)):
            return plain(agent, request)
        _LOG.warning("refused a command about a job of a strange name")
        return make_reply(ReturnCode.INVALID_REQUEST, error="refused")

    kind._dispatch_request = dispatch


def keep_to_the_job(command: Any, of_family: bool = False) -> bool:
    """Whether a command is about a job of a name that FLARE makes; what it says beyond need is left out.

    Parameters
    ----------
    command : Any
        What came as one.
    of_family : bool
        Whether it is from the site itself.
    """
    if not isinstance(command, Command):
        return False
    if command.topic not in COMMANDS:
        return False
    # How a job stands is said by the job: told otherwise, a client would not end it any more.
    # defence: how-a-job-stands
    if command.topic == TrainingTopic.NOTIFY_JOB_STATUS and not of_family:
        return False
    # Both go into files of this machine.
    if not _is_small(command.get_header(RequestHeader.APP_NAME), command.get_header(RequestHeader.JOB_META)):
        return False
    # Both go into FLARE's record of commands.
    for key in (RequestHeader.USER_NAME, ConnProps.EVENT_ID):
        # defence: the-record-of-commands
        if not (isinstance(said := command.get_header(key, ""), str) and _WORD.fullmatch(said)):
            return False
    name, meta = (command.get_header(key) for key in (RequestHeader.JOB_ID, RequestHeader.JOB_META))
    # defence: the-folder-of-a-job
    if name is not None and not (isinstance(name, str) and _JOB_NAME.fullmatch(name)):
        return False
    if meta is not None:
        # defence: what-is-said-of-a-job
        essential = {key: meta[key] for key in _KNOWN & meta.keys()} if isinstance(meta, dict) else {}
        command.set_header(RequestHeader.JOB_META, essential | {JobMetaKey.JOB_ID.value: name})
    return True


def _is_small(*said: Any) -> bool:
    try:
        # defence: short-words-about-a-job
        return len(json.dumps(said)) <= _MOST_BYTES
    except (TypeError, ValueError, RecursionError):
        return False


def is_plain(job: Any) -> bool:
    """Whether a packed job holds the settings of a site of a study and nothing else."""
    if not isinstance(job, bytes):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(job)) as packed:
            names = packed.namelist()
            small = all(member.file_size <= _MOST_BYTES for member in packed.infolist())
            # defence: what-a-job-may-bring
            if not small or len(set(names)) != len(names) or not {_SETTINGS} <= set(names) <= _JOB:
                return False
            # defence: what-a-job-may-say
            msgspec.json.decode(packed.read(_SETTINGS), type=_Settings)
    except (OSError, EOFError, ValueError, RuntimeError, RecursionError, zipfile.BadZipFile, zlib.error):
        return False
    return True


def _refuse_strange_jobs(kind: type[DeployProcessor]) -> None:
    plain = kind.process

    @wraps(plain)
    def process(processor: DeployProcessor, request: Any, context: Any) -> Any:
        # What a job left behind, its log for example, would be emptied for another of its name.
        is_new = not Path(context.args.workspace, request.get_header(RequestHeader.JOB_ID)).exists()
        # defence: a-jobs-folder-is-new
        if is_new and is_plain(request.body):
            return plain(processor, request, context)
        _LOG.warning("refused a job that is not a study's, or not a new one")
        return error_reply("refused")

    kind.process = process


def _limit_jobs(kind: type[StartJobProcessor]) -> None:
    plain = kind.process

    @wraps(plain)
    def process(processor: StartJobProcessor, request: Any, context: Any) -> Any:
        # defence: jobs-one-by-one
        with _STARTING:
            # defence: few-jobs
            if len(context.get_all_job_ids()) < MAX_JOBS:
                return plain(processor, request, context)
        _LOG.warning("refused to start a job beside %d others", MAX_JOBS)
        return error_reply("refused")

    kind.process = process


def _limit_pauses(kind: type[ClientRunner]) -> None:
    """Let a job soon see that it is over, however long the server says to wait."""
    plain = kind.fetch_and_run_one_task

    @wraps(plain)
    def fetch(runner: ClientRunner, context: Any) -> tuple[float, bool]:
        pause, done = plain(runner, context)
        # defence: short-pauses
        fits = isinstance(pause, int | float) and 0 < pause <= MAX_PAUSE
        return (pause if fits else MAX_PAUSE), done

    kind.fetch_and_run_one_task = fetch
