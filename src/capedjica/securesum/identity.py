"""The identity of a site: a long-term Ed25519 key, and the site card with its public key."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NoReturn

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from capedjica.errors import InputError
from capedjica.tools.atomic_files import TakenError, write_whole, writing

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"
AGGREGATOR: Final = "aggregator"
_CARD_PREFIX: Final = "capedjica-site-1"
_COUNTED_PREFIX: Final = "capedjica-site-2"
# The number of participants of a site has no more digits than this.
_MOST_DIGITS: Final = 12


def fingerprint(public_key: bytes) -> str:
    """Return the SHA-256 of a public key as 13 groups of four characters, for comparison by phone."""
    text = base64.b32encode(hashlib.sha256(public_key).digest()).decode().rstrip("=").lower()
    return " ".join(text[i : i + 4] for i in range(0, len(text), 4))


@dataclass(frozen=True)
class PublicIdentity:
    """The public identity of a site: its name and the Ed25519 public key, pinned out of band.

    Parameters
    ----------
    name : str
        Up to 64 letters, digits, dots, dashes and underscores; "aggregator" is reserved.
    public_key : bytes
        The 32 bytes of the Ed25519 public key.
    """

    name: str
    public_key: bytes

    def __post_init__(self) -> None:
        if not re.fullmatch(NAME_PATTERN, self.name) or self.name == AGGREGATOR:
            raise InputError(
                f"site name {self.name[:80]!r} cannot be used; expected up to 64 letters, digits, '.', '-' "
                f"and '_', starting with a letter or digit, and not {AGGREGATOR!r}"
            )
        if len(self.public_key) != KEY_BYTES:
            raise InputError(
                f"site {self.name}: a public key must have {KEY_BYTES} bytes, got {len(self.public_key)}"
            )

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the public key."""
        return fingerprint(self.public_key)

    @property
    def card(self) -> str:
        """The site card: one line of text to send to the coordinator."""
        return f"{_CARD_PREFIX} {self.name} {base64.b64encode(self.public_key).decode()}"

    @classmethod
    def from_card(cls, card: str) -> PublicIdentity:
        """Read a site card; its fingerprint must still be compared with the one that the site states."""
        words = card.split()
        if len(words) != 3 or words[0] != _CARD_PREFIX:
            raise InputError(f"not a site card: expected '{_CARD_PREFIX} NAME KEY', got {card[:80]!r}")
        _, name, key = words
        try:
            return cls(name, base64.b64decode(key, validate=True))
        except ValueError as error:
            raise InputError(f"the card of site {name[:80]!r} cannot be read: {error}") from None

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Return whether ``signature`` is this site's signature of ``data``."""
        try:
            self._verifier.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    @cached_property
    def _verifier(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.public_key)

    def __reduce__(self) -> tuple[type[PublicIdentity], tuple[str, bytes]]:
        """Pickle without the verifier, which cannot be pickled."""
        return PublicIdentity, (self.name, self.public_key)


@dataclass(frozen=True)
class Card:
    """The site card sent to the coordinator: the site's identity and, after enrolment, its cohort size.

    Before enrolment it reads ``capedjica-site-1 NAME KEY``, afterwards ``capedjica-site-2 NAME KEY N
    SIGNATURE``. The site's own key signs its name and N, so that a study is planned with the number stated by
    the site and not with a typing error.

    Parameters
    ----------
    site : PublicIdentity
        The site; its fingerprint must still be compared with the one that the site states.
    n_enrolled : int or None
        Number of participants enrolled; None if the card does not state it.
    """

    site: PublicIdentity
    n_enrolled: int | None

    @classmethod
    def read(cls, text: str) -> Card:
        """Read a card of either form; refuse a number of participants that the site did not sign."""
        words = text.split()
        if words[:1] != [_COUNTED_PREFIX]:
            return cls(PublicIdentity.from_card(text), None)
        if len(words) != 5:
            raise InputError(f"not a site card: expected '{_COUNTED_PREFIX} NAME KEY N SIGNATURE'")
        site = PublicIdentity.from_card(f"{_CARD_PREFIX} {words[1]} {words[2]}")
        try:
            signature = base64.b64decode(words[4], validate=True)
        except ValueError:
            signature = b""
        plain = words[3].isascii() and words[3].isdigit() and len(words[3]) <= _MOST_DIGITS
        if not plain or not site.verify(signature, _enrolled_content(site.name, int(words[3]))):
            raise InputError(
                f"the card of site {site.name} states {words[3][:20]!r} enrolled participants, which is not "
                "signed by its key; ask the site for its card again"
            )
        return cls(site, int(words[3]))


def _enrolled_content(name: str, n_enrolled: int) -> bytes:
    return f"capedjica enrolled participants\0{name}\0{n_enrolled}".encode()


class Identity:
    """The long-term signing key of a site.

    Parameters
    ----------
    key : Ed25519PrivateKey
        Use :meth:`generate` or :meth:`load` rather than the constructor.
    """

    __slots__ = ("_key", "public_key")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Identity:
        """Generate a new identity with the randomness of the operating system."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Load an identity written by :meth:`save`; refuse a file that other users can read."""
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                pem = file.read(1 << 16)
        except OSError as error:
            raise InputError(f"identity file {os.fspath(path)} cannot be read: {error.strerror}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InputError(f"identity file {os.fspath(path)} is open to other users; run chmod 600 on it")
        return cls(_parse(pem, path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key as unencrypted PKCS #8 with mode 0600, atomically; never overwrite a file."""
        pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            with writing(f"identity file {os.fspath(path)}"):
                write_whole(Path(path), pem, mode=0o600, new=True)
        except TakenError as error:
            raise InputError(f"identity file {error}") from None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the public key."""
        return fingerprint(self.public_key)

    def public(self, name: str) -> PublicIdentity:
        """Return the public identity with the name of the site."""
        return PublicIdentity(name, self.public_key)

    def card(self, name: str, n_enrolled: int | None = None) -> str:
        """Return the site card, one line of text, with the number of participants if it is given."""
        public = self.public(name)
        if n_enrolled is None:
            return public.card
        signature = base64.b64encode(self.sign(_enrolled_content(name, n_enrolled))).decode()
        key = base64.b64encode(self.public_key).decode()
        return f"{_COUNTED_PREFIX} {name} {key} {n_enrolled} {signature}"

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of ``data``, which must begin with a label of its purpose."""
        return self._key.sign(data)

    def derive_key(self, purpose: str) -> bytes:
        """Return 32 secret bytes that only this identity can derive, different for every purpose."""
        info = b"capedjica site key\x00" + purpose.encode()
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(self._key.private_bytes_raw())

    def __repr__(self) -> str:
        return f"Identity({self.fingerprint})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an identity cannot be pickled or copied; save it to its own file")


def _parse(pem: bytes, path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(f"identity file {os.fspath(path)} is not an unencrypted PEM private key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"identity file {os.fspath(path)} does not hold an Ed25519 key")
    return key
