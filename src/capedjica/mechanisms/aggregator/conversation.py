"""How the aggregator talks to the sites: a question to each, and of the answers only those that fit."""

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
        What all parties agreed on.
    exchange : callable
        Sends bytes to sites by name and returns the answers that came back in time.

    Attributes
    ----------
    refusals : dict
        Why each site that did not answer as it should did not, the last time.
    """

    def __init__(self, contract: Contract, exchange: Exchange) -> None:
        self.refusals: dict[str, str] = {}
        self._contract, self._exchange = contract, exchange

    def ask(self, questions: Mapping[str, Question], expected: type[_Answer]) -> dict[str, _Answer]:
        """Return the answers of the expected kind.

        As good as none are a refusal, a broken message, and what the site did not sign as its answer to
        exactly this question.
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
        """Put what came for a question among the answers, or why not among the refusals."""
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
            self.refusals[name] = f"answered with {type(reply).__name__}, expected {expected.__name__}"
