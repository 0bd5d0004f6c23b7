"""A dishonest aggregator's server: it runs what it likes, as its operator owns it, against honest sites."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from capedjica.engines.flare.carriage import Courier, Patience, Send
from capedjica.engines.flare.controller import ConductingController
from capedjica.study.federated.federation import SETTINGS
from capedjica.study.study_file import Study
from tests.attacks.hostile_messages import attack


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
        out.mkdir(exist_ok=True)
        try:
            # FLARE sends nothing to anybody where one of the names is unknown to it.
            outcomes = attack(
                contract, lambda asked: courier.exchange({k: asked[k] for k in names if k in asked})
            )
        except Exception as error:
            outcomes = {"failed": repr(error)}
        (out / "outcomes.part").write_text(json.dumps(outcomes))
        (out / "outcomes.part").rename(out / "outcomes.json")
