"""Messages between aggregator and sites outside the secure sum: exact encoding and strict parsing.

The aggregator asks, a site answers; there are no other messages. Every answer is signed by its site.

==============  ============================  ==================================================
aggregator      site                          meaning
==============  ============================  ==================================================
:class:`Hello`  :class:`Status`               which sites are present, last block claimed, budget spent
:class:`Begin`  :class:`SumAnswer`            a block of slots; the site's first message of the secure sum
:class:`Sum`    :class:`SumAnswer`            the further rounds of the secure sum
:class:`Ask`    :class:`Answer`               one release: y_s
(any)           :class:`Refusal`              the reason, which depends on nothing private
(any)           :class:`Busy`                 the site is still working on it
(any)           :class:`Unknown`              the site never received that question
==============  ============================  ==================================================

Sites in the same process answer immediately; the last two are only used between machines.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from capedjica.errors import ProtocolError
from capedjica.mechanisms.contract import Contract
from capedjica.securesum.identity import SIGNATURE_BYTES, Identity

VERSION: Final = 2
MAX_SLOTS: Final = 1 << 12
# An aggregator reports aborted releases before it continues, so there is rarely more than one.
MAX_ABORTED: Final = 1 << 6

Count = Annotated[int, Meta(ge=0, le=2**62)]
# How far a block number may be ahead of the last one that a site claimed. Block numbers in a ledger only
# increase: after a block with the largest possible number no other could follow.
MAX_AHEAD: Final = 1 << 20
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
# Smaller fractions of a budget are useless, and their noise does not fit on any grid.
Fraction = Annotated[float, Meta(ge=2.0**-60, le=1)]
# Encrypted: only the site that sent it can read it.
Head = Annotated[bytes, Meta(max_length=256)]
SlotNumber = Annotated[int, Meta(ge=0, lt=MAX_SLOTS)]
NONCE_BYTES: Final = 16
Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
# How the carrier is confined; "embedded": everything runs in one process.
CarrierName = Literal["embedded", "user", "landlock", "none"]

_QUESTION_LABEL: Final = b"capedjica/question/2"
_REPLY_LABEL: Final = b"capedjica/reply/2\0"


class ForgedReplyError(ProtocolError):
    """A reply in the name of a site is not signed by its key, or not as the answer to this question."""


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """The fields that every message is bound to: the version and the contract."""

    version: Count
    contract: Hash


class SlotPlan(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One slot of a block: the stage that it belongs to and the fraction of the budget that it may use."""

    stage: Annotated[int, Meta(ge=0, le=1 << 16)]
    fraction: Fraction


class Hello(Message, frozen=True):
    """Greeting to a site: the published data, its aborted releases, and its last head.

    Published data are public data that many releases refer to, such as a projection; later questions
    refer to them by their hash. A fresh nonce makes every greeting unique, so that the answer to an earlier
    greeting cannot be replayed.
    """

    published: bytes
    aborted: Annotated[list[tuple[Count, SlotNumber]], Meta(max_length=MAX_ABORTED)]
    head: Head
    nonce: Nonce


class Begin(Message, frozen=True):
    """A new block: its number, the invited sites, its slots, and the block that stays in use alongside it.

    A block prepared ahead follows a block that is in use or about to be used (``after`` is its number). Any
    other block replaces all earlier ones (``after`` is -1).
    """

    block: Count
    invited: Annotated[list[Name], Meta(max_length=1 << 12)]
    slots: Annotated[list[SlotPlan], Meta(min_length=1, max_length=MAX_SLOTS)]
    after: Annotated[int, Meta(ge=-1, le=2**62)] = -1

    @property
    def ahead(self) -> bool:
        """Whether another block stays in use."""
        return self.after >= 0

    @property
    def hash(self) -> bytes:
        """The hash to which the secure sum of this block is bound, so that all sites agree on the block."""
        return hashlib.sha256(b"capedjica/block/1" + encode(self)).digest()


class Sum(Message, frozen=True):
    """The aggregator's message of the next round of the secure sum."""

    block: Count
    data: bytes


class Ask(Message, frozen=True):
    """One release: the slot, the agreed participants, and the public state.

    ``published`` is the hash of the published data that the state refers to.
    """

    block: Count
    slot: SlotNumber
    participants: Annotated[list[Name], Meta(max_length=1 << 12)]
    plan: SlotPlan
    published: Hash
    state: bytes

    @property
    def hash(self) -> bytes:
        """The hash that identifies the request in the ledger."""
        return hashlib.sha256(b"capedjica/ask/1" + encode(self)).digest()


class Status(Message, frozen=True):
    """The status of a site: the last block claimed (-1 for none), the fraction of its budget spent, its head.

    ``carrier`` states how the site's carrier is confined.
    """

    sender: Name
    block: Annotated[int, Meta(ge=-1, le=2**62)]
    spent: Annotated[float, Meta(ge=0)]
    head: Head
    carrier: CarrierName


class SumAnswer(Message, frozen=True):
    """A site's message of the secure sum; empty if the mechanism needs none."""

    sender: Name
    block: Count
    data: bytes


class Answer(Message, frozen=True):
    """A site's answer to a release: its mu, its ledger's sealed head and y_s as little-endian words."""

    sender: Name
    block: Count
    slot: SlotNumber
    mu: Annotated[float, Meta(ge=0)]
    head: Head
    words: bytes


class Refusal(Message, frozen=True):
    """A site refuses a request; the reason contains nothing private."""

    sender: Name
    reason: Annotated[str, Meta(max_length=1000)]


class Busy(Message, frozen=True):
    """A site received the question and is still working on it."""

    sender: Name


class Unknown(Message, frozen=True):
    """A site never received the question that it was asked about."""

    sender: Name


Question = Hello | Begin | Sum | Ask
Reply = Status | SumAnswer | Answer | Refusal | Busy | Unknown

_encoder: Final = msgspec.msgpack.Encoder()
_questions: Final[msgspec.msgpack.Decoder[Question]] = msgspec.msgpack.Decoder(Question)
_replies: Final[msgspec.msgpack.Decoder[Reply]] = msgspec.msgpack.Decoder(Reply)
_Kind = TypeVar("_Kind")


def publication_hash(data: bytes) -> bytes:
    """Return the hash that identifies published data."""
    return hashlib.sha256(b"capedjica/published/1" + data).digest()


def encode(message: Message) -> bytes:
    """Return the encoded bytes of a message."""
    return _encoder.encode(message)


def read_question(data: bytes, contract: Contract) -> Question:
    """Return the aggregator's message; raise ProtocolError for any malformed bytes."""
    return _read(_questions, data, contract)


def is_greeting(question: bytes) -> bool:
    """Return whether a question is a Hello, without decoding it."""
    # A message begins with the header of its array and the header of its tag string.
    return question[2:7] == b"Hello"


def is_refusal(reply: bytes) -> bool:
    """Return whether a signed reply is a refusal, without decoding it."""
    start = SIGNATURE_BYTES + 2
    return reply[start : start + 7] == b"Refusal"


def question_hash(question: bytes) -> bytes:
    """Return the hash by which a reply refers to the exact bytes of its question."""
    return hashlib.sha256(_QUESTION_LABEL + question).digest()


def sign_reply(identity: Identity, hash: bytes, reply: Reply | bytes) -> bytes:
    r"""Return a site's signed reply: its signature followed by the encoded reply.

    With H = SHA-256, q the hash of the question and m the encoded reply, these are the 64 bytes of

    .. math:: \operatorname{Ed25519}_k(\text{label} \,\|\, q \,\|\, H(m))

    followed by m. Since m contains the protocol version, the contract and the sender, the signature covers
    version, contract, sender, question and reply. It is deterministic: the same reply to the same question
    gives the same bytes.

    Parameters
    ----------
    identity : Identity
        The site's long-term key.
    hash : bytes
        :func:`question_hash` of the question.
    reply : Reply or bytes
        The reply, or its encoded bytes.
    """
    content = reply if isinstance(reply, bytes) else encode(reply)
    return identity.sign(_signed(hash, content)) + content


def read_reply(data: bytes, contract: Contract, name: str, hash: bytes) -> Reply:
    """Return the reply of a site to a question; raise ProtocolError for any malformed bytes.

    The signature is verified first: nothing is decoded that the site did not sign.

    Parameters
    ----------
    data : bytes
        The bytes received.
    contract : Contract
        The agreed contract, with the keys of the sites.
    name : str
        The site that was asked.
    hash : bytes
        :func:`question_hash` of the question.

    Raises
    ------
    ForgedReplyError
        If the bytes are not signed by that site as its reply to that question.
    ProtocolError
        If they are signed but not a valid reply of this study.
    """
    site = contract.roster.site(name)
    signature, content = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
    # defence: replies-are-signed
    if not site.verify(signature, _signed(hash, content)):
        raise ForgedReplyError(f"what came in the name of site {name} is not signed by its key")
    reply = _read(_replies, content, contract)
    contract.roster.site(reply.sender)
    if reply.sender != name:
        raise ProtocolError(f"site {name} sent an answer in the name of site {reply.sender}")
    return reply


def _signed(hash: bytes, content: bytes) -> bytes:
    """Return the bytes that a site signs."""
    # defence: replies-are-bound-to-questions
    return _REPLY_LABEL + hash + hashlib.sha256(content).digest()


def _read(decoder: msgspec.msgpack.Decoder[_Kind], data: bytes, contract: Contract) -> _Kind:
    try:
        message = decoder.decode(data)
    # defence: strict-reading
    except (ValueError, RecursionError):  # every error of the decoder is a ValueError
        raise ProtocolError(f"a message of {len(data)} bytes cannot be read") from None
    assert isinstance(message, Message)
    if message.version != VERSION:
        raise ProtocolError(f"a message has version {message.version}, expected {VERSION}")
    # defence: messages-are-of-one-study
    if message.contract != contract.hash:
        raise ProtocolError("a message belongs to another study than the one agreed on")
    return message
