"""What can be agreed on, what is refused, and what follows from it."""

import dataclasses
import math

import pytest

from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract, Query, Stage
from capedjica.mechanisms.release import plan_release
from capedjica.privacy import ExactAccountant, Release
from capedjica.securesum.identity import Identity, PublicIdentity
from capedjica.securesum.parameters import Roster

ROSTER = Roster.of([Identity.generate().public(f"s{i}") for i in range(4)])
BASE = {
    "title": "t",
    "roster": ROSTER,
    "subjects": (10, 20, 30, 40),
    "stages": (Stage(Query("a", 3, 1.0), 2, 0.5), Stage(Query("b", 5, 2.0), 3, 0.5)),
    "epsilon": (1.0,) * 4,
    "delta": 1e-5,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"mechanism": "magic"},
            "mechanism must be one of cape, conventional, local, pooled, none; got 'magic'",
        ),
        ({"masking": "wide"}, "masking must be 'uniform' or 'paper', got 'wide'"),
        ({"subjects": (1, 2, 3)}, "subjects must contain one number for each of 4 sites, got 3"),
        ({"subjects": (1, 0, 3, 4)}, "site s1 has no subjects"),
        ({"weights": (0.5, 0.5)}, "weights must contain one number for each of 4 sites"),
        ({"weights": (0.5, 0.5, 0.5, 0.5)}, "weights must add up to 1"),
        ({"weights": (0.5, 0.5, 0.0, 0.0)}, "weights must be finite and above 0, got 0.0 for site 2"),
        ({"local_site": "s9"}, "local_site must be one of s0, s1, s2, s3; got 's9'"),
        ({"stages": ()}, "at least one stage"),
        (
            {"stages": (Stage(Query("a", 3, 1.0), 1, 1.5),)},
            "shares of the stages must add up to at most 1, got 1.5",
        ),
        ({"epsilon": (1.0,)}, "epsilon must contain one number for each of 4 sites"),
        ({"epsilon": (1.0, 1.0, -1.0, 1.0)}, "epsilon must be a finite number above 0, got -1.0"),
        ({"delta": 0.0}, "delta must lie strictly between 0 and 1"),
        ({"mechanism": "none"}, "gives no privacy, so epsilon must not be given"),
        ({"neighbour": "site"}, "neighbour must be 'subject' or 'sample', got 'site'"),
        ({"units_per_subject": 200}, "units_per_subject must be 1 if neighbour is 'subject', got 200"),
        ({"reserve": 1.0}, "reserve must be at least 0 and below 1, got 1.0"),
    ],
)
def test_what_cannot_be_agreed_on(change, message):
    with pytest.raises(InputError, match=message):
        Contract(**{**BASE, **change})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Query("", 3, 1.0), "a query needs a label"),
        (lambda: Query("a", 0, 1.0), "size of 'a' must be a whole number of at least 1, got 0"),
        (lambda: Query("a", 3, 0.0), "clip of 'a' must be a finite number above 0, got 0.0"),
        (lambda: Query("a", 3, math.nan), "clip of 'a' must be a number, got nan"),
        (lambda: Query("a", 3, 1.0, 3.0), "spread of 'a' must lie between 1 and 2, got 3.0"),
        (lambda: Stage(Query("a", 3, 1.0), 0), "count of 'a' must be a whole number of at least 1, got 0"),
        (lambda: Stage(Query("a", 3, 1.0), 1, 0.0), "share of 'a' must be a finite number above 0, got 0.0"),
    ],
)
def test_bad_queries(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_every_field_changes_the_hash():
    contract = Contract(**BASE)
    changes = {
        "title": "u",
        "roster": Roster.of([Identity.generate().public(f"s{i}") for i in range(4)]),
        "subjects": (10, 20, 30, 41),
        "stages": (*BASE["stages"][:1], Stage(Query("b", 5, 2.5), 3, 0.5)),
        "epsilon": (1.0, 1.0, 1.0, 1.5),
        "delta": 1e-6,
        "mechanism": "conventional",
        "masking": "paper",
        "weights": (0.1, 0.2, 0.3, 0.4),
        "local_site": "s1",
        "reserve": 0.1,
        "insecure_noise": True,
        "agreement": b"another description",
        "neighbour": "sample",
    }
    assert {*changes, "units_per_subject"} == {field.name for field in dataclasses.fields(Contract)}
    hashes = {dataclasses.replace(contract, **{name: value}).hash for name, value in changes.items()}
    assert len(hashes | {contract.hash}) == len(changes) + 1
    samples = {replaced_hash(contract, k) for k in (1, 2, 3)}
    assert len(hashes | samples | {contract.hash}) == len(changes) + 3
    assert Contract(**BASE).hash == contract.hash


def replaced_hash(contract, k):
    return dataclasses.replace(contract, neighbour="sample", units_per_subject=k).hash


@pytest.mark.parametrize(
    ("changes", "golden"),
    [
        ({}, "ba29f497400139f8c01fbc010282480718c30298c25792b79e4c37a827116896"),
        (
            {
                "mechanism": "local",
                "local_site": "site-2",
                "masking": "paper",
                "reserve": 0.1,
                "weights": (0.25,) * 4,
                "insecure_noise": True,
                "agreement": b"x" * 32,
            },
            "38a222cbe76649fab6f1b459f7c178a23296ff356cff77c9a717698b860be0ac",
        ),
    ],
    ids=["defaults", "all others"],
)
def test_what_was_agreed_on_before_there_were_neighbours_keeps_its_hash(changes, golden):
    """Hashes computed before a contract had the fields neighbour and units_per_subject."""
    roster = Roster(tuple(PublicIdentity(f"site-{n}", n.to_bytes(32)) for n in range(1, 5)), 3, 1)
    stages = (Stage(Query("mean", 3, 1.0), 2, 0.5), Stage(Query("gradient", 7, 2.0, 1.5), 1, 0.5))
    contract = Contract("golden", roster, (10, 20, 30, 40), stages, (1.0, 2.0, 3.0, 4.0), 1e-5, **changes)
    assert contract.hash.hex() == golden


@pytest.mark.parametrize(
    "changes", [{}, {"mechanism": "pooled"}, {"insecure_noise": True}, {"mechanism": "none", "epsilon": ()}]
)
def test_only_who_protects_from_the_aggregator_protects(changes):
    contract = Contract(**{**BASE, **changes})
    assert contract.protects == (changes == {})
    assert contract.private == (changes in ({}, {"mechanism": "pooled"}))


@pytest.mark.parametrize("mechanism", ["cape", "conventional", "local", "pooled"])
@pytest.mark.parametrize("mask", ["uniform", "paper"])
def test_all_releases_together_cost_at_most_epsilon(mechanism, mask):
    """Every stage as often as agreed, at every site: the exact accountant accepts them under the cap."""
    contract = Contract(**BASE, mechanism=mechanism, masking=mask)
    names = (contract.alone,) if mechanism == "local" else ROSTER.names
    for name in names:
        accountant = ExactAccountant(1e-5, max_epsilon=1.0)
        for stage in contract.stages:
            plan = plan_release(contract, stage.query, stage.share / stage.count, names)
            accountant.compose(Release(plan.mu[name], stage.count))
        assert accountant.epsilon == pytest.approx(1.0, rel=1e-5)


def test_too_few_participants_and_impossible_precision_are_refused():
    contract = Contract(**BASE)
    with pytest.raises(
        InputError, match="needs at least 2 participating sites, because 1 may collude; got 1"
    ):
        plan_release(contract, contract.stages[0].query, 1.0, ("s0",))
    with pytest.raises(InputError, match="s3 cannot take part in this release"):
        plan_release(contract, contract.stages[0].query, 1.0, ROSTER.names, ROSTER.names[:3])
    huge = dataclasses.replace(contract, epsilon=(1e25,) * 4)
    with pytest.raises(InputError, match="too small for exact integer arithmetic"):
        plan_release(huge, huge.stages[0].query, 1.0, ROSTER.names)
    tiny = dataclasses.replace(contract, delta=1e-30)
    with pytest.raises(InputError, match="'a' at site s0: delta 1e-30 is too small"):
        plan_release(tiny, tiny.stages[0].query, 1.0, ROSTER.names)
