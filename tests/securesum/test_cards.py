"""The card of a site: who it is and, signed, how many people it enrolled."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.securesum.identity import Card, Identity

SITE = Identity.generate()


@given(st.integers(0, 10**12 - 1))
def test_the_number_is_read_back(count):
    card = Card.read(SITE.card("north", count))
    assert (card.site, card.n_enrolled) == (SITE.public("north"), count)


def test_a_card_from_before_says_no_number():
    assert SITE.card("north") == SITE.public("north").card
    card = Card.read(f"{SITE.public('north').card}\n")
    assert (card.site, card.n_enrolled) == (SITE.public("north"), None)


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_nobody_else_changes_a_word_of_it(place):
    words = SITE.card("north", 16).split()
    other = Identity.generate().card("south", 17).split()
    words[place] = other[place]
    with pytest.raises(InputError, match="not signed by its key"):
        Card.read(" ".join(words))


@pytest.mark.parametrize("number", ["-1", "1e3", "016x", "１６", "9" * 13, ""])
def test_a_number_that_is_none_is_refused(number):
    words = SITE.card("north", 16).split()
    words[3] = number
    with pytest.raises(InputError, match=r"not signed by its key|not a site card"):
        Card.read(" ".join(words))


def test_a_signature_of_something_else_is_no_signature_of_a_number():
    words = SITE.card("north", 16).split()
    words[4] = base64.b64encode(SITE.sign(b"capedjica north 16")).decode()
    with pytest.raises(InputError, match="not signed"):
        Card.read(" ".join(words))
