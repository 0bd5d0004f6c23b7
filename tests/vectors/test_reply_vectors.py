"""The file of signed replies: regenerated, recomputed by other means, and its bad cases refused."""

import hashlib
import json
import re

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from capedjica.errors import ProtocolError
from capedjica.mechanisms.messages import ForgedReplyError, encode, question_hash, read_question, read_reply
from tests.vectors.generate_replies import NAME, PATH, build, contract, conversation

VECTORS = json.loads(PATH.read_text())
CONTRACT = contract()


def data(text):
    return bytes.fromhex(text)


def test_the_code_reproduces_the_file_of_replies():
    assert json.loads(json.dumps(build())) == VECTORS


@pytest.mark.parametrize("kind", VECTORS["good"])
def test_signatures_of_replies_by_hand(kind):
    """Ed25519 of a label, the hash of the question and the hash of the reply; no function of the package."""
    case, key = VECTORS["good"][kind], Ed25519PrivateKey.from_private_bytes(data(VECTORS["identity"]))
    hash = hashlib.sha256(b"capedjica/question/2" + data(case["question"])).digest()
    assert case["question hash"] == hash.hex()
    signature = key.sign(b"capedjica/reply/2\0" + hash + hashlib.sha256(data(case["reply"])).digest())
    assert case["signature"] == signature.hex()
    assert case["signed"] == case["signature"] + case["reply"]
    assert VECTORS["public key"] == key.public_key().public_bytes_raw().hex()


@pytest.mark.parametrize("kind", VECTORS["good"])
def test_good_replies_are_read(kind):
    case, (question, reply) = VECTORS["good"][kind], conversation()[kind]
    assert read_question(data(case["question"]), CONTRACT) == question
    assert encode(reply).hex() == case["reply"]
    assert read_reply(data(case["signed"]), CONTRACT, NAME, data(case["question hash"])) == reply


@pytest.mark.parametrize("case", VECTORS["bad replies to Hello"], ids=lambda case: case["what"])
def test_bad_replies_are_refused(case):
    question = data(VECTORS["good"]["Hello"]["question"])
    with pytest.raises(ProtocolError, match=re.escape(case["error"])) as caught:
        read_reply(data(case["signed"]), CONTRACT, NAME, question_hash(question))
    assert isinstance(caught.value, ForgedReplyError) == case["forged"]
