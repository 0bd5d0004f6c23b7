"""Coverage-guided fuzzing of every party of the secure sum in every round.

Run by ``make fuzz``, or ``python -m fuzz.fuzz_securesum --seconds 60`` where atheris is installed; other
arguments go to libFuzzer. The first byte of an input chooses a party and a round, the rest is the message.
What goes to the aggregator is signed with a site's own key first, so that the search gets past the signature:
it plays a site that lies. A finding is any exception but ProtocolError, or a refusal that changed something.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["capedjica"]):
    from capedjica.errors import ProtocolError
    from capedjica.securesum.identity import SIGNATURE_BYTES
    from capedjica.securesum.messages import sign

from tests.attacks.messages.party_state import aggregator_state, site_state
from tests.vectors.generate import NAMES, Run, identity

SITE = NAMES[0]
AGGREGATOR_ROUNDS = (1, 2, 3, 4, 5)
SITE_ROUNDS = (1, 2, 3, 4)


class AggregatorTarget:
    """The aggregator while it waits for the answers of one round."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seed = self.prepare()

    def prepare(self) -> bytes:
        """Bring a fresh run to the round; return the payload of a genuine message."""
        run = Run().waiting_in(self.number)
        self.party, self.state = run.aggregator, aggregator_state(run.aggregator)
        return run.answers[SITE][:-SIGNATURE_BYTES]

    def receive(self, data: bytes) -> None:
        """Give it the payload, signed by a site."""
        self.party.receive(sign(bytearray(data), identity(SITE)))

    def unchanged(self) -> bool:
        """Whether it remembers what it did."""
        return aggregator_state(self.party) == self.state


class SiteTarget:
    """A site while it waits for the request of one round."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seed = self.prepare()

    def prepare(self) -> bytes:
        """Bring a fresh run to the round; return a genuine message."""
        run = Run().waiting_in(self.number)
        run.close_round()
        self.party, self.state = run.sites[SITE], site_state(run.sites[SITE])
        return run.requests[SITE]

    def receive(self, data: bytes) -> None:
        """Give it the message."""
        self.party.receive(data)

    def unchanged(self) -> bool:
        """Whether it remembers what it did."""
        return site_state(self.party) == self.state


TARGETS = [*map(AggregatorTarget, AGGREGATOR_ROUNDS), *map(SiteTarget, SITE_ROUNDS)]


def one_input(data: bytes) -> None:
    """Try one input; raise on a finding."""
    if not data:
        return
    target = TARGETS[data[0] % len(TARGETS)]
    try:
        target.receive(data[1:])
    except ProtocolError:
        if not target.unchanged():
            raise RuntimeError("a refused message changed the state") from None
    else:
        target.prepare()


def main() -> None:
    """Fuzz for a bounded time, from the genuine messages and what earlier runs in this environment found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60)
    options, others = parser.parse_known_args()
    corpus = Path(sys.prefix, "fuzz-corpus-securesum")
    corpus.mkdir(exist_ok=True)
    for index, target in enumerate(TARGETS):
        Path(corpus, f"genuine-{index}").write_bytes(bytes([index]) + target.seed)
    limits = [f"-max_total_time={options.seconds}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *limits, *others, str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
