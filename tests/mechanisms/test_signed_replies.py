"""A reply is believed as what one site said to one question, or not at all."""

import dataclasses
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.errors import ProtocolError
from capedjica.mechanisms.aggregator.conversation import Conversation
from capedjica.mechanisms.messages import (
    VERSION,
    Busy,
    ForgedReplyError,
    Refusal,
    Status,
    Unknown,
    encode,
    question_hash,
    read_question,
    read_reply,
    sign_reply,
)
from capedjica.securesum.identity import SIGNATURE_BYTES, Identity
from tests.mechanisms.world import hello, make_data, make_study

STUDY = make_study(make_data((12, 9, 15), 5))
CONTRACT, SITE, OTHER = STUDY.contract, STUDY.sites["s1"], STUDY.sites["s2"]
QUESTION = hello(CONTRACT)
SIGNED = SITE.handle(QUESTION)
NOT_SIGNED = "what came in the name of site s1 is not signed by its key"


def read(data, contract=CONTRACT, name="s1", question=QUESTION):
    return read_reply(data, contract, name, question_hash(question))


def test_a_reply_says_who_signed_it_for_which_question():
    status = read(SIGNED)
    assert isinstance(status, Status)
    assert (status.version, status.contract, status.sender) == (VERSION, CONTRACT.hash, "s1")
    assert status.carrier == "embedded"


def test_the_same_reply_to_the_same_question_is_the_same_bytes():
    refused = [SITE.handle(b"no question") for _ in range(2)]
    assert refused[0] == refused[1]
    assert isinstance(read(refused[0], question=b"no question"), Refusal)
    reply = refused[0][SIGNATURE_BYTES:]
    assert SITE.sign(question_hash(b"no question"), reply) == refused[0]
    assert SITE.sign(question_hash(b"no question"), read(refused[0], question=b"no question")) == refused[0]


@pytest.mark.parametrize("kind", [Busy, Unknown])
def test_a_carrier_says_in_the_name_of_its_site_how_far_it_is(kind):
    word = kind(VERSION, CONTRACT.hash, "s1")
    assert read(SITE.sign(question_hash(QUESTION), word)) == word


@given(st.integers(0, len(SIGNED) - 1), st.integers(1, 255))
def test_no_byte_of_a_reply_can_be_another(place, change):
    bent = bytes([*SIGNED[:place], SIGNED[place] ^ change, *SIGNED[place + 1 :]])
    with pytest.raises(ForgedReplyError, match=NOT_SIGNED):
        read(bent)


@given(st.binary(max_size=200))
def test_bytes_that_the_site_did_not_sign_are_forged(data):
    for forged in (data, SIGNED[:SIGNATURE_BYTES] + data, SIGNED + data, data + SIGNED):
        if forged != SIGNED:
            with pytest.raises(ForgedReplyError):
                read(forged)


@given(st.integers(0, len(SIGNED) - 1))
def test_a_reply_that_is_cut_off_is_forged(length):
    with pytest.raises(ForgedReplyError):
        read(SIGNED[:length])


@given(st.binary(max_size=200))
def test_whatever_a_site_signs_is_a_reply_or_an_error_in_words(data):
    with pytest.raises(ProtocolError) as caught:
        read(sign_reply(SITE._identity, question_hash(QUESTION), data))
    assert not isinstance(caught.value, ForgedReplyError)


@given(st.binary(max_size=200))
def test_a_reply_to_one_question_is_none_to_another(other):
    questions = [other, QUESTION + other, hello(CONTRACT, other)]
    for question in questions:
        if question != QUESTION:
            with pytest.raises(ForgedReplyError):
                read(SIGNED, question=question)


def test_an_answer_to_another_question_is_refused():
    """Two greetings that mean the same differ in their nonce, so an answer kept from the first is stale."""
    greeting = read_question(QUESTION, CONTRACT)
    later = encode(msgspec.structs.replace(greeting, nonce=b"another greeting"))
    with pytest.raises(ForgedReplyError):
        read(SIGNED, question=later)


def test_no_two_greetings_of_an_aggregator_are_the_same():
    study, seen = make_study(make_data((12, 9, 15), 5)), []
    study.engine.carrier = lambda letter: seen.append(letter) or [letter.data]
    for _ in range(5):
        study.publish(b"the same")
    asked = [letter.data for letter in seen if letter.direction == "question" and letter.site == "s0"]
    nonces = {read_question(data, study.contract).nonce for data in asked}
    assert len(nonces) == 5


def test_another_key_another_site_and_another_study_are_told_apart():
    """Who signs for another is forging; who signs for itself in another's name is not believed either."""
    hash, status = question_hash(QUESTION), read(SIGNED)
    for identity in (OTHER._identity, Identity.generate()):
        with pytest.raises(ForgedReplyError, match=NOT_SIGNED):
            read(sign_reply(identity, hash, status))
    with pytest.raises(ForgedReplyError):
        read(SIGNED, name="s2")
    with pytest.raises(ProtocolError, match="there is no site 'nobody' in the roster"):
        read(SIGNED, name="nobody")
    renamed = msgspec.structs.replace(status, sender="s2")
    with pytest.raises(ProtocolError, match="site s1 sent an answer in the name of site s2"):
        read(sign_reply(SITE._identity, hash, renamed))
    with pytest.raises(ProtocolError, match="belongs to another study"):
        read(SIGNED, dataclasses.replace(CONTRACT, title="another"))
    for version in (VERSION - 1, VERSION + 1):
        with pytest.raises(ProtocolError, match=f"version {version}, expected {VERSION}"):
            read(sign_reply(SITE._identity, hash, msgspec.structs.replace(status, version=version)))


def test_another_study_with_other_keys_has_nothing_to_say_in_this_one():
    stranger = make_study(make_data((12, 9, 15), 5))
    with pytest.raises(ForgedReplyError, match=NOT_SIGNED):
        read(stranger.sites["s1"].handle(QUESTION))
    with pytest.raises(ForgedReplyError, match=NOT_SIGNED):
        read(SIGNED, stranger.contract)


@pytest.mark.parametrize("forgery", ["unsigned", "of another site", "to another question", "in another name"])
def test_who_forges_an_answer_is_as_good_as_silent(forgery):
    """The aggregator notes it in words, and believes the others."""
    hash, status = question_hash(QUESTION), read(SIGNED)
    forged = {
        "unsigned": bytes(SIGNATURE_BYTES) + SIGNED[SIGNATURE_BYTES:],
        "of another site": OTHER.sign(hash, status),
        "to another question": SITE.sign(question_hash(b"another"), status),
        "in another name": OTHER.handle(QUESTION),
    }[forgery]

    def exchange(questions):
        return {name: STUDY.sites[name].handle(data) for name, data in questions.items()} | {"s1": forged}

    conversation = Conversation(CONTRACT, exchange)
    greeting = read_question(QUESTION, CONTRACT)
    answers = conversation.ask(dict.fromkeys(STUDY.sites, greeting), Status)
    assert set(answers) == {"s0", "s2"}
    assert re.fullmatch(NOT_SIGNED, conversation.refusals["s1"])


def test_what_the_ledger_keeps_is_the_answer_without_its_signature():
    study, sent = make_study(make_data((12, 9, 15), 5)), []
    study.engine.carrier = lambda letter: sent.append(letter) or [letter.data]
    study.mean(0)
    last = [letter.data for letter in sent if (letter.site, letter.direction) == ("s0", "answer")][-1]
    (stored,) = study.sites["s0"]._ledger.outbox()
    assert last[SIGNATURE_BYTES:] == stored.message
