"""A dishonest aggregator's server: it runs what it likes, as its operator owns it, against honest sites."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from capedjica.coordinator.flare.controller import ConductingController
from capedjica.coordinator.flare.courier import Courier, Patience, Send
from capedjica.flare.kit import SETTINGS
from capedjica.mechanisms.messages import VERSION, Ask, Begin, Hello, SlotPlan, encode, publication_hash
from capedjica.study.study_file import Study
from tests.attacks.messages.hostile_messages import attack


class HostileParty(ConductingController):
    """Tries everything and writes down what it obtained."""

    def __init__(self, study: str, insecure_noise_seed: int | None = None) -> None:
        super().__init__()

    def conduct(self, send: Send, settings: Path, ended: Callable[[], bool]) -> None:
        out = Path(json.loads((settings / SETTINGS).read_text())["out"])
        contract = Study.load(settings.parent / "study").contract
        courier = Courier(send, Patience(joining=60.0, silence=10.0))
        names = contract.roster.names
        courier.gather(names, ended)
        try:
            # FLARE sends nothing to anybody where one of the names is unknown to it.
            outcomes = attack(
                contract, lambda asked: courier.exchange({k: asked[k] for k in names if k in asked})
            )
        except Exception as error:
            outcomes = {"failed": repr(error)}
        write(out, outcomes)


class ProbingParty(ConductingController):
    """Asks one site each kind of question, and writes down to which there was a reply, and why not to others.

    Which study its job is about is the operator's choice; its questions are about the study of the kit.
    """

    def __init__(self, study: str, insecure_noise_seed: int | None = None) -> None:
        super().__init__()

    def conduct(self, send: Send, settings: Path, ended: Callable[[], bool]) -> None:
        told = json.loads((settings / SETTINGS).read_text())
        site, out = told["site"], Path(told["out"])
        contract = Study.load(settings.parent / "study").contract
        own, names, slot = (VERSION, contract.hash), list(contract.roster.names), SlotPlan(0, 0.1)
        questions = (
            Hello(*own, b"", [], b"", bytes(16)),
            Begin(*own, 0, names, [slot]),
            Ask(*own, 0, 0, names, slot, publication_hash(b""), b""),
        )
        outcomes = {}
        for question in questions:
            # Each with a patience of its own: who refused once is not asked again.
            courier = Courier(send, Patience(joining=60.0, silence=10.0))
            courier.gather([site], ended)
            replies = courier.exchange({site: encode(question)})
            outcomes[type(question).__name__] = {"replies": len(replies), "lost": courier.lost}
        write(out, outcomes)


def write(out: Path, outcomes: dict) -> None:
    """Write what was obtained, whole or not at all."""
    out.mkdir(exist_ok=True)
    (out / "outcomes.part").write_text(json.dumps(outcomes))
    (out / "outcomes.part").rename(out / "outcomes.json")
