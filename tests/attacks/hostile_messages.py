"""What a dishonest aggregator may say to the sites of a study, each lie by itself; in process and over FLARE.

Every attack begins as an honest aggregator would, changes some of its messages, and is judged by what came
back: an :class:`Answer` is a release that the attack obtained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import msgspec

from capedjica.errors import CapedjicaError, ProtocolError
from capedjica.mechanisms.aggregator import Aggregator, Exchange
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import Answer, Ask, Begin, Refusal, SlotPlan, Sum, encode
from capedjica.mechanisms.messages import _questions as questions_decoder
from capedjica.mechanisms.messages import _replies as replies_decoder
from capedjica.securesum import Identity, Roster
from capedjica.securesum.identity import SIGNATURE_BYTES
from capedjica.securesum.messages import (
    Advertisement,
    KeyList,
    SurvivorList,
    _aggregator_decoder,
    _site_decoder,
    encode_payload,
    sign,
)
from capedjica.securesum.messages import encode as encode_round

replace = msgspec.structs.replace


class Wire:
    """Carries messages as given, remembers them, and changes the questions on their way."""

    def __init__(self, exchange: Exchange, change: Callable = lambda name, question: question) -> None:
        self.exchange_honestly, self.change = exchange, change
        self.asked: dict[str, list] = {}
        self.answers: list[Answer] = []
        self.reasons: set[str] = set()

    def __call__(self, questions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        sent = {}
        for name, data in questions.items():
            question = questions_decoder.decode(data)
            self.asked.setdefault(name, []).append(question)
            if sum(isinstance(one, Begin) for one in self.asked[name]) > 1:
                raise ProtocolError("the lie was noticed: a second block would be honest")
            sent[name] = encode(self.change(name, question))
        replies = self.exchange_honestly(sent)
        for data in replies.values():
            reply = replies_decoder.decode(data)
            if isinstance(reply, Answer):
                self.answers.append(reply)
            elif isinstance(reply, Refusal):
                self.reasons.add(reply.reason)
        return replies

    def last(self, name: str, kind: type):
        return [question for question in self.asked[name] if isinstance(question, kind)][-1]


def attack(contract: Contract, exchange: Exchange) -> dict[str, dict]:
    """Make one honest release, then try everything; return what each attempt obtained, and why not more."""
    honest = Wire(exchange)
    Aggregator(contract, honest).mean(0)
    begin, ask = honest.last(contract.roster.names[0], Begin), honest.last(contract.roster.names[0], Ask)
    outcomes = {"honest": _outcome(honest)}
    for name, (other, change) in _lies(contract, begin, ask).items():
        wire = Wire(exchange, change)
        try:
            Aggregator(other, wire).mean(0)
        except CapedjicaError as error:
            wire.reasons.add(str(error))
        outcomes[name] = _outcome(wire)
    for name, question in _questions_of_its_own(contract, begin, ask).items():
        wire = Wire(exchange)
        wire({site: encode(question) for site in contract.roster.names})
        outcomes[name] = _outcome(wire)
    # An old checkpoint asks again what was answered: the same bytes, and nothing charged.
    again = Wire(exchange)
    again({site: encode(ask) for site in contract.roster.names})
    same = {answer.sender: answer.words for answer in again.answers} == {
        answer.sender: answer.words for answer in honest.answers
    }
    outcomes["old checkpoint, the same question"] = {"answers": 0 if same else -1, "reasons": []}
    return outcomes


def _outcome(wire: Wire) -> dict:
    return {"answers": len(wire.answers), "reasons": sorted(wire.reasons)}


def _lies(contract: Contract, begin: Begin, ask: Ask) -> dict[str, tuple[Contract, Callable]]:
    """Return attacks that go through a whole block: the contract that is pretended, and what is changed."""
    roster = contract.roster
    mallory = Identity.generate().public("mallory")
    invented = Roster((*roster.sites[:-1], mallory), roster.threshold, roster.n_colluding)
    dearer = dataclasses.replace(contract, epsilon=tuple(2 * epsilon for epsilon in contract.epsilon))
    half = dataclasses.replace(contract, subjects=tuple(2 * count for count in contract.subjects))
    honest = lambda name, question: question  # noqa: E731
    return {
        "altered study, twice the epsilon": (dearer, honest),
        "altered study, other weights": (half, honest),
        "altered study, an invented peer in the roster": (
            dataclasses.replace(contract, roster=invented),
            honest,
        ),
        "an invented peer among the keys": (contract, _forged_keys(contract)),
        "a site called dead to one and alive to another": (contract, _dead_and_alive(contract)),
        "split views of who is there": (contract, _split_views(contract)),
        "smaller noise: a larger part of the budget than agreed": (contract, _dearer_ask),
        "smaller noise: other participants than agreed": (contract, _fewer_participants),
    }


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
        "a stage that was not agreed on": replace(
            begin, block=last, slots=[SlotPlan(len(contract.stages), 0.1)]
        ),
        "an invented peer invited": replace(begin, block=last, invited=[*begin.invited, "mallory"]),
        "a release of a block that was never made": replace(ask, block=last),
    }


def _sum_question(question: object):
    """Return the round inside a message of the secure sum; None for anything else."""
    return _aggregator_decoder.decode(question.data) if isinstance(question, Sum) else None


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
    message = _site_decoder.decode(data[:-SIGNATURE_BYTES])
    assert isinstance(message, Advertisement)
    return sign(encode_payload(message), Identity.generate()) if message.sender == victim else data


def _dead_and_alive(contract: Contract) -> Callable:
    *first, last = contract.roster.names
    first = first[: len(contract.roster.names) // 2]

    def change(name, question):
        survivors = _sum_question(question)
        if not isinstance(survivors, SurvivorList) or name not in first:
            return question
        fewer = tuple(site for site in survivors.survivors if site != last)
        return replace(question, data=encode_round(replace(survivors, survivors=fewer)))

    return change


def _split_views(contract: Contract) -> Callable:
    """Tell half of the sites that the last was never there, and the others that the first was not."""
    first = contract.roster.names[: len(contract.roster.names) // 2]

    def change(name, question):
        keys = _sum_question(question)
        if not isinstance(keys, KeyList):
            return question
        view = keys.advertisements[:-1] if name in first else keys.advertisements[1:]
        return replace(question, data=encode_round(replace(keys, advertisements=view)))

    return change


def _dearer_ask(name, question):
    if not isinstance(question, Ask):
        return question
    plan = replace(question.plan, fraction=min(1.0, 2 * question.plan.fraction))
    return replace(question, plan=plan)


def _fewer_participants(name, question):
    if not isinstance(question, Ask):
        return question
    return replace(question, participants=question.participants[:-1])
