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
import logging
import re
import zipfile
import zlib
from functools import wraps
from typing import Annotated, Any, Final, Literal

import msgspec
from nvflare.apis.fl_constant import ReservedTopic
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel as NetChannel
from nvflare.fuel.f3.cellnet.defs import CellChannelTopic, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN, FqcnInfo
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import (
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
from nvflare.private.fed.client.scheduler_cmds import StartJobProcessor
from nvflare.private.fed.client.training_cmds import DeployProcessor

from capedjica.engines.flare import neighbours, unpacking
from capedjica.engines.flare.controller import CHANNEL, TOPIC

# What the server has to tell a site's client about jobs.
COMMANDS: Final = {
    TrainingTopic.CHECK_RESOURCE,
    TrainingTopic.CANCEL_RESOURCE,
    TrainingTopic.DEPLOY,
    TrainingTopic.START_JOB,
    TrainingTopic.NOTIFY_JOB_STATUS,
    TrainingTopic.ABORT,
}
# Replies too come as streams, under a channel of their own.
_FOR_CLIENTS: Final = {CellChannel.CLIENT_MAIN, CellChannel.RETURN_ONLY}
_FOR_JOBS: Final = {CHANNEL, CellChannel.RETURN_ONLY}
# Of FLARE's own conversation with a job: that it is over. Large parcels too come by this channel.
_OF_JOBS: Final = {
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.END_RUN),
    (CellChannel.AUX_COMMUNICATION, TOPIC),
}
# That a stream did not arrive.
_FAILED: Final = (STREAM_CHANNEL, STREAM_ERROR_TOPIC)
# Streams that may be open at once, for each of which memory is put aside; and jobs, one of which may hang.
MAX_STREAMS: Final = 16
MAX_JOBS: Final = 3
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
_WORD: Final = re.compile(r"[\w.@:+-]{0,100}")
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
_LOG: Final = logging.getLogger(__name__)


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    # By its name, as this layer does not know the one above; a test compares it with what jobs are made of.
    path: Literal["capedjica.study.federated.parties.SiteParty"]
    args: dict[str, str | int]


class _Executor(msgspec.Struct, forbid_unknown_fields=True):
    tasks: list[str]
    executor: _Part


class _Settings(msgspec.Struct, forbid_unknown_fields=True):
    """All that a job may say to a site: to run our one class, with plain arguments."""

    format_version: int
    executors: Annotated[list[_Executor], msgspec.Meta(min_length=1, max_length=1)]


def install() -> None:
    """Make every cell of this process refuse what is not welcome."""
    neighbours.install()
    unpacking.take_known_types_only()
    _refuse_unwelcome(CoreCell)
    _limit_streams(RxTask)
    _leave_out_commands(FedAdminAgent)
    _refuse_strange_names(FedAdminAgent)
    _refuse_strange_jobs(DeployProcessor)
    _limit_jobs(StartJobProcessor)


def is_welcome(own: FqcnInfo, origin: str, neighbour: str, message: Message) -> bool:
    """Whether a request may be unpacked.

    Parameters
    ----------
    own : FqcnInfo
        The cell that received it: a site's client, ``SITE``, or its job, ``SITE.JOB``.
    origin : str
        Where it says to be from. An honest server lets nobody say what it is not.
    neighbour : str
        Who handed it over, by the certificate of that connection.
    message : Message
        The request.
    """
    if neighbours.is_family(own, origin):
        # From the outside only a thief of the kit would call itself so.
        return neighbours.is_family(own, neighbour)
    parent = "" if own.is_root else FQCN.get_parent(own.fqcn)
    if neighbour not in (FQCN.ROOT_SERVER, parent):
        return False
    channel, topic = (
        message.get_header(key, "") for key in (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC)
    )
    if (channel, topic) == (NetChannel.CELLNET, CellChannelTopic.Bye):
        return origin == neighbour
    if channel == STREAM_CHANNEL and topic == STREAM_DATA_TOPIC:
        channel, topic = (
            message.get_header(key, "") for key in (StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC)
        )
    if own.is_root:
        return origin == FQCN.ROOT_SERVER and channel in {*_FOR_CLIENTS, STREAM_CHANNEL}
    aggregator = FQCN.join([FQCN.ROOT_SERVER, *FQCN.split(own.fqcn)[1:]])
    if (channel, topic) == _FAILED and origin == FQCN.ROOT_SERVER:
        return True
    wanted = channel in {*_FOR_JOBS, STREAM_CHANNEL} or (channel, topic) in _OF_JOBS
    return origin == aggregator and wanted


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
        return plain(agent, processor) if set(processor.get_topics()) <= COMMANDS else None

    kind.register_processor = register


def _refuse_strange_names(kind: type[FedAdminAgent]) -> None:
    plain = kind._dispatch_request

    @wraps(plain)
    def dispatch(agent: FedAdminAgent, request: Message) -> Message:
        if keep_to_the_job(request.payload):
            return plain(agent, request)
        _LOG.warning("refused a command about a job of a strange name")
        return make_reply(ReturnCode.INVALID_REQUEST, error="refused")

    kind._dispatch_request = dispatch


def keep_to_the_job(command: Any) -> bool:
    """Whether a command is about a job of a name that FLARE makes; what it says beyond need is left out."""
    if not isinstance(command, Command):
        return False
    if command.topic not in COMMANDS:
        return False
    # Both go into FLARE's record of commands.
    for key in (RequestHeader.USER_NAME, ConnProps.EVENT_ID):
        if not (isinstance(said := command.get_header(key, ""), str) and _WORD.fullmatch(said)):
            return False
    name, meta = (command.get_header(key) for key in (RequestHeader.JOB_ID, RequestHeader.JOB_META))
    if name is not None and not (isinstance(name, str) and _JOB_NAME.fullmatch(name)):
        return False
    if meta is not None:
        essential = {key: meta[key] for key in _KNOWN & meta.keys()} if isinstance(meta, dict) else {}
        command.set_header(RequestHeader.JOB_META, essential | {JobMetaKey.JOB_ID.value: name})
    return True


def is_plain(job: Any) -> bool:
    """Whether a packed job holds the settings of a site of a study and nothing else."""
    if not isinstance(job, bytes):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(job)) as packed:
            names = packed.namelist()
            small = all(member.file_size <= _MOST_BYTES for member in packed.infolist())
            if not small or len(set(names)) != len(names) or not {_SETTINGS} <= set(names) <= _JOB:
                return False
            msgspec.json.decode(packed.read(_SETTINGS), type=_Settings)
    except (OSError, EOFError, ValueError, RuntimeError, RecursionError, zipfile.BadZipFile, zlib.error):
        return False
    return True


def _refuse_strange_jobs(kind: type[DeployProcessor]) -> None:
    plain = kind.process

    @wraps(plain)
    def process(processor: DeployProcessor, request: Any, context: Any) -> Any:
        if is_plain(request.body):
            return plain(processor, request, context)
        _LOG.warning("refused a job that is not a study's")
        return error_reply("refused")

    kind.process = process


def _limit_jobs(kind: type[StartJobProcessor]) -> None:
    plain = kind.process

    @wraps(plain)
    def process(processor: StartJobProcessor, request: Any, context: Any) -> Any:
        if len(context.get_all_job_ids()) < MAX_JOBS:
            return plain(processor, request, context)
        _LOG.warning("refused to start a job beside %d others", MAX_JOBS)
        return error_reply("refused")

    kind.process = process


def _limit_streams(kind: type[RxTask]) -> None:
    plain = kind.find_or_create_task

    @wraps(plain)
    def find_or_create(message: Message, cell: CoreCell) -> RxTask | None:
        known = (message.get_header(MessageHeaderKey.ORIGIN), message.get_header(StreamHeaderKey.STREAM_ID))
        with kind.map_lock:
            n_open = sum(not (task.completed or task.failed) for task in kind.rx_task_map.values())
            may_begin = known in kind.rx_task_map or n_open < MAX_STREAMS
        if may_begin:
            return plain(message, cell)
        _LOG.warning("refused a stream beside %d others", MAX_STREAMS)
        return None

    kind.find_or_create_task = staticmethod(find_or_create)
