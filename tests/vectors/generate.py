"""Write the test vectors of the secure sum: ``python -m tests.vectors.generate``.

Fixed keys and a fixed source of randomness make every byte of a run reproducible; another implementation that
agrees with the file speaks the same protocol. The version of the file is that of the protocol: bytes that
change need a new version, not a new file under the old one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.sum_in_process import MemoryBlockRegister
from capedjica.securesum.aggregator import AggregatorSum
from capedjica.securesum.commitments import seed_commitment, share_commitment, survivors_hash
from capedjica.securesum.identity import Identity
from capedjica.securesum.masks import agree, pairwise_mask, self_mask
from capedjica.securesum.messages import Advertisement, encode_payload, read_site_message, sign
from capedjica.securesum.parameters import PROTOCOL_VERSION, Roster, SumParameters
from capedjica.securesum.ring import FixedPoint
from capedjica.securesum.shamir import PRIME, evaluate
from capedjica.securesum.site import SiteSum
from capedjica.securesum.stream import Keystream

PATH = Path(__file__).with_name(f"securesum-v{PROTOCOL_VERSION}.json")
NAMES = ("amber", "birch", "cedar", "dune")
LOST = "cedar"
VECTORS = {name: [i, 2**64 - 1 - i, 12345678901234567 * (i + 1)] for i, name in enumerate(NAMES)}


class Reproducible:
    """A source of bytes that anyone can predict: SHAKE-256 of a label and a counter. For vectors only."""

    def __init__(self, label):
        self.label, self.calls = label.encode(), 0

    def __call__(self, size):
        self.calls += 1
        return hashlib.shake_256(self.label + self.calls.to_bytes(8)).digest(size)


def fixed(label, size=32):
    """Bytes known to everyone."""
    return hashlib.shake_256(label.encode()).digest(size)


def identity(name):
    return Identity(Ed25519PrivateKey.from_private_bytes(fixed(f"identity of {name}")))


def parameters():
    roster = Roster.of(identity(name).public(name) for name in NAMES)
    return SumParameters(fixed("study"), roster, len(VECTORS[NAMES[0]]), block=3, attempt=1)


def words(array):
    """JSON has no 64-bit integers: decimal strings."""
    return [str(int(word)) for word in array]


class Run:
    """The run of the vectors, round by round; one site falls silent before its masked input."""

    def __init__(self):
        p = parameters()
        self.aggregator = AggregatorSum(p)
        self.sites = {
            name: SiteSum(
                p,
                identity(name),
                name,
                np.array(VECTORS[name], dtype=np.uint64),
                MemoryBlockRegister(),
                random_bytes=Reproducible(f"secrets of {name}"),
            )
            for name in NAMES
        }
        self.answers = {name: site.start() for name, site in self.sites.items()}
        self.requests, self.round = {}, 1

    def close_round(self):
        """Deliver the answers; keep the requests that follow."""
        for data in self.answers.values():
            self.aggregator.receive(data)
        self.requests = self.aggregator.advance()
        self.round += 1

    def answer(self):
        """Let the sites answer the requests."""
        self.answers = {name: self.sites[name].receive(data) for name, data in self.requests.items()}
        if self.round == 3:
            del self.answers[LOST]

    def waiting_in(self, number):
        """Go on until the aggregator waits for the answers of a round."""
        for _ in range(number - 1):
            self.close_round()
            self.answer()
        return self


def hexed(messages):
    return {name: data.hex() for name, data in messages.items()}


def encoding_vectors():
    good = [
        (2.0**-20, 8.0, 4, [0.0, 1.0, -1.0, 7.25, -8.0]),
        (0.1, 100.0, 1, [0.05, 0.15, 0.25, -0.35, 99.99]),
    ]
    bad = [
        (2.0**-20, 8.0, 4, [8.5], "exceeds the public bound 8"),
        (1.0, 2.0**62, 1, [0.0], "could reach 2^62 and wrap around"),
        (-1.0, 1.0, 1, [0.0], "step must be a positive number, got -1.0"),
    ]
    return [
        *(
            {"step": s, "bound": b, "n_terms": n, "values": v, "words": words(FixedPoint(s, b, n).encode(v))}
            for s, b, n, v in good
        ),
        *({"step": s, "bound": b, "n_terms": n, "values": v, "error": e} for s, b, n, v, e in bad),
    ]


def mask_vectors():
    p, key, seed = parameters(), fixed("key"), fixed("seed")
    private, peer = (X25519PrivateKey.from_private_bytes(fixed(f"private {i}")) for i in range(2))
    public = peer.public_key().public_bytes_raw()
    shared = agree(private, public, NAMES[1])
    return {
        "keystream": {"key": key.hex(), "words": words(Keystream(key).words(5))},
        "self": {"seed": seed.hex(), "name": NAMES[0], "words": words(self_mask(seed, p, NAMES[0]).words(5))},
        "pairwise": {
            "private": fixed("private 0").hex(),
            "public": public.hex(),
            "names": NAMES[:2],
            "shared": shared.hex(),
            "words": words(pairwise_mask(shared, p, *NAMES[:2]).words(5)),
        },
        "bad public keys": [
            {"public": bytes(32).hex(), "error": "no secret can be agreed with"},
            {"public": (1).to_bytes(32, "little").hex(), "error": "no secret can be agreed with"},
        ],
    }


def shamir_vectors():
    coefficients = [int.from_bytes(fixed(f"coefficient {i}")) for i in range(3)]
    points = [1, 2, 5, 100]
    shares = evaluate(coefficients, points)
    too_large = evaluate([2**256 + 1, 7], [1, 2])
    return {
        "good": {
            "coefficients": [f"{c:x}" for c in coefficients],
            "shares": {str(point): share.hex() for point, share in shares.items()},
        },
        "bad": [
            {
                "shares": {str(point): share.hex() for point, share in too_large.items()},
                "error": "do not belong to one secret",
            },
            {"shares": {"1": PRIME.to_bytes(33).hex()}, "error": "below the prime"},
            {"shares": {"1": bytes(32).hex()}, "error": "below the prime"},
            {"shares": {"0": bytes(33).hex()}, "error": "distinct integers of at least 1"},
        ],
    }


def roster_vectors():
    p = parameters()
    return {
        "sites": [
            {"name": name, "identity": fixed(f"identity of {name}").hex(), "card": site.card}
            | {"fingerprint": site.fingerprint}
            for name, site in zip(NAMES, p.roster.sites, strict=True)
        ],
        "threshold": p.roster.threshold,
        "n_colluding": p.roster.n_colluding,
        "hash": p.roster.hash.hex(),
        "study hash": p.study_hash.hex(),
        "block": p.block,
        "attempt": p.attempt,
        "context": p.context.hex(),
        "survivors hash": survivors_hash(p, (NAMES[0], NAMES[2])).hex(),
        "seed commitment": seed_commitment(fixed("seed"), p, NAMES[0]).hex(),
        "share commitment": share_commitment(p, "seed", *NAMES[:2], fixed("share", 33)).hex(),
    }


def run_vectors():
    run, rounds = Run(), []
    while not run.aggregator.done:
        answers = hexed(run.answers)
        run.close_round()
        rounds.append({"answers": answers, "requests": hexed(run.requests)})
        run.answer()
    return {
        "vectors": {name: words(vector) for name, vector in VECTORS.items()},
        "rounds": rounds,
        "survivors": run.aggregator.survivors,
        "sum": words(run.aggregator.result),
    }


def bad_message_vectors():
    """Messages that must be refused, by whom, in which round, and with which words."""
    first, second, fourth = (Run().waiting_in(number) for number in (1, 2, 4))
    answers = {1: first.answers, 2: second.answers}
    requests = {}
    for number, run in ((1, first), (2, second), (4, fourth)):
        run.close_round()
        requests[number] = run.requests
    name = NAMES[0]
    truth = answers[1][name]
    advertised = read_site_message(truth, parameters(), Advertisement)

    def resigned(**changes):
        return sign(encode_payload(msgspec.structs.replace(advertised, **changes)), identity(name))

    to_aggregator = [
        (1, resigned(version=2), "another version: 2, not 1"),
        (1, resigned(study_hash=bytes(32)), "another study hash"),
        (1, resigned(roster_hash=bytes(32)), "another roster hash"),
        (1, resigned(block=4), "another block: 4, not 3"),
        (1, resigned(attempt=0), "another attempt: 0, not 1"),
        (1, resigned(sender=NAMES[1]), "not signed by that site's pinned key"),
        (1, resigned(sender="nobody"), "there is no site 'nobody' in the roster"),
        (1, resigned(mask_key=bytes(32)), "no secret can be agreed with"),
        (1, resigned(mask_key=advertised.channel_key), "the same public key"),
        (1, truth[:-64] + bytes(64), "not signed by that site's pinned key"),
        (1, truth[:-1], "cannot be read"),
        (1, b"", "too short or too long"),
        (1, answers[2][name], "sent SharedKeys in the round of Advertisement"),
        (2, truth, "sent Advertisement in the round of SharedKeys"),
        (4, answers[2][LOST], "sent SharedKeys in the round of Agreement"),
    ]
    to_site = [
        (1, requests[4][name], "sent AgreementList in the round of KeyList"),
        (1, requests[1][name][:-1] + b"\x00", "not signed by that site's pinned key"),
        (2, requests[2][NAMES[1]], "dealt itself"),
        (2, requests[2][name][:-1] + b"\x00", "do not open"),
        (2, requests[1][name][:-1] + b"\x00", "sent KeyList in the round of ShareList"),
        (1, b"\xdd\xff\xff\xff\xff", "cannot be read"),
    ]
    return [
        {"to": to, "round": number, "message": data.hex(), "error": error}
        for to, cases in (("aggregator", to_aggregator), (name, to_site))
        for number, data, error in cases
    ]


def build():
    return {
        "protocol version": PROTOCOL_VERSION,
        "encoding": encoding_vectors(),
        "masks": mask_vectors(),
        "shamir": shamir_vectors(),
        "roster": roster_vectors(),
        "run": run_vectors(),
        "bad messages": bad_message_vectors(),
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(build(), indent=1) + "\n")
