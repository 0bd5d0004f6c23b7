"""Network namespaces without names, joined by the relay; all vanish with the processes that use them.

Each namespace has a loopback device and one TUN device, whose packets only the relay sees: nothing reaches
the networks of this machine. As namespaces and devices have no names elsewhere, they need not be removed:
the system frees them when the last process inside ends and the last descriptor is closed, also after a kill.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.framework import ROOT
from capedjica.errors import InputError

_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_DEVICE: Final = "wan0"
_CONGESTION_CONTROL: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")
# Whatever this machine uses: the oldest algorithm, which losses slow down most, and always available.
_RENO: Final = "reno"
_PREFIX: Final = "10.231.77"
_MTU: Final = 1500
# Packets that wait for the relay: enough that it is the relay alone that drops.
_QUEUE: Final = 20_000
_MOST_PLACES: Final = 50


@dataclass(frozen=True)
class Conditions:
    """A line's round-trip time in seconds, its rate of lost packets, and the seed of the losses."""

    round_trip: float
    loss: float = 0.0
    seed: int = 1


@dataclass(frozen=True)
class Place:
    """A namespace: its address, and the descriptors of the namespace and of its device."""

    address: str
    namespace: int
    device: int

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread, and all that it starts meanwhile, be in the namespace."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _call("setns", self.namespace, _CLONE_NEWNET)
            yield
        finally:
            _call("setns", before, _CLONE_NEWNET)
            os.close(before)


class Network:
    """Places that are joined by a relay.

    Attributes
    ----------
    places : list of Place
        The namespaces.
    counts : dict
        After the end: the packets that were delivered, dropped and so on.
    """

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self.counts: dict[str, int] = {}


@contextmanager
def network(n_places: int, conditions: Conditions, seconds: float = 3600.0) -> Iterator[Network]:
    """Make namespaces, joined by a relay that runs for at most so many seconds; free them at the end."""
    if not 2 <= n_places <= _MOST_PLACES:
        raise InputError(f"the number of places must be between 2 and {_MOST_PLACES}, got {n_places}")
    if (reason := why_not()) is not None:
        raise InputError(reason)
    made = Network([])
    try:
        made.places += [_make_place(f"{_PREFIX}.{number}") for number in range(1, n_places + 1)]
        with _relay(made, conditions, seconds):
            yield made
    finally:
        for place in made.places:
            os.close(place.device)
            os.close(place.namespace)


def why_not() -> str | None:
    """Return why namespaces cannot be made here; None if they can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces need Linux, this is {sys.platform}"
    if shutil.which("ip") is None:
        return "the program 'ip' is not installed; install iproute2"
    try:
        place = _make_place(f"{_PREFIX}.1")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces with TUN devices cannot be made here ({error}); root can make them"
    os.close(place.device)
    os.close(place.namespace)
    return None


def _make_place(address: str) -> Place:
    """Make a namespace in a thread that ends in it."""
    made: list[Place] = []
    failed: list[Exception] = []

    def make() -> None:
        try:
            made.append(_own_place(address))
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _own_place(address: str) -> Place:
    """Move this thread to a namespace of its own, with a TUN device."""
    _call("unshare", _CLONE_NEWNET)
    opened: list[int] = []
    try:
        opened.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        opened.append(os.open("/dev/net/tun", os.O_RDWR))
        fcntl.ioctl(opened[1], _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        _CONGESTION_CONTROL.write_text(_RENO)
        for command in (
            "link set lo up",
            f"address add {address}/24 dev {_DEVICE}",
            f"link set {_DEVICE} mtu {_MTU} txqueuelen {_QUEUE} up",
        ):
            subprocess.run(["ip", *command.split()], check=True, capture_output=True)
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return Place(address, *opened)


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library that changes the namespace of this thread."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@contextmanager
def _relay(made: Network, conditions: Conditions, seconds: float) -> Iterator[None]:
    """Run the relay; the counts are read when it ends."""
    devices = [f"{place.address}={place.device}" for place in made.places]
    settings = (conditions.round_trip / 2, conditions.loss, conditions.seed, seconds)
    command = [sys.executable, "-m", f"{__package__}.relay", *map(str, settings), *devices]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[place.device for place in made.places],
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline() != b"ready\n":
                raise InputError("the relay could not be started")
            yield
        finally:
            process.stdin.close()
            said = process.stdout.read()
            made.counts = json.loads(said) if said else {}
