"""Who may say what to a site's processes."""

import io
import json
import math
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvflare.apis.fl_constant import ReservedTopic
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
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
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.client_runner import ClientRunner
from nvflare.private.fed.client.scheduler_cmds import StartJobProcessor
from nvflare.private.fed.client.training_cmds import DeployProcessor

from capedjica.coordinator.flare import jobs
from capedjica.flare.kit import COMMUNICATION, SITE_CLASS
from capedjica.flare.wire import CHANNEL, TOPIC
from capedjica.site.flare import guard

CLIENT, JOB = "s1", "s1.j1"
AUX, ADMIN, REPLY = CellChannel.AUX_COMMUNICATION, CellChannel.CLIENT_MAIN, CellChannel.RETURN_ONLY
NET = "cellnet.channel"


def welcome(own, origin, neighbour, channel, topic="any"):
    headers = {MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
    return guard.is_welcome(FqcnInfo(own), origin, neighbour, Message(headers, None))


def streamed(own, origin, neighbour, inside, about="any"):
    headers = {
        MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
        MessageHeaderKey.TOPIC: STREAM_DATA_TOPIC,
        StreamHeaderKey.CHANNEL: inside,
        StreamHeaderKey.TOPIC: about,
    }
    return guard.is_welcome(FqcnInfo(own), origin, neighbour, Message(headers, None))


@pytest.mark.parametrize(
    ("own", "origin", "neighbour", "channel", "topic"),
    [
        (CLIENT, "server", "server", ADMIN, "admin"),
        (CLIENT, JOB, JOB, ADMIN, "any"),
        (CLIENT, JOB, JOB, NET, "any"),
        (JOB, CLIENT, CLIENT, CellChannel.CLIENT_COMMAND, "any"),
        (JOB, "server.j1", "server", CHANNEL, TOPIC),
        (JOB, "server.j1", CLIENT, CHANNEL, TOPIC),
        (JOB, "server.j1", "server", STREAM_CHANNEL, STREAM_ACK_TOPIC),
    ],
)
def test_what_a_study_needs_is_let_in(own, origin, neighbour, channel, topic):
    assert welcome(own, origin, neighbour, channel, topic)


@pytest.mark.parametrize(("channel", "topic"), [(CHANNEL, TOPIC), (AUX, TOPIC), (REPLY, "get_task")])
def test_a_job_takes_large_messages_in_pieces_and_a_client_none(channel, topic):
    assert streamed(JOB, "server.j1", "server", channel, topic)
    assert not streamed(JOB, "server", "server", channel, topic)
    assert not streamed(CLIENT, "server", "server", channel, topic)
    assert not streamed(CLIENT, "server", "server", ADMIN, "admin")


@pytest.mark.parametrize("topic", ["x\nFORGED", "x" * 101, "\x1b[2J", 7, None, ["a"], b"x"])
def test_what_is_not_said_in_plain_words_is_refused(topic):
    """It would come into FLARE's log as it is, and into tables that only grow."""
    for channel in (ADMIN, STREAM_CHANNEL, topic):
        assert not welcome(CLIENT, "server", "server", channel, topic)
    for channel in (CHANNEL, AUX, STREAM_CHANNEL, topic):
        assert not welcome(JOB, "server.j1", "server", channel, topic)
    assert not streamed(JOB, "server.j1", "server", REPLY, topic)


@pytest.mark.parametrize(
    ("own", "origin", "neighbour", "channel"),
    [
        # Another site, through an honest server and directly.
        (CLIENT, "s2", "server", ADMIN),
        (CLIENT, "s2.j1", "server", ADMIN),
        (JOB, "s2.j1", "server", AUX),
        (JOB, "s2.j1", "server", CHANNEL),
        (JOB, "s2.j1", "s2.j1", AUX),
        # A thief of the kit, from outside.
        (CLIENT, JOB, "server", ADMIN),
        (CLIENT, "s1.thief", "server", ADMIN),
        (JOB, CLIENT, "server", CellChannel.CLIENT_COMMAND),
        # Somebody on the machine who says to be the server.
        (CLIENT, "server", JOB, ADMIN),
        (CLIENT, "server", "s2", ADMIN),
        # Another job, and the coordinator's console.
        (JOB, "server.j2", "server", CHANNEL),
        (JOB, "server", "server", CHANNEL),
        (CLIENT, "server.j1", "server", ADMIN),
        (CLIENT, "_admin_1234", "server", ADMIN),
        # What no study needs.
        (CLIENT, "server", "server", NET),
        (CLIENT, "server", "server", AUX),
        (CLIENT, "server", "server", "_net_manager"),
        (CLIENT, "server", "server", "credential_manager"),
        (JOB, "server.j1", "server", AUX),
        (JOB, "server.j1", "server", "_net_manager"),
        (JOB, "server.j1", "server", CellChannel.CLIENT_COMMAND),
    ],
)
def test_everything_else_is_refused_also_as_a_stream(own, origin, neighbour, channel):
    topic = {ADMIN: "admin", CHANNEL: TOPIC}.get(channel, "any")
    assert not welcome(own, origin, neighbour, channel, topic)
    assert not streamed(own, origin, neighbour, channel, topic)


@pytest.mark.parametrize("topic", ["bulk", "stop", "change_root", "bye"])
def test_a_neighbour_may_say_goodbye_and_nothing_else_about_the_net(topic):
    assert welcome(CLIENT, "server", "server", NET, topic) == (topic == "bye")
    assert not welcome(CLIENT, "s2", "server", NET, topic)


@pytest.mark.parametrize("topic", [ReservedTopic.END_RUN, TOPIC, ReservedTopic.DO_TASK, "fed.event", "any"])
def test_a_job_is_told_when_it_is_over_and_nothing_else_about_itself(topic):
    """Events of FLARE, for example, would begin and end the job's parts as their sender likes."""
    message = Message(
        {
            MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
            MessageHeaderKey.TOPIC: STREAM_DATA_TOPIC,
            StreamHeaderKey.CHANNEL: AUX,
            StreamHeaderKey.TOPIC: topic,
        },
        None,
    )
    wanted = topic in (ReservedTopic.END_RUN, TOPIC)  # parcels too come by this channel
    assert guard.is_welcome(FqcnInfo(JOB), "server.j1", "server", message) == wanted
    assert welcome(JOB, "server.j1", "server", AUX, topic) == wanted
    assert not welcome(JOB, "server", "server", AUX, topic)
    assert not welcome(CLIENT, "server", "server", AUX, topic)


def test_a_job_is_told_by_the_server_that_a_stream_did_not_arrive():
    assert welcome(JOB, "server", "server", STREAM_CHANNEL, STREAM_ERROR_TOPIC)
    assert not welcome(JOB, "s2", "server", STREAM_CHANNEL, STREAM_ERROR_TOPIC)
    assert not streamed(JOB, "server", "server", CHANNEL)


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_name_is_an_error(origin, neighbour, channel, topic):
    """Headers come from outside; a stranger is refused, whatever it calls itself."""
    assert welcome(CLIENT, f"x{origin}", neighbour, channel, topic) is False
    assert welcome(JOB, origin.replace("s1", ""), f"x{neighbour}", channel, topic) is False


def test_commands_that_no_study_needs_are_not_there(monkeypatch):
    """Neither the shell nor anything else that FLARE may add to its list, unless it is on ours."""
    monkeypatch.setattr(FedAdminAgent, "register_processor", FedAdminAgent.register_processor)
    plain = object.__new__(FedAdminAgent)
    guarded = object.__new__(FedAdminAgent)
    plain.processors, guarded.processors = {}, {}
    for processor in ClientRequestProcessors.request_processors:
        plain.register_processor(processor)
    guard._leave_out_commands(FedAdminAgent)
    for processor in ClientRequestProcessors.request_processors:
        guarded.register_processor(processor)
    assert SysCommandTopic.SHELL in plain.processors
    assert guarded.processors.keys() == guard.COMMANDS


def test_a_party_and_its_jobs_show_each_other_certificates():
    assert COMMUNICATION["internal"]["resources"]["connection_security"] == "mtls"
    assert COMMUNICATION["allow_adhoc_conns"] is False


# What is said about jobs

NAME = "0d3c2f4e-5b6a-4788-9900-aabbccddeeff"


def command(name, meta=None, topic=TrainingTopic.DEPLOY):
    made = Command(topic, b"")
    for key, value in ((RequestHeader.JOB_ID, name), (RequestHeader.JOB_META, meta)):
        if value is not None:
            made.set_header(key, value)
    return made


@pytest.mark.parametrize(
    "name", ["startup", "local", "study", "", "..", "../x", f"{NAME}/..", f"{NAME}\n", NAME.upper(), 7, b"x"]
)
def test_the_folder_of_a_job_is_not_one_of_the_kits(name):
    """FLARE empties it before it puts a job there."""
    assert not guard.keep_to_the_job(command(name))
    assert guard.keep_to_the_job(command(NAME))


@pytest.mark.parametrize("said", [{"launcher_spec": {"s1": {"docker": {"image": "x"}}}}, {"byoc": True}, "x"])
def test_nothing_is_said_of_a_job_that_changes_how_it_is_run(said):
    """By the first two FLARE would set the site's list of classes aside."""
    known = {"name": "run", "job_clients": ["s1"], "submitter_role": "super"}
    made = command(NAME, known | said | {"job_id": "startup"} if isinstance(said, dict) else said)
    assert guard.keep_to_the_job(made)
    expected = (known if isinstance(said, dict) else {}) | {"job_id": NAME}
    assert made.get_header(RequestHeader.JOB_META) == expected


@pytest.mark.parametrize("what", [None, {}, b"", "admin"])
def test_what_is_no_command_is_refused(what):
    assert not guard.keep_to_the_job(what)


@pytest.mark.parametrize("topic", [SysCommandTopic.SHELL, "", "any", f"{TrainingTopic.DEPLOY}\n"])
def test_other_commands_do_not_even_come_into_the_record(topic):
    assert not guard.keep_to_the_job(command(NAME, topic=topic))


@pytest.mark.parametrize("key", [RequestHeader.USER_NAME, ConnProps.EVENT_ID])
@pytest.mark.parametrize("said", ["x" * 101, "a\nb", 7, ["a"]])
def test_the_record_of_commands_cannot_be_written_into(key, said):
    made = command(NAME)
    made.set_header(key, "admin@capedjica.org")
    assert guard.keep_to_the_job(made)
    made.set_header(key, said)
    assert not guard.keep_to_the_job(made)


def test_few_jobs_run_at_once(monkeypatch):
    """FLARE would start a process for each that a server names."""
    started = []
    monkeypatch.setattr(StartJobProcessor, "process", lambda *_: started.append(True))
    guard._limit_jobs(StartJobProcessor)
    for running_now in range(5):
        context = SimpleNamespace(get_all_job_ids=lambda n=running_now: ["job"] * n)
        StartJobProcessor().process(command(NAME, topic=TrainingTopic.START_JOB), context)
    assert len(started) == guard.MAX_JOBS


def test_jobs_that_are_asked_for_at_once_are_counted_one_by_one(monkeypatch):
    """FLARE counts a job when its process has begun, which takes a while."""
    begun, gate = [], threading.Event()

    def start(*_):
        gate.wait(0.1)
        begun.append("job")

    monkeypatch.setattr(StartJobProcessor, "process", start)
    guard._limit_jobs(StartJobProcessor)
    context = SimpleNamespace(get_all_job_ids=lambda: list(begun))
    with ThreadPoolExecutor(9) as together:
        for _ in range(9):
            together.submit(
                StartJobProcessor().process, command(NAME, topic=TrainingTopic.START_JOB), context
            )
    assert len(begun) == guard.MAX_JOBS


def test_how_a_job_stands_is_said_by_the_job_alone():
    """A client that was told otherwise by the server would not end the job any more."""
    said = command(NAME, topic=TrainingTopic.NOTIFY_JOB_STATUS)
    assert not guard.keep_to_the_job(said)
    assert guard.keep_to_the_job(said, of_family=True)


@pytest.mark.parametrize("said", ["x" * (1 << 17), [[]] * (1 << 16), b"x", {1, 2}])
@pytest.mark.parametrize("key", [RequestHeader.APP_NAME, RequestHeader.JOB_META])
def test_what_is_written_to_files_about_a_job_is_short(key, said):
    made = command(NAME, {"name": "run"})
    made.set_header(key, said if key == RequestHeader.APP_NAME else {"name": said})
    assert not guard.keep_to_the_job(made)


def test_what_is_written_about_a_job_is_not_nested_without_end():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert not guard.keep_to_the_job(command(NAME, {"job_clients": deep}))


def test_a_job_of_a_name_that_was_there_is_refused(monkeypatch, tmp_path, job):
    """FLARE would empty the folder of the first, its log included, running or not."""
    deployed = []
    monkeypatch.setattr(DeployProcessor, "process", lambda *_: deployed.append(True))
    guard._refuse_strange_jobs(DeployProcessor)
    asked, context = command(NAME), SimpleNamespace(args=SimpleNamespace(workspace=str(tmp_path / "kit")))
    asked.body = packed(job)
    DeployProcessor().process(asked, context)
    assert deployed == [True]
    (tmp_path / "kit" / NAME).mkdir(parents=True)
    refused = DeployProcessor().process(asked, context)
    assert deployed == [True]
    assert refused.body == "refused"


@pytest.mark.parametrize("pause", [1e9, -1, 0, "long", None, math.inf, math.nan])
def test_a_job_asks_again_soon_however_long_it_is_told_to_wait(monkeypatch, pause):
    """Meanwhile it would not see that it is over, and no other run could begin."""
    monkeypatch.setattr(ClientRunner, "fetch_and_run_one_task", lambda *_: (pause, False))
    guard._limit_pauses(ClientRunner)
    waited, done = ClientRunner.fetch_and_run_one_task(None, None)
    assert 0 < waited <= guard.MAX_PAUSE
    assert not done


# Jobs

SETTINGS = "config/config_fed_client.json"


def running(part):
    """The settings of an executor."""
    return {"tasks": ["none"], "executor": part}


def packed(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.fixture
def job(tmp_path):
    """The files of a job as the coordinator writes it."""
    jobs._write_job(tmp_path / "job", "ab" * 32, insecure_noise_seed=7)
    app: Path = tmp_path / "job" / "app"
    return {str(file.relative_to(app)): file.read_bytes() for file in app.rglob("*") if file.is_file()}


def test_the_job_of_a_study_is_plain(job):
    assert set(job) == {SETTINGS, "config/config_fed_server.json"}
    assert guard.is_plain(packed(job))
    assert guard.is_plain(packed(job | {".__nvfl_sig.json": b"{}", "config/.__nvfl_submitter.crt": b""}))


@pytest.mark.parametrize(
    "name",
    [
        "custom/evil.py",
        "config/log_config.json",
        "config/comm_config.json",
        "config/resources.json",
        "config/evil.py",
        "../evil",
        "/etc/evil",
        "evil.py",
        "config/config_fed_client.conf",
    ],
)
def test_a_job_that_brings_anything_else_is_refused(job, name):
    """FLARE would look for some of these: settings of logs and drivers name code."""
    assert not guard.is_plain(packed(job | {name: b"{}"}))


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said | {"components": [{"id": "x", "path": "a.B", "args": {}}]},
        lambda said: said | {"task_data_filters": []},
        lambda said: said | {"executors": [said["executors"][0] | {"name": "x"}]},
        lambda said: said | {"executors": [{"tasks": ["none"], "executor": {"path": SITE_CLASS}}]},
        lambda said: said | {"executors": [running({"path": SITE_CLASS, "args": {"x": {"path": "a.B"}}})]},
        lambda said: said | {"executors": 2 * said["executors"]},
        lambda said: said | {"executors": []},
        lambda said: said | {"format_version": 3},
        lambda said: [],
        # FLARE fills in every string, from the environment for example.
        lambda said: said | {"executors": [said["executors"][0] | {"tasks": ["{$HOME}"]}]},
        lambda said: said | {"executors": [said["executors"][0] | {"tasks": ["none", "none"]}]},
        lambda said: said | {"executors": [running({"path": SITE_CLASS, "args": {"study": "{$HOME}"}})]},
        lambda said: (
            said | {"executors": [running({"path": SITE_CLASS, "args": {"study": "ab" * 32 + "\n"}})]}
        ),
        lambda said: said | {"executors": [running({"path": SITE_CLASS, "args": {"study": "a", "x": "b"}})]},
    ],
)
def test_a_job_that_says_more_than_one_class_with_plain_arguments_is_refused(job, change):
    said = json.loads(job[SETTINGS])
    assert guard.is_plain(packed(job | {SETTINGS: json.dumps(said)}))
    assert not guard.is_plain(packed(job | {SETTINGS: json.dumps(change(said))}))


@pytest.mark.parametrize(
    "path",
    [
        # Code of FLARE that runs a program, and code of ours that is not for sites.
        "nvflare.app_common.executors.client_api_launcher_executor.ClientAPILauncherExecutor",
        "capedjica.coordinator.flare.party.AggregatorParty",
        "capedjica.site.flare.party.siteparty",
        f"{SITE_CLASS}.open",
        f"{SITE_CLASS} ",
        f"x.{SITE_CLASS}",
        "SiteParty",
        "{class}",
        "",
        None,
        [SITE_CLASS],
    ],
)
def test_a_job_of_another_class_is_refused(job, path):
    said = json.loads(job[SETTINGS])
    arguments = said["executors"][0]["executor"]["args"]
    own, other = running({"path": SITE_CLASS, "args": arguments}), running({"path": path, "args": arguments})
    assert guard.is_plain(packed(job | {SETTINGS: json.dumps(said | {"executors": [own]})}))
    for executors in ([other], [own, other], [other, own]):
        assert not guard.is_plain(packed(job | {SETTINGS: json.dumps(said | {"executors": executors})}))


@pytest.mark.parametrize("order", [("a.B", SITE_CLASS), (SITE_CLASS, "a.B")])
def test_a_class_named_twice_is_refused_whichever_counts(job, order):
    """Who reads a job after us might take the other one."""
    own = json.dumps(SITE_CLASS).encode()
    twice = b', "path": '.join(json.dumps(path).encode() for path in order)
    assert job[SETTINGS].count(own) == 1
    assert not guard.is_plain(packed(job | {SETTINGS: job[SETTINGS].replace(own, twice)}))


def test_a_job_is_small_and_whole(job):
    assert not guard.is_plain(packed(job | {"config/config_fed_server.json": bytes(1 << 20)}))
    assert not guard.is_plain(packed({"config/config_fed_server.json": b"{}"}))
    assert not guard.is_plain(None)
    assert not guard.is_plain("text")


@given(st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_are_an_error(noise, place):
    whole = packed({SETTINGS: b"{}"})
    assert guard.is_plain(noise) is False
    assert guard.is_plain(whole[:place] + noise + whole[place:]) is False
