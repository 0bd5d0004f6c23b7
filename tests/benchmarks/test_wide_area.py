"""Long lines: the relay delays and drops as it says, leaves nothing behind, and carries a study."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from benchmarks import federated
from benchmarks.utility.shared.report import RESULTS
from benchmarks.wide_area import __main__ as command
from benchmarks.wide_area import line as line_module
from benchmarks.wide_area import namespaces, pages
from benchmarks.wide_area.line import Line, ends
from benchmarks.wide_area.namespaces import Conditions, network
from benchmarks.wide_area.pages import Row
from benchmarks.wide_area.study import run_between
from capedjica.study.study_file import Study
from tests.benchmarks.test_benchmarks import python
from tests.support.places import ROOT
from tests.support.waiting import wait_for

A, B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
REASON = namespaces.why_not()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def packet(source=A, destination=B, body=b""):
    """An IPv4 packet, as far as the relay looks at it."""
    return bytes([0x45]) + bytes(11) + source + destination + body


# The line, without a network


def test_a_packet_arrives_after_the_delay_and_not_before():
    line = Line(0.1, 0.0, 1)
    line.enter(packet(body=b"x"), 5.0)
    assert line.next_due() == pytest.approx(5.1)
    assert line.due(5.0999) == []
    assert line.due(5.1001) == [(B, packet(body=b"x"))]
    assert line.next_due() is None
    assert line.counts == {"delivered": 1}


def test_packets_of_one_moment_stay_in_order():
    line, sent = Line(0.1, 0.0, 1), [packet(body=bytes([255 - number])) for number in range(100)]
    for one in sent:
        line.enter(one, 1.0)
    assert [data for _, data in line.due(2.0)] == sent


def survivors(line, number, source=A):
    """Return which of so many packets are not dropped."""
    for index in range(number):
        line.enter(packet(source, body=index.to_bytes(4)), 0.0)
    return [int.from_bytes(data[-4:]) for _, data in line.due(1.0) if data[12:16] == source]


def test_losses_are_as_many_as_announced_and_depend_on_the_seed_alone():
    kept = survivors(Line(0.1, 0.01, 1), 10_000)
    # Six standard deviations of a binomial distribution.
    assert abs(10_000 - len(kept) - 100) < 6 * 10
    assert survivors(Line(0.1, 0.01, 1), 10_000) == kept
    assert survivors(Line(0.1, 0.01, 2), 10_000) != kept


def test_losses_of_one_direction_do_not_depend_on_the_others():
    line, other = Line(0.1, 0.2, 1), bytes([10, 0, 0, 3])
    alone = survivors(Line(0.1, 0.2, 1), 500)
    line.enter(packet(other), 0.0)
    line.due(1.0)
    assert survivors(line, 500) == alone
    assert survivors(line, 500, other) != alone


@pytest.mark.parametrize("data", [b"", b"\x60" + bytes(60), packet()[:19]], ids=["empty", "IPv6", "short"])
def test_other_packets_are_ignored(data):
    line = Line(0.1, 0.0, 1)
    line.enter(data, 0.0)
    assert ends(data) is None
    assert line.next_due() is None
    assert line.counts == {"ignored": 1}


def test_the_queue_is_bounded(monkeypatch):
    monkeypatch.setattr(line_module, "MOST_PACKETS", 3)
    line = Line(0.1, 0.0, 1)
    assert len(survivors(line, 5)) == 3
    assert line.counts["overflowed"] == 2


# The relay, between namespaces


def bound(place, kind=socket.SOCK_DGRAM):
    """Return a socket of a place."""
    with place.entered():
        made = socket.socket(socket.AF_INET, kind)
        made.bind((place.address, 4000))
    made.settimeout(10.0)
    return made


@needs_namespaces
def test_a_round_trip_takes_the_delay():
    with network(3, Conditions(0.2), 60.0) as joined:
        _, one, other = joined.places
        with bound(one) as near, bound(other) as far:
            before = time.monotonic()
            near.sendto(b"question", (other.address, 4000))
            data, source = far.recvfrom(100)
            there = time.monotonic()
            far.sendto(data, source)
            assert near.recv(100) == b"question"
            back = time.monotonic()
    assert there - before >= 0.1
    assert back - there >= 0.1
    assert joined.counts["delivered"] == 2


@needs_namespaces
def test_packets_are_lost_as_the_seed_says():
    """Which packets arrive is what the line says without any network, packet by packet."""
    # No more than fit into the buffer of a socket that is read later.
    conditions, number = Conditions(0.02, 0.1, 5), 150
    with network(2, conditions, 60.0) as joined:
        one, other = joined.places
        with bound(one) as near, bound(other) as far:
            for index in range(number):
                near.sendto(index.to_bytes(4), (other.address, 4000))
            far.settimeout(1.0)
            arrived = []
            while True:
                try:
                    arrived.append(int.from_bytes(far.recv(100)))
                except TimeoutError:
                    break
        source, destination = (socket.inet_aton(place.address) for place in joined.places)
    line = Line(0.01, conditions.loss, conditions.seed)
    for index in range(number):
        line.enter(packet(source, destination, index.to_bytes(4)), 0.0)
    assert arrived == [int.from_bytes(data[-4:]) for _, data in line.due(1.0)]
    assert joined.counts["dropped"] == number - len(arrived) > 0


@needs_namespaces
def test_a_connection_repeats_what_was_lost():
    """Real packets are lost, so the system's own TCP repeats them, and what arrives is whole."""
    sent = os.urandom(200_000)
    with network(2, Conditions(0.01, 0.05, 1), 60.0) as joined:
        one, other = joined.places
        with bound(other, socket.SOCK_STREAM) as door, bound(one, socket.SOCK_STREAM) as near:
            door.listen()
            near.connect((other.address, 4000))
            far, _ = door.accept()
            with far:
                far.settimeout(30.0)
                received = bytearray()
                near.setblocking(False)
                left = memoryview(sent)
                while len(received) < len(sent):
                    with suppress(BlockingIOError):
                        left = left[near.send(left) :] if left else left
                    received += far.recv(1 << 16)
    assert bytes(received) == sent
    assert joined.counts["dropped"] > 0


@needs_namespaces
def test_nothing_reaches_this_machine_and_this_thread_comes_back():
    before = os.readlink("/proc/thread-self/ns/net")
    with socket.create_server(("127.0.0.1", 0)) as door, network(2, Conditions(0.0), 60.0) as joined:
        with joined.places[0].entered():
            assert os.readlink("/proc/thread-self/ns/net") != before
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(door.getsockname(), 2.0)
            # No route leads out: an address for documentation, which nobody has.
            with pytest.raises(OSError, match="unreachable"):
                socket.create_connection(("192.0.2.1", 80), 2.0)
        assert os.readlink("/proc/thread-self/ns/net") == before


HOLD = """
import subprocess, sys, time
from benchmarks.wide_area.namespaces import Conditions, network
with network(2, Conditions(0.0), 60.0) as joined:
    with joined.places[0].entered():
        inside = subprocess.Popen(["sleep", "60"])
    print(inside.pid, flush=True)
    time.sleep(60)
"""


@needs_namespaces
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_the_relay_ends_with_the_process_that_started_it(number):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        inside = psutil.Process(int(process.stdout.readline()))
        family = psutil.Process(process.pid).children()
        (relay,) = [one for one in family if "benchmarks.wide_area.relay" in one.cmdline()]
        process.send_signal(number)
        process.wait()
        inside.terminate()
    wait_for(lambda: not relay.is_running() or relay.status() == psutil.STATUS_ZOMBIE)


# What is made of it


def rows():
    """Without delay 2 s; 10 rounds of 200 ms; two studies over a line that loses packets."""
    return [
        Row(0.0, 0.0, 1, 10, 5, 2.0, 20.0, 100, 0),
        Row(200.0, 0.0, 1, 10, 5, 4.4, 21.0, 100, 0),
        Row(200.0, 0.01, 1, 10, 5, 5.0, 22.0, 100, 3),
        Row(200.0, 0.01, 2, 10, 5, 7.0, 23.0, 100, 4),
    ]


def test_studies_are_put_beside_theory():
    without, delayed, lossy = pages.cells(rows())
    assert (without.theory, without.of_the_line) == (2.0, None)
    assert delayed.theory == pytest.approx(4.0)
    assert delayed.overhead == pytest.approx(1.1)
    assert delayed.of_the_line == pytest.approx(1.2)
    assert (lossy.overhead, lossy.worst) == (pytest.approx(1.5), pytest.approx(1.75))
    assert "1.50 by the median (MISSED: below 1.5) and 1.75 in the slowest" in pages.verdict([delayed, lossy])
    assert "1.10 by the median (met: below 1.5)" in pages.verdict([without, delayed])
    with pytest.raises(Exception, match="no study without delay"):
        pages.cells(rows()[1:])


def test_the_page_is_drawn_again_from_the_csv(tmp_path, capsys):
    pages.write_csv(tmp_path / "wide-area.csv", rows())
    assert pages.read_csv(tmp_path / "wide-area.csv") == rows()
    assert command.main(["--redraw", "--output", str(tmp_path)]) == 0
    page = (tmp_path / "wide-area.md").read_text()
    assert "| 200 ms | 1% | 2 | 10 | 4.00 s | 6.00 s | 1.50 | 1.75 | 2.00 | 3.5 | 22.5 s |" in page
    assert (tmp_path / "wide-area.svg").stat().st_size > 1000
    assert "MISSED" in capsys.readouterr().out


def test_without_results_nothing_is_drawn(tmp_path, capsys):
    assert command.main(["--redraw", "--output", str(tmp_path)]) == 2
    assert "run the benchmark without --redraw" in " ".join(capsys.readouterr().out.split())


def test_bad_numbers_of_repetitions_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--repetitions", "0"])
    assert ended.value.code == 2
    assert "--repetitions must lie between 1 and 20, got 0" in capsys.readouterr().err


def test_the_handler_of_signals_is_put_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    command.main(["--redraw", "--output", str(tmp_path)])
    assert signal.getsignal(signal.SIGTERM) == before


def test_where_namespaces_cannot_be_made_it_says_so(monkeypatch, capsys):
    def refuse(address):
        raise PermissionError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(namespaces, "_make_place", refuse)
    assert command.main(["--quick"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "cannot be made here ([Errno 1] unshare: Operation not permitted); root can make them" in said


def test_the_documentation_shows_what_was_measured():
    measured = pages.read_csv(RESULTS / "wide-area.csv")
    text = command.DOCUMENTED.read_text()
    shown = text.split(pages.BEGIN)[1].split(pages.END)[0].strip()
    assert shown == pages._markdown(pages.cells(measured))
    assert shown in (RESULTS / "wide-area.md").read_text()


def test_the_table_of_a_page_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{pages.BEGIN}\nold\n{pages.END}\n\nafter\n")
    for _ in range(2):
        pages.write_table(page, pages.cells(rows()))
        assert page.read_text().count("| 200 ms | 1% | 2 | 10 |") == 1
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    assert "old" not in page.read_text()


# Whole studies


def of_studies():
    """Return the command lines of studies that the benchmark runs."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if any("capedjica-wide-area-" in word for word in line)]


@pytest.mark.full
@needs_namespaces
def test_a_small_study_over_a_long_line_with_losses():
    done = python("-m", "benchmarks.wide_area", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "50 ms, 1% lost" in done.stdout
    assert not of_studies()


@pytest.mark.full
@needs_namespaces
def test_messages_of_a_megabyte_get_through_a_line_with_losses(tmp_path):
    """They take longer than a small message may, at what Reno makes of 200 ms and 1%; no site is given up."""
    homes = federated._write_study(federated.Size(people=4, side=22, components=5, iterations=4), tmp_path)
    study = Study.load(tmp_path)
    outcome = run_between(study, homes, Conditions(0.2, 0.01))
    assert max(one.n_bytes for one in outcome.rounds) > 900_000
    asked = [one for one in outcome.rounds if one.kind == "Ask"]
    assert len(asked) == sum(stage.count for stage in study.contract.stages)


@pytest.mark.full
@needs_namespaces
def test_nothing_is_left_of_a_study_whose_benchmark_is_killed(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program = [sys.executable, "-m", "benchmarks.wide_area", "--quick"]
    with subprocess.Popen(program, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        # Sites, server and job.
        wait_for(lambda: len(of_studies()) > 12, 120.0)
        process.kill()
    wait_for(lambda: not of_studies(), 60.0)
