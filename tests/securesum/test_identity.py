import copy
import os
import pickle
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from capedjica.errors import InputError
from capedjica.securesum.identity import Identity, PublicIdentity


def test_saved_identity_is_private_and_loads_back(tmp_path):
    identity, path = Identity.generate(), tmp_path / "site.pem"
    identity.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert os.listdir(tmp_path) == ["site.pem"]
    assert Identity.load(path).public_key == identity.public_key


def test_save_never_overwrites(tmp_path):
    path = tmp_path / "site.pem"
    path.write_bytes(b"precious")
    with pytest.raises(InputError, match="already exists"):
        Identity.generate().save(path)
    assert path.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["site.pem"]


def test_save_into_a_missing_folder_says_so(tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file"):
        Identity.generate().save(tmp_path / "nowhere" / "site.pem")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_load_refuses_a_file_open_to_others(tmp_path, mode):
    path = tmp_path / "site.pem"
    Identity.generate().save(path)
    path.chmod(mode)
    with pytest.raises(InputError, match="open to other users"):
        Identity.load(path)


def pem(key, encryption=None):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "not an unencrypted PEM"),
        (b"\x00\xff" * 50, "not an unencrypted PEM"),
        (pem(X25519PrivateKey.generate()), "does not hold an Ed25519 key"),
        (pem(generate_private_key(65537, 2048)), "does not hold an Ed25519 key"),
        (pem(X25519PrivateKey.generate(), BestAvailableEncryption(b"x")), "not an unencrypted PEM"),
    ],
    ids=["empty", "noise", "x25519", "rsa", "encrypted"],
)
def test_load_refuses_other_files(tmp_path, content, named):
    path = tmp_path / "site.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InputError, match=named):
        Identity.load(path)


def test_load_of_a_missing_file_says_so(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        Identity.load(tmp_path / "site.pem")


def test_signature_verifies_only_for_the_signer_and_the_data():
    identity, other = Identity.generate(), Identity.generate()
    signature = identity.sign(b"data")
    assert identity.public("a").verify(signature, b"data")
    assert not identity.public("a").verify(signature, b"date")
    assert not other.public("b").verify(signature, b"data")
    assert not identity.public("a").verify(signature[:-1], b"data")


def test_card_round_trip_and_fingerprint():
    identity = Identity.generate()
    public = identity.public("hospital-1")
    assert PublicIdentity.from_card(public.card + "\n") == public
    assert public.fingerprint == identity.fingerprint
    assert [len(group) for group in public.fingerprint.split()] == [4] * 13
    assert Identity.generate().fingerprint != identity.fingerprint


@pytest.mark.parametrize(
    "card", ["", "x", "capedjica-site-1 a", "capedjica-site-2 a AAAA", "capedjica-site-1 a b c"]
)
def test_bad_cards_are_refused(card):
    with pytest.raises(InputError, match="not a site card"):
        PublicIdentity.from_card(card)


@pytest.mark.parametrize("key", ["****", "AAAA", "AAA"])
def test_cards_with_bad_keys_are_refused(key):
    with pytest.raises(InputError, match="site"):
        PublicIdentity.from_card(f"capedjica-site-1 a {key}")


@pytest.mark.parametrize("name", ["", "a b", "a\n", "é", "-a", ".a", "a" * 65, "aggregator", "a/b", "a\x00"])
def test_bad_names_are_refused(name):
    with pytest.raises(InputError, match="cannot be used"):
        PublicIdentity(name, bytes(32))


def test_no_secret_is_shown_or_copied():
    identity = Identity.generate()
    assert identity.fingerprint in repr(identity)
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            duplicate(identity)


def test_a_public_identity_is_pickled_also_after_it_verified_something():
    identity = Identity.generate()
    public = identity.public("s1")
    assert public.verify(identity.sign(b"label and data"), b"label and data")
    assert pickle.loads(pickle.dumps(public)) == public
