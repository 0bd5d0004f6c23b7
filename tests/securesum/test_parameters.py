import dataclasses

import pytest

from capedjica.errors import InputError, ProtocolError
from capedjica.securesum.identity import Identity
from capedjica.securesum.parameters import Roster, SumParameters, default_colluding, default_threshold, framed

SITES = tuple(Identity.generate().public(f"s{i}") for i in range(12))


@pytest.mark.parametrize(
    ("n_sites", "threshold"), [(2, 2), (3, 3), (4, 3), (5, 4), (7, 5), (10, 7), (100, 67)]
)
def test_default_threshold(n_sites, threshold):
    assert default_threshold(n_sites) == threshold


def test_defaults_are_always_admitted():
    for n_sites in range(2, 500):
        t, colluding = default_threshold(n_sites), default_colluding(n_sites)
        assert 2 * t > n_sites + colluding
        assert 2 <= t <= n_sites


def test_thresholds_are_admitted_exactly_above_half_of_all_and_colluding():
    for n_sites in range(2, 13):
        for colluding in range(n_sites):
            for t in range(n_sites + 2):
                sound = 2 <= t <= n_sites and 2 * t > n_sites + colluding
                try:
                    Roster(SITES[:n_sites], t, colluding)
                    assert sound
                except InputError:
                    assert not sound


def test_low_threshold_is_explained():
    with pytest.raises(
        InputError, match=r"threshold 5 is too low for 7 sites of which 3 may collude.*at least 6"
    ):
        Roster.of(SITES[:7], threshold=5, n_colluding=3)


@pytest.mark.parametrize(
    ("sites", "named"),
    [
        ((), "at least two"),
        (SITES[:1], "at least two"),
        ((SITES[0], SITES[0]), "same name"),
        ((SITES[0], dataclasses.replace(SITES[0], name="other")), "same public key"),
    ],
)
def test_bad_rosters_are_refused(sites, named):
    with pytest.raises(InputError, match=named):
        Roster.of(sites)


def test_roster_hash_covers_names_keys_order_and_limits():
    base = Roster(SITES[:5], 4, 1)
    others = [
        Roster(SITES[:4], 4, 1),
        Roster((*SITES[:4], SITES[5]), 4, 1),
        Roster((*SITES[:4], dataclasses.replace(SITES[4], name="x")), 4, 1),
        Roster((SITES[1], SITES[0], *SITES[2:5]), 4, 1),
        Roster(SITES[:5], 5, 1),
        Roster(SITES[:5], 4, 2),
    ]
    assert len({r.hash for r in (base, *others)}) == 7
    assert Roster(SITES[:5], 4, 1).hash == base.hash


def test_context_covers_study_block_and_attempt():
    roster = Roster.of(SITES[:3])
    variants = [
        SumParameters(bytes(32), roster, 1, 0, 0),
        SumParameters(b"\x01" * 32, roster, 1, 0, 0),
        SumParameters(bytes(32), roster, 1, 1, 0),
        SumParameters(bytes(32), roster, 1, 0, 1),
        SumParameters(bytes(32), Roster.of(SITES[:4]), 1, 0, 0),
    ]
    assert len({p.context for p in variants}) == 5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"study_hash": bytes(31)}, "study_hash"),
        ({"length": 0}, "at least 1"),
        ({"block": -1}, "block"),
        ({"attempt": -1}, "attempt"),
        ({"block": 2**63}, "block"),
    ],
)
def test_bad_parameters_are_refused(change, named):
    good = {"study_hash": bytes(32), "roster": Roster.of(SITES[:3]), "length": 1, "block": 0, "attempt": 0}
    with pytest.raises(InputError, match=named):
        SumParameters(**{**good, **change})


def test_unknown_site_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="no site 'nobody'"):
        Roster.of(SITES[:3]).site("nobody")


def test_framing_is_injective_where_concatenation_is_not():
    assert framed(b"ab", b"c") != framed(b"a", b"bc")
    assert framed(b"") != framed()
