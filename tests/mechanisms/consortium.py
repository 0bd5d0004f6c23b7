"""Four sites with ledgers on disk, and an aggregator; any of them can be stopped and started again."""

from __future__ import annotations

import msgspec

from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.contract import Contract, Query, Stage
from capedjica.mechanisms.site.answering import Site
from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Ledger, Policy
from capedjica.securesum.identity import Identity
from capedjica.securesum.noise import NoiseSource
from capedjica.securesum.parameters import Roster
from tests.mechanisms.world import make_data, reply

__all__ = ["DATA", "SIZES", "Consortium", "reply"]

SIZES = (12, 9, 15, 8)
DATA = make_data(SIZES, 20)


class Consortium:
    """The sites, their ledgers (each in a folder of its own where ``places`` says so) and the aggregator."""

    def __init__(self, folder, count=5, epsilon=5.0, policy_epsilon=50.0, places=(), timeout=30.0, **options):
        self.places = dict.fromkeys(DATA, folder) | dict(places)
        self.timeout = timeout
        self.identities = {name: Identity.generate() for name in DATA}
        roster = Roster.of([self.identities[name].public(name) for name in DATA])
        self.contract = Contract(
            title="once",
            roster=roster,
            subjects=SIZES,
            stages=(Stage(Query("mean", 20, 1.0), count),),
            epsilon=(epsilon,) * 4,
            delta=1e-5,
            **options,
        )
        self.policy = Policy(total=Cap(policy_epsilon, 1e-5), per_study=Cap(policy_epsilon, 1e-5))
        self.ledgers, self.sites, self.calls = {}, {}, []
        for name in DATA:
            self.start(name)
        self.aggregator = Aggregator(self.contract, self.exchange)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for ledger in self.ledgers.values():
            ledger.close()

    def open_ledger(self, name):
        identity = self.identities[name]
        return Ledger.open(
            self.places[name] / f"{name}.sqlite",
            storage_key=identity.derive_key("ledger"),
            sign=identity.sign,
            verify=identity.public(name).verify,
            policy=self.policy,
            head_path=self.places[name] / f"{name}.head",
            timeout=self.timeout,
        )

    def start(self, name, statistics=None):
        """Start a site, or stop it and start it again: memory is gone, the ledger stays."""
        if name in self.ledgers:
            self.ledgers[name].close()
        ledger = self.ledgers[name] = self.open_ledger(name)
        ledger.register_study(self.contract.hash, "once", self.contract.cap(name))
        self.sites[name] = Site(
            self.contract,
            name,
            self.identities[name],
            ledger,
            statistics or (lambda stage, published, state: [DATA[name]]),
            NoiseSource(),
        )

    def exchange(self, questions):
        answers = {
            name: self.sites[name].handle(data) for name, data in questions.items() if name in self.sites
        }
        self.calls.append((dict(questions), answers))
        return answers

    def last_ask(self):
        """The bytes of the last release asked for, and the answers to it."""
        questions, answers = next(
            (q, a)
            for q, a in reversed(self.calls)
            if msgspec.msgpack.decode(next(iter(q.values())))[0] == "Ask"
        )
        return next(iter(questions.values())), answers

    def spent(self, name):
        return self.ledgers[name].spent(self.contract.hash)
