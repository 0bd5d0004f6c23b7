"""The relay: carries packets between TUN devices, delayed and with losses.

``python -m benchmarks.wide_area.relay DELAY LOSS SEED SECONDS ADDRESS=DESCRIPTOR ...`` runs as a process of
its own, with the open devices. It ends after SECONDS, or when its standard input is closed, which happens
also if the process that started it is killed; then it prints what it counted.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.wide_area.line import Line

_LONGEST_PACKET: Final = 65_535
# Packets that are read from a device before those that are due are delivered.
_AT_ONCE: Final = 64


def carry(line: Line, devices: Mapping[bytes, int], seconds: float) -> None:
    """Carry packets between devices, by address, until the time is over or standard input is closed."""
    end = time.monotonic() + seconds
    control = sys.stdin.fileno()
    while (now := time.monotonic()) < end:
        _deliver(line, devices, now)
        due = line.next_due()
        pause = min(end, end if due is None else due) - time.monotonic()
        # Not epoll, which rounds to milliseconds.
        ready, _, _ = select.select([control, *devices.values()], [], [], max(0.0, pause))
        if control in ready:
            return
        for descriptor in ready:
            _take(line, descriptor)


def _take(line: Line, descriptor: int) -> None:
    for _ in range(_AT_ONCE):
        try:
            packet = os.read(descriptor, _LONGEST_PACKET)
        except BlockingIOError:
            return
        line.enter(packet, time.monotonic())


def _deliver(line: Line, devices: Mapping[bytes, int], now: float) -> None:
    for destination, packet in line.due(now):
        if destination in devices:
            try:
                os.write(devices[destination], packet)
            except OSError:
                line.counts["undeliverable"] += 1


def main(delay: str, loss: str, seed: str, seconds: str, *devices: str) -> None:
    """Carry packets, and print the counts as JSON."""
    line = Line(float(delay), float(loss), int(seed))
    given = [device.split("=") for device in devices]
    opened = {socket.inet_aton(address): int(descriptor) for address, descriptor in given}
    for descriptor in opened.values():
        os.set_blocking(descriptor, False)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry(line, opened, float(seconds))
    sys.stdout.write(json.dumps(line.counts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
