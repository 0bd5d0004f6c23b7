"""A real site in a process of its own, to be killed: a nursery that imports once and forks sites on demand.

Run as ``python -m tests.faults.site_worker DIRECTORY``, where the contract and the site's key lie. Each line
on standard input asks for a site; its process number is answered. A site ends when its wire is cut.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np

from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.site.answering import Site
from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Ledger, Policy
from capedjica.securesum.identity import Identity
from capedjica.securesum.noise import NoiseSource

NAME = "s0"
POLICY = Policy(total=Cap(100.0, 1e-5), per_study=Cap(100.0, 1e-5))


def open_ledger(directory: Path) -> Ledger:
    identity = Identity.load(directory / "identity.pem")
    return Ledger.open(
        directory / "ledger.sqlite",
        storage_key=identity.derive_key("ledger"),
        sign=identity.sign,
        verify=identity.public(NAME).verify,
        policy=POLICY,
        head_path=directory / "head",
    )


def load_contract(directory: Path) -> Contract:
    contract = pickle.loads((directory / "contract").read_bytes())
    assert isinstance(contract, Contract)
    return contract


def serve(directory: Path) -> None:
    """Answer messages until the other side hangs up."""
    contract = load_contract(directory)
    rows = np.full((contract.enrolled[NAME], contract.stages[0].query.size), 0.01)
    with open_ledger(directory) as ledger, Client(str(directory / "socket"), "AF_UNIX") as wire:
        ledger.register_study(contract.hash, contract.title, contract.cap(NAME))
        identity = Identity.load(directory / "identity.pem")
        site = Site(contract, NAME, identity, ledger, lambda *_: [rows], NoiseSource())
        while True:
            wire.send_bytes(site.handle(wire.recv_bytes()))


def main(directory: Path) -> None:
    """Fork a site for each line of standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                serve(directory)
            except (EOFError, OSError):
                os._exit(0)
            finally:
                os._exit(1)
        print(child, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
