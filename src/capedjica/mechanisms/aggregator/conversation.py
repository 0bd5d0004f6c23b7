"""Requests of the aggregator to the sites, and validation of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from capedjica.errors import ProtocolError
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import Question, Refusal, Reply, encode, question_hash, read_reply
from capedjica.tools.text import printable

Exchange = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
_Answer = TypeVar("_Answer", bound=Reply)


class Conversation:
    """Questions and answers under one contract.

    Parameters
    ----------
    contract : Contract
        The agreed contract.
    exchange : callable
        Sends bytes to sites by name and returns the answers received in time.

    Attributes
    ----------
    refusals : dict
        The most recent reason for each site that did not give a valid answer.
    """

    def __init__(self, contract: Contract, exchange: Exchange) -> None:
        self.refusals: dict[str, str] = {}
        self._contract, self._exchange = contract, exchange

    def ask(self, questions: Mapping[str, Question], expected: type[_Answer]) -> dict[str, _Answer]:
        """Return the answers of the expected kind.

        A refusal, a malformed message, or a message not signed by the site as its answer to exactly this
        question counts as no answer.
        """
        sent = {name: encode(question) for name, question in questions.items()}
        replies = self._exchange(sent)
        answers: dict[str, _Answer] = {}
        for name, question in sent.items():
            if name in replies:
                self.take(name, question, replies[name], expected, answers)
            else:
                self.refusals[name] = "no answer"
        return answers

    def take(
        self, name: str, question: bytes, data: bytes, expected: type[_Answer], answers: dict[str, _Answer]
    ) -> None:
        """Add a valid reply to the answers, or the reason why it is not valid to the refusals."""
        try:
            reply = read_reply(data, self._contract, name, question_hash(question))
        except ProtocolError as error:
            self.refusals[name] = str(error)
            return
        if isinstance(reply, Refusal):
            # defence: what-a-site-says
            self.refusals[name] = printable(reply.reason)
        elif isinstance(reply, expected):
            answers[name] = reply
        else:
            self.refusals[name] = f"it answered with {type(reply).__name__}, expected {expected.__name__}"
