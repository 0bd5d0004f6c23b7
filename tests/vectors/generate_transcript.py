"""Write the transcript of a whole small study: ``python -m tests.vectors.generate_transcript``.

Every message of both directions, from what the sites' subjects add up to onwards: identities, sums, noise and
all other randomness are fixed, so every byte is reproducible. Each message is kept by its hash, and the first
of each kind whole. The version of the file is that of the messages: bytes that change need a new version, not
a new file under the old one; a version of the package that changes none keeps the file as it is.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import Query, Stage
from capedjica.mechanisms.messages import VERSION
from capedjica.mechanisms.site.answering import Site
from capedjica.securesum.identity import Identity
from tests.mechanisms.world import parts
from tests.vectors.generate import NAMES, Reproducible, identity

PATH = Path(__file__).with_name(f"transcript-v{VERSION}.json")
STAGES = (Stage(Query("first", 3, 1.0), 2, 0.5), Stage(Query("second", 2, 1.0), 1, 0.5))
LATE = NAMES[2]


def sum_of(name, stage, state):
    """What the subjects of a site add up to: any integers, that depend on all that was asked."""
    start = 1000 * NAMES.index(name) + 100 * stage + len(state)
    return np.arange(start, start + STAGES[stage].query.size, dtype=np.int64) - 1500


@contextmanager
def fixed_world():
    """Nothing random, no clock, and no numbers but integers where the subjects are summed."""
    source, ticks = Reproducible("transcript"), itertools.count(1_700_000_000_000_000_000, 1_000_000)
    names = iter(NAMES)

    def summed(site, ask, plan, published):
        return sum_of(site.name, ask.plan.stage, ask.state)

    with ExitStack() as held:
        for target, name, value in (
            (os, "urandom", source),
            (secrets, "_sysrand", SimpleNamespace(randbytes=source)),
            (time, "time_ns", lambda: next(ticks)),
            (Identity, "generate", lambda: identity(next(names))),
            (Site, "_sum_subjects", summed),
        ):
            held.enter_context(patch.object(target, name, value))
        yield


class Losing:
    """A carrier that loses the first answer of one site to a release: it is asked again."""

    def __init__(self):
        self.lost = False

    def __call__(self, letter):
        is_answer = letter.direction == "answer" and parts(letter)[0] == "Answer"
        if is_answer and letter.site == LATE and not self.lost:
            self.lost = True
            return []
        return [letter.data]


def run():
    """Run the study; return its letters and its means."""
    with fixed_world():
        study = EmbeddedStudy(
            "transcript",
            {name: 5 + number for number, name in enumerate(NAMES)},
            dict.fromkeys(NAMES),
            STAGES,
            in_process(epsilon=1.0),
            insecure_noise_seed=7,
            carrier=Losing(),
        )
        study.engine.keep_transcript = True
        means = [study.mean(0, b"begin"), study.mean(0, b"go on")]
        study.publish(b"public data")
        means.append(study.mean(1))
        study.aggregator.charged()
        return study.engine.transcript, means


def build():
    letters, means = run()
    whole = {}
    for letter in letters:
        whole.setdefault(parts(letter)[0], letter.data.hex())
    return {
        "protocol version": VERSION,
        "letters": [
            f"{letter.round} {letter.site} {letter.direction} {parts(letter)[0]} "
            f"{hashlib.sha256(letter.data).hexdigest()}"
            for letter in letters
        ],
        "first of each kind": whole,
        "means": [mean.tobytes().hex() for mean in means],
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(build(), indent=1) + "\n")
