"""Write the test vectors of signed replies: ``python -m tests.vectors.generate_replies``.

Keys, question and reply are fixed, so every byte is reproducible. The version of the file is that of the
messages: bytes that change need a new version, not a new file under the old one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import msgspec

from capedjica.mechanisms.contract import Contract, Query, Stage
from capedjica.mechanisms.messages import (
    VERSION,
    Answer,
    Ask,
    Begin,
    Busy,
    Hello,
    Refusal,
    SlotPlan,
    Status,
    Sum,
    SumAnswer,
    Unknown,
    encode,
    publication_hash,
    question_hash,
    sign_reply,
)
from capedjica.securesum.parameters import Roster
from tests.vectors.generate import NAMES, fixed, identity

PATH = Path(__file__).with_name(f"replies-v{VERSION}.json")
NAME, OTHER = NAMES[:2]
FORGED = f"what came in the name of site {NAME} is not signed by its key"


def contract():
    roster = Roster.of(identity(name).public(name) for name in NAMES)
    stages = (Stage(Query("mean", 3, 1.0), 2),)
    return Contract("vectors", roster, (5, 6, 7, 8), stages, epsilon=(1.0,) * 4, delta=1e-5)


def conversation():
    """One question of each kind, and what the site says to it."""
    asked = (VERSION, contract().hash)
    said = (*asked, NAME)
    slot, head = SlotPlan(0, 0.25), fixed("head", 64)
    hello = Hello(*asked, b"public", [(1, 0)], head, fixed("nonce", 16))
    begin = Begin(*asked, 2, list(NAMES), [slot, slot])
    ask = Ask(*asked, 2, 1, list(NAMES), slot, publication_hash(b"public"), b"state")
    words = b"".join(number.to_bytes(8, "little") for number in (1, 2**63, 2**64 - 1))
    return {
        "Hello": (hello, Status(*said, 1, 0.125, head, "embedded")),
        "Begin": (begin, SumAnswer(*said, 2, b"first message")),
        "Sum": (Sum(*asked, 2, b"keys"), SumAnswer(*said, 2, b"next message")),
        "Ask": (ask, Answer(*said, 2, 1, 0.5, head, words)),
        "refused": (begin, Refusal(*said, "block numbers grow")),
        "busy": (ask, Busy(*said)),
        "unknown": (ask, Unknown(*said)),
    }


def good_vectors():
    vectors = {}
    for kind, (question, reply) in conversation().items():
        asked = encode(question)
        signed = sign_reply(identity(NAME), question_hash(asked), reply)
        vectors[kind] = {
            "question": asked.hex(),
            "question hash": question_hash(asked).hex(),
            "reply": encode(reply).hex(),
            "signature": signed[:64].hex(),
            "signed": signed.hex(),
        }
    return vectors


def bad_vectors():
    """Replies to the greeting that must be refused, whether they are forged, and with which words."""
    question, status = conversation()["Hello"]
    asked, own = encode(question), identity(NAME)
    hash, other = question_hash(asked), question_hash(encode(conversation()["Ask"][0]))
    truth = sign_reply(own, hash, status)
    content = truth[64:]
    digest = hashlib.sha256(content).digest()

    def changed(**values):
        return sign_reply(own, hash, msgspec.structs.replace(status, **values))

    forged = {
        "signed for another question": sign_reply(own, other, status),
        "signed by another site": sign_reply(identity(OTHER), hash, status),
        "another site's own reply": sign_reply(
            identity(OTHER), hash, msgspec.structs.replace(status, sender=OTHER)
        ),
        "signature of another label": own.sign(b"capedjica/reply/1\0" + hash + digest) + content,
        "signature without a label": own.sign(hash + digest) + content,
        "signature of the reply itself": own.sign(content) + content,
        "no signature": content,
        "signature of zeros": bytes(64) + content,
        "signature at the end": content + truth[:64],
        "truncated": truth[:-1],
        "extra bytes": truth + b"\0",
        "signature alone": truth[:64],
        "empty": b"",
    }
    refused = {
        "wrong sender": (changed(sender=OTHER), f"site {NAME} sent an answer in the name of site {OTHER}"),
        "unknown sender": (changed(sender="nobody"), "there is no site 'nobody' in the roster"),
        "wrong contract": (
            changed(contract=dataclasses.replace(contract(), title="another").hash),
            "a message belongs to another study than the one agreed on",
        ),
        "version before": (changed(version=VERSION - 1), f"version {VERSION - 1}, expected {VERSION}"),
        "version after": (changed(version=VERSION + 1), f"version {VERSION + 1}, expected {VERSION}"),
        "signed, truncated": (sign_reply(own, hash, content[:-1]), "cannot be read"),
        "signed, extra bytes": (sign_reply(own, hash, content + b"\0"), "cannot be read"),
        "signed, an unknown carrier": (changed(carrier="pigeon"), "cannot be read"),
        "signed, a question": (sign_reply(own, hash, asked), "cannot be read"),
    }
    return [
        *(
            {"what": what, "signed": data.hex(), "forged": True, "error": FORGED}
            for what, data in forged.items()
        ),
        *(
            {"what": what, "signed": data.hex(), "forged": False, "error": error}
            for what, (data, error) in refused.items()
        ),
    ]


def build():
    return {
        "message version": VERSION,
        "site": NAME,
        "identity": fixed(f"identity of {NAME}").hex(),
        "public key": identity(NAME).public_key.hex(),
        "contract hash": contract().hash.hex(),
        "good": good_vectors(),
        "bad replies to Hello": bad_vectors(),
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(build(), indent=1) + "\n")
