"""The file of vectors: regenerated, recomputed by other means, and its bad cases refused."""

import hashlib
import hmac
import json
import re

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from capedjica.errors import CapedjicaError
from capedjica.securesum.identity import PublicIdentity
from capedjica.securesum.masks import agree
from capedjica.securesum.ring import FixedPoint
from capedjica.securesum.shamir import PRIME, combine
from tests.vectors.generate import NAMES, PATH, Run, build, words

VECTORS = json.loads(PATH.read_text())


def test_the_code_reproduces_the_file():
    assert json.loads(json.dumps(build())) == VECTORS


# By other means: no function of the package that made the file


def aes_words(key, count):
    """AES-256 of the block numbers, one by one."""
    cipher = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    blocks = b"".join(cipher.update(number.to_bytes(16)) for number in range(count))
    return [str(int.from_bytes(blocks[i : i + 8], "little")) for i in range(0, 8 * count, 8)]


def framed(*parts):
    return b"".join(len(part).to_bytes(4) + part for part in parts)


def hkdf(secret, purpose, *names):
    """RFC 5869 with one block of output."""
    context = bytes.fromhex(VECTORS["roster"]["context"])
    info = framed(purpose, context, *(name.encode() for name in names))
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def test_masks_by_hand():
    masks = VECTORS["masks"]
    assert masks["keystream"]["words"] == aes_words(bytes.fromhex(masks["keystream"]["key"]), 5)
    own = masks["self"]
    key = hkdf(bytes.fromhex(own["seed"]), b"self mask", own["name"])
    assert own["words"] == aes_words(key, 5)
    pair = masks["pairwise"]
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(pair["private"]))
    shared = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(pair["public"])))
    assert pair["shared"] == shared.hex()
    assert pair["words"] == aes_words(hkdf(shared, b"pairwise mask", *pair["names"]), 5)


def test_roster_and_context_by_hand():
    roster = VECTORS["roster"]
    sites = [PublicIdentity.from_card(site["card"]) for site in roster["sites"]]
    limits = [roster[limit].to_bytes(8) for limit in ("threshold", "n_colluding")]
    parts = [part for site in sites for part in (site.name.encode(), site.public_key)]
    digest = hashlib.sha256(framed(b"capedjica/roster", *limits, *parts)).digest()
    assert roster["hash"] == digest.hex()
    counters = [value.to_bytes(8) for value in (1, roster["block"], roster["attempt"])]
    study = bytes.fromhex(roster["study hash"])
    assert roster["context"] == framed(b"capedjica/securesum", *counters, study, digest).hex()
    assert (
        roster["seed commitment"]
        == hkdf(bytes.fromhex(VECTORS["masks"]["self"]["seed"]), b"seed commitment", NAMES[0]).hex()
    )
    assert [site.fingerprint for site in sites] == [site["fingerprint"] for site in roster["sites"]]


def test_shamir_by_hand():
    good = VECTORS["shamir"]["good"]
    coefficients = [int(c, 16) for c in good["coefficients"]]
    for point, share in good["shares"].items():
        value = sum(c * int(point) ** power for power, c in enumerate(coefficients)) % PRIME
        assert int(share, 16) == value
    some = dict(list(good["shares"].items())[1:])
    assert int.from_bytes(combine({int(x): bytes.fromhex(s) for x, s in some.items()})) == coefficients[0]


def test_signatures_by_hand():
    """Each answer of a site ends with its Ed25519 signature of the framed hash of what comes before."""
    keys = {
        site["name"]: PublicIdentity.from_card(site["card"]).public_key for site in VECTORS["roster"]["sites"]
    }
    for one in VECTORS["run"]["rounds"]:
        for name, answer in one["answers"].items():
            data = bytes.fromhex(answer)
            signed = framed(b"capedjica/securesum/signature", hashlib.sha256(data[:-64]).digest())
            Ed25519PublicKey.from_public_bytes(keys[name]).verify(data[-64:], signed)


def test_sum_by_hand():
    run = VECTORS["run"]
    assert len(run["rounds"]) == 5
    columns = zip(*(map(int, run["vectors"][name]) for name in run["survivors"]), strict=True)
    assert run["sum"] == [str(sum(column) % 2**64) for column in columns]
    assert len(run["survivors"]) == len(run["vectors"]) - 1


def test_encoding_by_hand():
    for case in VECTORS["encoding"]:
        if "words" in case:
            exact = [round(value / case["step"]) % 2**64 for value in case["values"]]
            assert case["words"] == [str(word) for word in exact]


# Bad cases


@pytest.mark.parametrize("case", [c for c in VECTORS["encoding"] if "error" in c], ids=lambda c: c["error"])
def test_bad_encodings_are_refused(case):
    with pytest.raises(CapedjicaError, match=re.escape(case["error"])):
        FixedPoint(case["step"], case["bound"], case["n_terms"]).encode(case["values"])


@pytest.mark.parametrize("case", VECTORS["masks"]["bad public keys"], ids=lambda c: c["public"][:4])
def test_bad_public_keys_are_refused(case):
    with pytest.raises(CapedjicaError, match=re.escape(case["error"])):
        agree(X25519PrivateKey.generate(), bytes.fromhex(case["public"]), "peer")


@pytest.mark.parametrize("case", VECTORS["shamir"]["bad"], ids=lambda c: c["error"])
def test_bad_shares_are_refused(case):
    with pytest.raises(CapedjicaError, match=re.escape(case["error"])):
        combine({int(x): bytes.fromhex(s) for x, s in case["shares"].items()})


@pytest.mark.parametrize(
    "case", VECTORS["bad messages"], ids=lambda c: f"{c['to']}-{c['round']}-{c['error'][:40]}"
)
def test_bad_messages_are_refused_and_the_run_goes_on(case):
    run = Run().waiting_in(case["round"])
    receive = run.aggregator.receive
    if case["to"] != "aggregator":
        run.close_round()
        receive = run.sites[case["to"]].receive
    with pytest.raises(CapedjicaError, match=re.escape(case["error"])):
        receive(bytes.fromhex(case["message"]))
    if case["to"] != "aggregator":
        run.answer()
    while not run.aggregator.done:
        run.close_round()
        run.answer()
    assert words(run.aggregator.result) == VECTORS["run"]["sum"]
    assert run.aggregator.result.dtype == np.uint64
