"""What a dishonest aggregator may say to the sites of a study, each lie by itself; in process and over FLARE.

An attack either begins as an honest aggregator would and changes some of its messages, or puts questions of
its own. It is judged by what came back from the sites: an :class:`Answer` is a release that it obtained, and
only a site's own :class:`Refusal` counts as one. An honest aggregator stops by itself when sites contradict
each other; where the lie is about that, the secure sum is led to its end by hand (:class:`Relay`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from capedjica.errors import CapedjicaError
from capedjica.mechanisms.aggregator.driving import Aggregator, Exchange
from capedjica.mechanisms.block import BlockLayout
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import (
    VERSION,
    Answer,
    Ask,
    Begin,
    Hello,
    Refusal,
    SlotPlan,
    Status,
    Sum,
    SumAnswer,
    encode,
)
from capedjica.mechanisms.messages import _questions as questions_decoder
from capedjica.mechanisms.messages import _replies as replies_decoder
from capedjica.securesum.commitments import survivors_hash
from capedjica.securesum.identity import AGGREGATOR, SIGNATURE_BYTES, Identity
from capedjica.securesum.messages import (
    Advertisement,
    AgreementList,
    KeyList,
    ShareList,
    SurvivorList,
    Unmasking,
    _aggregator_decoder,
    _site_decoder,
    encode_payload,
    header,
    sign,
)
from capedjica.securesum.messages import encode as encode_round
from capedjica.securesum.parameters import Roster, SumParameters

replace = msgspec.structs.replace


class LieIsOverError(CapedjicaError):
    """The honest part of a dishonest aggregator would now begin anew, with an honest block."""


class Wire:
    """Carries messages as given, remembers what came back, and changes the questions on their way."""

    def __init__(self, exchange: Exchange, change: Callable = lambda name, question: question) -> None:
        self.exchange_honestly, self.change = exchange, change
        self.asked: dict[str, list] = {}
        self.answers: list[Answer] = []
        self.unmasked: list[str] = []
        self.refusals: dict[str, list[str]] = {}

    def __call__(self, questions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        sent = {}
        for name, data in questions.items():
            question = questions_decoder.decode(data)
            self.asked.setdefault(name, []).append(question)
            if sum(isinstance(one, Begin) for one in self.asked[name]) > 1:
                raise LieIsOverError
            sent[name] = encode(self.change(name, question))
        replies = self.exchange_honestly(sent)
        for name, data in replies.items():
            self._note(name, replies_decoder.decode(data[SIGNATURE_BYTES:]))
        return replies

    def _note(self, name: str, reply: object) -> None:
        if isinstance(reply, Answer):
            self.answers.append(reply)
        elif isinstance(reply, Refusal):
            self.refusals.setdefault(name, []).append(reply.reason)
        elif isinstance(reply, SumAnswer) and isinstance(_site_message(reply.data), Unmasking):
            self.unmasked.append(name)

    def ask(self, questions: Mapping[str, object], expected: type) -> dict:
        """Put questions and return the replies of the kind that was wanted."""
        replies = self({name: encode(question) for name, question in questions.items()})
        read = {name: replies_decoder.decode(data[SIGNATURE_BYTES:]) for name, data in replies.items()}
        return {name: reply for name, reply in read.items() if isinstance(reply, expected)}

    def last(self, name: str, kind: type):
        return [question for question in self.asked[name] if isinstance(question, kind)][-1]

    @property
    def outcome(self) -> dict:
        """What was obtained, and which sites gave which reasons for not giving it; for JSON."""
        return {
            "answers": len(self.answers),
            "mu": {answer.sender: answer.mu for answer in self.answers},
            "unmasked": self.unmasked,
            "refusals": self.refusals,
        }


def attack(contract: Contract, exchange: Exchange) -> dict[str, dict]:
    """Make one honest release, then try everything; return what each attempt obtained, and why not more."""
    names = contract.roster.names
    honest = Wire(exchange)
    Aggregator(contract, honest).mean(0)
    begin, ask = honest.last(names[0], Begin), honest.last(names[0], Ask)
    outcomes = {"honest": honest.outcome}
    for name, (other, change) in _lies(contract).items():
        wire = Wire(exchange, change)
        with suppress(CapedjicaError):
            Aggregator(other, wire).mean(0)
        outcomes[name] = wire.outcome
    for name, views in _views(contract).items():
        wire = Wire(exchange)
        Relay(contract, wire, views).lead(begin, ask)
        outcomes[name] = wire.outcome
    for name, question in _questions_of_its_own(contract, begin, ask).items():
        wire = Wire(exchange)
        wire.ask(dict.fromkeys(names, question), Answer)
        outcomes[name] = wire.outcome
    again = Wire(exchange)
    again.ask(dict.fromkeys(names, ask), Answer)
    outcomes["old checkpoint, the same question"] = again.outcome | {
        "same": _words(again.answers) == _words(honest.answers)
    }
    return outcomes


def _words(answers: list[Answer]) -> dict[str, bytes]:
    return {answer.sender: answer.words for answer in answers}


def _lies(contract: Contract) -> dict[str, tuple[Contract, Callable]]:
    """Return attacks that go through a whole block: the contract that is pretended, and what is changed.

    Weights and noise are in no message, so that the study is the only place to lie about them.
    """
    roster = contract.roster
    mallory = Identity.generate().public("mallory")
    first, *others = contract.subjects
    altered = {
        "twice the epsilon": {"epsilon": tuple(2 * epsilon for epsilon in contract.epsilon)},
        "a larger count of one site": {"subjects": (10 * first, *others)},
        "a larger weight of one site": {"weights": _heavy_first(len(roster.sites))},
        "nobody colludes": {"roster": Roster(roster.sites, roster.threshold, 0)},
        "an invented peer in the roster": {
            "roster": Roster((*roster.sites[:-1], mallory), roster.threshold, roster.n_colluding)
        },
    }
    studies = {
        f"altered study, {name}": (dataclasses.replace(contract, **values), lambda name, question: question)
        for name, values in altered.items()
    }
    return studies | {
        "an invented peer among the keys": (contract, _forged_keys(contract)),
        "smaller noise: a larger part of the budget than agreed": (contract, _dearer_ask),
        "smaller noise: other participants than agreed": (contract, _fewer_participants),
    }


def _heavy_first(count: int) -> tuple[float, ...]:
    """Return weights of which the first is as large as all others together."""
    return (0.5, *[0.5 / (count - 1)] * (count - 1))


def _questions_of_its_own(contract: Contract, begin: Begin, ask: Ask) -> dict[str, object]:
    """Return single questions that no honest aggregator would ask after a release."""
    last = begin.block + 100
    return {
        "replayed block": begin,
        "replayed block, other slots": replace(begin, slots=begin.slots[:1]),
        "old checkpoint, another state under a used slot": replace(ask, state=ask.state + b"x"),
        "old checkpoint, other participants under a used slot": replace(
            ask, participants=ask.participants[:-1]
        ),
        "a block beyond the budget": replace(begin, block=last, slots=[SlotPlan(0, 1.0), SlotPlan(0, 1.0)]),
        "a block so far ahead that none could follow": replace(begin, block=2**62),
        "a stage that was not agreed on": replace(
            begin, block=last, slots=[SlotPlan(len(contract.stages), 0.1)]
        ),
        "an invented peer invited": replace(begin, block=last, invited=[*begin.invited, "mallory"]),
        "a release of a block that was never made": replace(ask, block=last),
    }


def _sum_question(question: object):
    """Return the round inside a message of the secure sum; None for anything else."""
    return _aggregator_decoder.decode(question.data) if isinstance(question, Sum) else None


def _site_message(data: bytes):
    """Return what a site signed."""
    return _site_decoder.decode(data[:-SIGNATURE_BYTES])


def _forged_keys(contract: Contract) -> Callable:
    victim = contract.roster.names[-1]

    def change(name, question):
        keys = _sum_question(question)
        if not isinstance(keys, KeyList) or name == victim:
            return question
        forged = tuple(_forged(data, victim) for data in keys.advertisements)
        return replace(question, data=encode_round(replace(keys, advertisements=forged)))

    return change


def _forged(data: bytes, victim: str) -> bytes:
    """Return the victim's advertisement signed by somebody else; those of others as they are."""
    message = _site_message(data)
    assert isinstance(message, Advertisement)
    return sign(encode_payload(message), Identity.generate()) if message.sender == victim else data


@dataclasses.dataclass(frozen=True)
class Views:
    """What each site is told in a secure sum.

    Attributes
    ----------
    present : dict
        The sites that are said to be there, by the site to which it is said.
    survivors : dict
        The same for those whose masked input is said to have arrived.
    fitting : bool
        Whether a site is shown only those agreements that fit what it was told, or all.
    """

    present: Mapping[str, tuple[str, ...]]
    survivors: Mapping[str, tuple[str, ...]]
    fitting: bool


def _views(contract: Contract) -> dict[str, Views]:
    """Return the lies that contradict each other from site to site."""
    names = contract.roster.names
    first = names[: len(names) // 2]
    everybody = dict.fromkeys(names, names)
    last_dead = {name: names[:-1] if name in first else names for name in names}
    split = {name: names[:-1] if name in first else names[1:] for name in names}
    dead = "a site called dead to one and alive to another"
    return {
        dead: Views(everybody, last_dead, fitting=False),
        f"{dead}, others' agreements kept back": Views(everybody, last_dead, fitting=True),
        "split views of who is there": Views(split, split, fitting=False),
        "split views of who is there, others' agreements kept back": Views(split, split, fitting=True),
    }


class Relay:
    """The aggregator of a secure sum that checks nothing and tells each site what suits it.

    Whoever refuses a round is left alone until the release that is asked for at the end.
    """

    def __init__(self, contract: Contract, wire: Wire, views: Views) -> None:
        self.contract, self.wire, self.views = contract, wire, views

    def lead(self, begin: Begin, ask: Ask) -> None:
        """Make a block like that of an honest release, round by round, and ask for a release out of it."""
        self.begin = self._next_block(begin)
        length = BlockLayout(self.contract, self.begin).n_words
        self.parameters = SumParameters(self.begin.hash, self.contract.roster, length, self.begin.block)
        keys = self._sums(dict.fromkeys(self.contract.roster.names, self.begin))
        dealt = self._round(keys, KeyList, lambda name: self._keys_for(name, keys))
        deals = {name: _site_message(data) for name, data in dealt.items()}
        masked = self._round(deals, ShareList, lambda name: self._envelopes_for(name, deals))
        agreed = self._round(masked, SurvivorList, lambda name: self.views.survivors[name])
        self._round(agreed, AgreementList, lambda name: self._agreements_for(name, agreed))
        self._ask(ask)

    def _next_block(self, begin: Begin) -> Begin:
        """Return a block of one slot: the budget that is left does not allow the honest one again."""
        hello = Hello(VERSION, self.contract.hash, b"", [], b"", bytes(16))
        there = self.wire.ask(dict.fromkeys(self.contract.roster.names, hello), Status)
        last = max(status.block for status in there.values())
        return replace(begin, block=last + 1, slots=begin.slots[:1])

    def _round(self, sites: Iterable[str], kind: type, told: Callable) -> dict[str, bytes]:
        """Tell each site something and return the signed answers of those that did not refuse."""
        own, block = header(self.parameters, AGGREGATOR), self.begin.block
        messages = {name: encode_round(kind(*own, told(name))) for name in sites}
        return self._sums(
            {name: Sum(VERSION, self.contract.hash, block, data) for name, data in messages.items()}
        )

    def _sums(self, questions: Mapping[str, object]) -> dict[str, bytes]:
        return {name: reply.data for name, reply in self.wire.ask(questions, SumAnswer).items()}

    def _keys_for(self, name: str, keys: Mapping[str, bytes]) -> tuple[bytes, ...]:
        return tuple(keys[peer] for peer in self.views.present[name] if peer in keys)

    def _envelopes_for(self, name: str, deals: Mapping) -> dict[str, bytes]:
        """Return what was sealed for a site by those of whom it knows."""
        peers = [peer for peer in self.views.present[name] if peer in deals]
        return {peer: deals[peer].envelopes[name] for peer in peers if name in deals[peer].envelopes}

    def _agreements_for(self, name: str, agreed: Mapping[str, bytes]) -> tuple[bytes, ...]:
        """Return the signed agreements: all, or those on the survivors that this site was told of."""
        wanted = survivors_hash(self.parameters, self.views.survivors[name])
        return tuple(
            data
            for data in agreed.values()
            if not self.views.fitting or _site_message(data).survivors_hash == wanted
        )

    def _ask(self, ask: Ask) -> None:
        asked = replace(ask, block=self.begin.block, slot=0, plan=self.begin.slots[0])
        told = self.views.survivors
        self.wire.ask({name: replace(asked, participants=list(told[name])) for name in told}, Answer)


def _dearer_ask(name, question):
    if not isinstance(question, Ask):
        return question
    plan = replace(question.plan, fraction=min(1.0, 2 * question.plan.fraction))
    return replace(question, plan=plan)


def _fewer_participants(name, question):
    if not isinstance(question, Ask):
        return question
    return replace(question, participants=question.participants[:-1])
