"""What aggregator and sites say to each other around the secure sum: exact bytes, read strictly.

The aggregator asks, a site answers; there are no other messages. Every answer is signed by its site.

==============  ============================  ==================================================
aggregator      site                          meaning
==============  ============================  ==================================================
:class:`Hello`  :class:`Status`               who is there, which block numbers are used up, how much is spent
:class:`Begin`  :class:`SumAnswer`            a block of slots; the site's first message of the secure sum
:class:`Sum`    :class:`SumAnswer`            the further rounds of the secure sum
:class:`Ask`    :class:`Answer`               one release: y_s
(any)           :class:`Refusal`              why not, in words that depend on nothing private
(any)           :class:`Busy`                 the site is still working on it
(any)           :class:`Unknown`              the site never got that question
==============  ============================  ==================================================

Sites in one process answer at once: only carriers between machines have use for the last two.
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
# An aggregator tells of what was given up before it goes on, so there is seldom more than one.
MAX_ABORTED: Final = 1 << 6

Count = Annotated[int, Meta(ge=0, le=2**62)]
# How far the number of a block may be ahead of the last one that a site claimed. Ledgers never go back: after
# one block with the largest number of all no other could follow.
MAX_AHEAD: Final = 1 << 20
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
# Smaller parts of a budget are no use to anyone, and their noise fits no grid.
Fraction = Annotated[float, Meta(ge=2.0**-60, le=1)]
# Sealed: only the site it comes from can read it.
Head = Annotated[bytes, Meta(max_length=256)]
SlotNumber = Annotated[int, Meta(ge=0, lt=MAX_SLOTS)]
NONCE_BYTES: Final = 16
Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
# How the program that has the network is kept from the site's files; "embedded": all are one process.
CarrierName = Literal["embedded", "user", "landlock", "none"]

_QUESTION_LABEL: Final = b"capedjica/question/2"
_REPLY_LABEL: Final = b"capedjica/reply/2\0"


class ForgedReplyError(ProtocolError):
    """What came in the name of a site was not signed by its key, or not as the answer to this question."""


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """What every message is bound to: the version and the contract."""

    version: Count
    contract: Hash


class SlotPlan(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One slot of a block: which stage's query it serves and which part of the budget it may use."""

    stage: Annotated[int, Meta(ge=0, le=1 << 16)]
    fraction: Fraction


class Hello(Message, frozen=True):
    """Ask who is there; tell each site what is published, what it released in vain, and its last head.

    What is published is public data that many releases refer to, such as a projection; later questions
    name it by its hash instead of repeating it. A fresh nonce makes the bytes of every greeting others, so
    that no answer to an earlier one passes for an answer to it.
    """

    published: bytes
    aborted: Annotated[list[tuple[Count, SlotNumber]], Meta(max_length=MAX_ABORTED)]
    head: Head
    nonce: Nonce


class Begin(Message, frozen=True):
    """A new block: its number, those invited, its slots, and the block that stays in use beside it.

    A block made ahead comes after one that is in use (``after`` is its number) or about to be; any other
    takes the place of all before it (-1).
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
        """What the secure sum of this block is bound to, so that all its sites mean the same block."""
        return hashlib.sha256(b"capedjica/block/1" + encode(self)).digest()


class Sum(Message, frozen=True):
    """The aggregator's message of the next round of the secure sum."""

    block: Count
    data: bytes


class Ask(Message, frozen=True):
    """One release: the slot, the participants that were agreed on, and the public state.

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
        """The request as the ledger knows it."""
        return hashlib.sha256(b"capedjica/ask/1" + encode(self)).digest()


class Status(Message, frozen=True):
    """A site is there: the last block it claimed (-1 for none), the part of its budget spent, its head.

    ``carrier`` says how the program that has the network is kept from the site's files.
    """

    sender: Name
    block: Annotated[int, Meta(ge=-1, le=2**62)]
    spent: Annotated[float, Meta(ge=0)]
    head: Head
    carrier: CarrierName


class SumAnswer(Message, frozen=True):
    """A site's message of the secure sum; empty where the mechanism needs none."""

    sender: Name
    block: Count
    data: bytes


class Answer(Message, frozen=True):
    """One site's part of a release: its mu, its ledger's sealed head and y_s as little-endian words."""

    sender: Name
    block: Count
    slot: SlotNumber
    mu: Annotated[float, Meta(ge=0)]
    head: Head
    words: bytes


class Refusal(Message, frozen=True):
    """A site does not do what was asked; the reason names nothing private."""

    sender: Name
    reason: Annotated[str, Meta(max_length=1000)]


class Busy(Message, frozen=True):
    """A site got the question and is still working on it."""

    sender: Name


class Unknown(Message, frozen=True):
    """A site never got the question that it was asked about."""

    sender: Name


Question = Hello | Begin | Sum | Ask
Reply = Status | SumAnswer | Answer | Refusal | Busy | Unknown

_encoder: Final = msgspec.msgpack.Encoder()
_questions: Final[msgspec.msgpack.Decoder[Question]] = msgspec.msgpack.Decoder(Question)
_replies: Final[msgspec.msgpack.Decoder[Reply]] = msgspec.msgpack.Decoder(Reply)
_Kind = TypeVar("_Kind")


def publication_hash(data: bytes) -> bytes:
    """Return the hash by which published data are named."""
    return hashlib.sha256(b"capedjica/published/1" + data).digest()


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode(message)


def read_question(data: bytes, contract: Contract) -> Question:
    """Return the aggregator's message, or raise ProtocolError whatever the bytes."""
    return _read(_questions, data, contract)


def is_greeting(question: bytes) -> bool:
    """Whether the bytes of a question are those of a Hello, told without reading all of it."""
    # A message begins with the head of its array and the head of the string that is its tag.
    return question[2:7] == b"Hello"


def is_refusal(reply: bytes) -> bool:
    """Whether a signed reply is a refusal, told without reading all of it."""
    start = SIGNATURE_BYTES + 2
    return reply[start : start + 7] == b"Refusal"


def question_hash(question: bytes) -> bytes:
    """Return the hash by which a reply names the exact bytes of the question that it answers."""
    return hashlib.sha256(_QUESTION_LABEL + question).digest()


def sign_reply(identity: Identity, hash: bytes, reply: Reply | bytes) -> bytes:
    r"""Return a site's reply as it leaves: its signature, then the reply itself.

    With H = SHA-256, q the hash of the question and m the encoded reply, these are the 64 bytes of

    .. math:: \operatorname{Ed25519}_k(\text{label} \,\|\, q \,\|\, H(m))

    and then m. In m are the version of the protocol, the contract and the sender, so the signature covers
    version, contract, sender, question and reply. It is deterministic: the same reply to the same question
    is the same bytes.

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
    """Return the reply of a site to a question, or raise ProtocolError whatever the bytes.

    The signature comes first: nothing is read that the site did not sign.

    Parameters
    ----------
    data : bytes
        What came.
    contract : Contract
        What was agreed, with the keys of the sites.
    name : str
        The site that was asked.
    hash : bytes
        :func:`question_hash` of what it was asked.

    Raises
    ------
    ForgedReplyError
        If these bytes are not signed by that site, as its reply to that question.
    ProtocolError
        If they are, and are no reply of this study.
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
    """Return what a site signs."""
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
