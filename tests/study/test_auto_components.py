"""``n_components = "auto"`` in study.toml: what it means, what is refused, what earlier hashes are."""

import msgspec
import pytest

from capedjica.study.analyses import IcaTable
from capedjica.study.canonical import canonical


def test_a_study_with_a_number_has_the_encoding_it_had():
    encoded = msgspec.msgpack.decode(canonical(IcaTable(n_components=7)))
    assert encoded == {"kind": "ica", "n_components": 7}


def test_auto_is_encoded_with_its_maximum():
    encoded = msgspec.msgpack.decode(canonical(IcaTable(n_components="auto", max_components=7)))
    assert encoded == {"kind": "ica", "n_components": "auto", "max_components": 7}


def test_results_may_have_fewer_networks_but_not_more():
    auto, fixed = IcaTable(n_components="auto", max_components=7), IcaTable(n_components=7)
    assert [auto.fits(n) for n in (1, 2, 7, 8)] == [False, True, True, False]
    assert [fixed.fits(n) for n in (6, 7, 8)] == [False, True, False]


@pytest.mark.parametrize("value", ["automatic", 1, 0])
def test_other_words_and_too_few_are_refused(value):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "ica", "n_components": value}, IcaTable)
