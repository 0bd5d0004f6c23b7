import secrets

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from capedjica.errors import ProtocolError
from capedjica.securesum.masks import _CHUNK, agree, apply_masks, derive_key, pairwise_mask, self_mask
from capedjica.securesum.parameters import Roster
from capedjica.securesum.stream import Keystream
from tests.securesum.consortium import Consortium, random_words


@pytest.mark.parametrize("size", [1, 7, _CHUNK - 1, _CHUNK, _CHUNK + 1, 3 * _CHUNK + 5])
def test_masks_are_added_word_for_word(size):
    keys = [secrets.token_bytes(32) for _ in range(5)]
    words = random_words(size)
    expected = words + sum(Keystream(k).words(size) for k in keys[:2])
    expected -= sum(Keystream(k).words(size) for k in keys[2:])
    masked = words.copy()
    apply_masks(masked, map(Keystream, keys[:2]), map(Keystream, keys[2:]))
    np.testing.assert_array_equal(masked, expected)


def test_pairwise_masks_cancel():
    parameters = Consortium(3).parameters
    u, v = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    a, b, _ = parameters.roster.names
    words = np.zeros(1000, dtype=np.uint64)
    to_v = agree(u, v.public_key().public_bytes_raw(), b)
    to_u = agree(v, u.public_key().public_bytes_raw(), a)
    apply_masks(words, [pairwise_mask(to_v, parameters, a, b)])
    assert np.count_nonzero(words) > 990
    apply_masks(words, (), [pairwise_mask(to_u, parameters, b, a)])
    assert not words.any()


def test_the_mask_of_a_pair_does_not_look_at_the_other_sites(monkeypatch):
    """A site makes one for each peer: work for all sites in each would be quadratic."""
    parameters = Consortium(3).parameters
    a, _, c = parameters.roster.names
    expected = pairwise_mask(bytes(32), parameters, a, c).words(4)
    monkeypatch.setattr(Roster, "in_order", None)
    np.testing.assert_array_equal(pairwise_mask(bytes(32), parameters, c, a).words(4), expected)


def test_keys_differ_by_purpose_sum_and_names():
    consortium = Consortium(3)
    p, secret = consortium.parameters, secrets.token_bytes(32)
    consortium.next_attempt()
    q = consortium.parameters
    a, b, c = p.roster.names
    keys = {
        derive_key(secret, "x", p, a, b),
        derive_key(secret, "y", p, a, b),
        derive_key(secret, "x", q, a, b),
        derive_key(secret, "x", p, b, a),
        derive_key(secret, "x", p, a, c),
        derive_key(secret, "x", p, a),
        derive_key(secret, "x", p, a + b),
    }
    assert len(keys) == 7


def test_self_masks_of_one_seed_differ_between_sites_and_attempts():
    consortium = Consortium(2)
    seed, p = bytes(32), consortium.parameters
    consortium.next_attempt()
    streams = [
        self_mask(seed, q, name).words(2).tobytes()
        for q in (p, consortium.parameters)
        for name in p.roster.names
    ]
    assert len(set(streams)) == 4


LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


@pytest.mark.parametrize("key", LOW_ORDER, ids=range(len(LOW_ORDER)))
def test_keys_of_low_order_are_refused(key):
    with pytest.raises(ProtocolError, match="site mallory advertised a public key"):
        agree(X25519PrivateKey.generate(), key, "mallory")
