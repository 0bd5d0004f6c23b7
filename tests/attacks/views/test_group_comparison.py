"""One participant of a group comparison, with whatever scan and covariates: what they can move, and betray.

From scans and rows of a table, as a study reads them, to the integers that a site adds noise to; and an audit
of the whole protocol, in which an aggregator and one site guess which of two scans and rows a victim has.
"""

import itertools
import math
from functools import cache, partial

import msgspec
import numpy as np
import pytest

from capedjica.algorithms.outcomes import OUTCOMES
from capedjica.algorithms.parallel import one_thread
from capedjica.algorithms.state import pack
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.site.clipping import sum_subjects
from capedjica.study.analyses.group_comparison import ColumnTable, GroupComparisonTable, GroupSizes
from capedjica.study.planned_releases import planned_releases
from capedjica.study.study_file import Study
from tests.attacks.views.pipeline_audit import Audit, falsify, fits, shape
from tests.support.drafts import ICA, SCANS, draft

M, T, D, R = 10, 40, 6, 3
RNG = np.random.default_rng(0)
UNMIXING = RNG.standard_normal((R, D))
NETWORKS = msgspec.msgpack.encode((pack(unmixing=UNMIXING), b""))
COLUMNS = (ColumnTable(name="dx", levels=("0", "1")), ColumnTable(name="age", range=(18.0, 80.0)))
EXTRA = {"blocks": {"groups": ("a", "a", "b")}, "band-power": {"bands": ((0.0, 0.1), (0.1, 0.5))}}


class Subjects(list):
    """Scans of a site, each with the cells of a row."""

    def __init__(self, people, site="site-1"):
        super().__init__(scan for scan, _ in people)
        self.rows, self.site = [row for _, row in people], site

    def covariates(self, number, motion=False):
        if isinstance(self.rows[number], Exception):
            raise self.rows[number]
        return self.rows[number]


def comparison(values, mode="private", people=M):
    """The second step of a study of four sites with ten people each, and how its releases are planned."""
    sizes = tuple(GroupSizes(site=f"site-{n}", sizes=(3, 7)) for n in range(1, 5))
    table = GroupComparisonTable(
        values=values,
        networks="networks",
        contrast="dx",
        columns=COLUMNS,
        mode=mode,
        group_sizes=sizes if mode == "public-groups" else (),
        **EXTRA.get(values, {}),
    )
    content = draft(subjects=(people,) * 4, privacy={"epsilon": 8.0})
    study = Study(msgspec.structs.replace(content, features=SCANS, analyses=(ICA, table)))
    assert study.problems() == []
    step = study.steps[1]
    plans = planned_releases(study.contract)
    return step.analysis, [plans[number] for number in step.stages]


def wave(*courses):
    """A scan of which only these time courses vary, by far."""
    sources = 1e-3 * np.random.default_rng(7).standard_normal((T, R))
    for course in courses:
        sources[:, course] += np.sin(np.arange(T) * (1 + course))
    return sources @ np.linalg.pinv(UNMIXING).T


HOSTILE_SCANS = [
    *(wave(course) for course in range(R)),
    *(wave(*pair) for pair in itertools.combinations(range(R), 2)),
    1e150 * wave(0),
    1e-150 * wave(1),
    np.outer(np.arange(T), np.ones(D)),
    np.ones((T, D)),
    np.eye(T, D),
    np.full((T, D), np.nan),
    np.full((T, D), 1e308),
    np.empty((0, D)),
    np.ones((2, D)),
    RNG.standard_normal((4 * T, D)),
    RNG.standard_normal((T, D + 1)),
]
HOSTILE_ROWS = [
    {"dx": "1", "age": "80"},
    {"dx": "0", "age": "18"},
    {"dx": "1", "age": "1e300"},
    {"dx": "0", "age": "-inf"},
    {"dx": "1", "age": "nan"},
    {"dx": "7", "age": "30"},
    {"dx": "", "age": ""},
    {},
    OSError("the disk is gone"),
]
# What a dishonest aggregator may publish.
STATES = [
    pack(gamma=np.array([value]), width=np.array([width]))
    for value, width in ((0.0, 1.0), (1.0, 2.0), (-1e6, 1.0), (1e300, 1e-300), (np.nan, 1.0), (1.0, 0.0))
]


def person(rng):
    return HOSTILE_SCANS[rng.integers(len(HOSTILE_SCANS))], HOSTILE_ROWS[rng.integers(len(HOSTILE_ROWS))]


def sums(analysis, plans, people, state):
    """The integers of every stage, before noise."""
    statistics = analysis.site(Subjects(people))
    states = [b""] * (len(plans) - 1) + [state]
    return [
        sum_subjects(partial(statistics, number, NETWORKS, own), plan, "site-1", M)[0]
        for number, (plan, own) in enumerate(zip(plans, states, strict=True))
    ]


def allowed(plan):
    """How far one participant may move the integers: the declared sensitivity, and the rounding."""
    sensitivity = plan.query.sensitivity("site-1") * plan.scale["site-1"] / plan.step
    return sensitivity + math.sqrt(plan.query.size)


def keeps_its_group(before, now):
    """In public groups the neighbour is somebody of the same group."""
    return isinstance(before, dict) and isinstance(now, dict) and before.get("dx") == now.get("dx")


@pytest.mark.parametrize("mode", ["private", "public-groups"])
@pytest.mark.parametrize("values", OUTCOMES)
def test_nobody_moves_a_site_by_more_than_declared(values, mode):
    analysis, plans = comparison(values, mode)
    rng = np.random.default_rng([OUTCOMES.index(values), len(mode)])
    for number in range(25):
        people = [person(rng) for _ in range(M)]
        if number % 5 == 0:
            people = [person(rng)] * M
        other = person(rng)
        if mode == "public-groups" and not keeps_its_group(people[4][1], other[1]):
            other = other[0], people[4][1]
        state = STATES[number % len(STATES)]
        before = sums(analysis, plans, people, state)
        after = sums(analysis, plans, [*people[:4], other, *people[5:]], state)
        for plan, one, two in zip(plans, before, after, strict=True):
            moved = np.linalg.norm((one - two).astype(np.float64))
            assert moved <= allowed(plan) * (1 + 1e-12), plan.query.label


@pytest.mark.parametrize("values", OUTCOMES)
def test_no_scan_and_no_row_is_an_error(values):
    """Each hostile thing among ordinary people: as many vectors, of the declared size."""
    analysis, plans = comparison(values)
    usual = (wave(0, 1, 2) + 0.1, {"dx": "1", "age": "30"})
    for scan, row in [
        *((scan, usual[1]) for scan in HOSTILE_SCANS),
        *((usual[0], row) for row in HOSTILE_ROWS),
    ]:
        statistics = analysis.site(Subjects([usual, (scan, row), *[usual] * (M - 2)]))
        for number, plan in enumerate(plans):
            state = STATES[0] if number == len(plans) - 1 else b""
            rows = np.vstack(list(statistics(number, NETWORKS, state)))
            assert rows.shape == (M, plan.query.row_size)


# The audit: all sites are alike; at site-1 the victim has one of two scans and rows


# Nearly the worst that there is. Effects (capedjica.mechanisms.contract.CrossMoment): in world A the victim's
# outcomes and score are opposite to those of all others, in B the score is theirs. Variances: the victim's
# pair is as far apart as can be, or not at all. Design: it differs in the contrast alone, or in age alone.
N_PEOPLE = 40
A = wave(0), {"dx": "1", "age": "18"}
B = wave(1, 2), {"dx": "0", "age": "80"}
OTHERS = [(wave(1, 2), {"dx": "0", "age": "18"})] * (N_PEOPLE - 1)
HONEST, SITES = ("site-1", "site-2", "site-3"), ("site-1", "site-2", "site-3", "site-4")
EPSILON, DELTA = 8.0, 1e-5


class Game:
    """An aggregator with one site against the victim of another: everything that does not change by run.

    Of the sum of all answers less the masks and what the fourth site added, the noise of three sites is left;
    the guess is the sign of the likelihood ratio of all stages.
    """

    def __init__(self):
        self.analysis, _ = comparison("amplitudes", people=N_PEOPLE)
        self.terms = in_process(epsilon=EPSILON, delta=DELTA)
        # Rows are made once; the protocol is run anew every time.
        self.worlds = [self.analysis.site(Subjects([*OTHERS, victim])) for victim in (A, B)]
        plans = planned_releases(self.study(0).contract)
        self.stages = [
            (plan, STATES[0] if number == len(plans) - 1 else b"") for number, plan in enumerate(plans)
        ]
        self.sums = [[self._sum(world, number) for number in range(len(plans))] for world in (0, 1)]

    def study(self, world):
        """Return the study in a world."""
        statistics = dict.fromkeys(SITES, self.worlds[0]) | {"site-1": self.worlds[world]}
        sizes = dict.fromkeys(SITES, N_PEOPLE)
        return EmbeddedStudy("audit", sizes, statistics, self.analysis.stages(), self.terms)

    def _sum(self, world, number):
        """Return what the people of a site give, in the units of their vectors."""
        plan, state = self.stages[number]
        vectors = partial(self.worlds[world], number, NETWORKS, state)
        return sum_subjects(vectors, plan, "site-1", N_PEOPLE)[0] * plan.step / plan.scale["site-1"]

    def deviation(self, plan):
        """Return the standard deviation of the honest sites' noise, in the same units."""
        noise = math.sqrt(math.fsum(plan.noise[site] ** 2 for site in HONEST))
        return noise * plan.step / plan.scale["site-1"]

    def reached(self):
        """Return which part of mu the two worlds are apart, and that of every stage."""
        moved = [
            np.linalg.norm(a - b) / plan.query.sensitivity("site-1")
            for a, b, (plan, _) in zip(*self.sums, self.stages, strict=True)
        ]
        shares = [stage.share for stage in self.analysis.stages()]
        return math.sqrt(np.dot(shares, np.square(moved))), moved

    def play(self, world, noise_factor):
        """Run the protocol; return the likelihood ratio, positive for A, the noise, and the study."""
        study = self.study(world)
        study.engine.keep_transcript = True
        for site in HONEST:
            falsify(study.sites[site], noise_factor)
        # Its noise is known: as good as none.
        falsify(study.sites["site-4"], 1e-9)
        study.publish(NETWORKS)
        ratio, noise = 0.0, []
        for number, (plan, state) in enumerate(self.stages):
            f_a, f_b = self.sums[0][number], self.sums[1][number]
            seen = study.mean(number, state) * len(SITES) * N_PEOPLE - 3 * f_a
            deviation = self.deviation(plan)
            ratio += (f_a - f_b) @ (seen - (f_a + f_b) / 2) / deviation**2
            noise.append((seen - self.sums[world][number]) / deviation)
        return ratio, np.concatenate(noise), study


@cache
def game():
    return Game()


def audit(n_runs, noise_factor=1.0):
    """Play in both worlds by turns."""
    right, noises, shapes = [], [], set()
    with one_thread():
        for run in range(n_runs):
            ratio, noise, study = game().play(run % 2, noise_factor)
            right.append([(ratio > 0) == (run % 2 == 0)])
            noises.append(noise)
            shapes.add(shape(study))
    return Audit(study.privacy.epsilon, np.array(right), np.concatenate(noises), shapes)


def never_above(n_runs):
    """A bound that is too high has odds of 1e-3, and is checked by fresh runs: 1e-6."""
    found = audit(n_runs)
    assert found.at_least(1e-3) <= found.claim or audit(n_runs).at_least(1e-3) <= found.claim
    assert len(found.shapes) == 1
    return found


def test_the_canaries_reach_nine_tenths_of_what_is_claimed():
    whole, stages = game().reached()
    assert max(stages) <= 1
    assert stages[-1] > 0.97
    assert whole > 0.9


def test_a_small_audit_stays_below_the_claim():
    """Half of the guesses or less are right with odds of 2e-6; noise of another scale is noticed."""
    found = never_above(60)
    assert found.right.mean() > 0.5
    assert fits(found.noise, 1)
    assert not fits(found.noise, 0.7)
    assert not fits(found.noise, 1.3)


@pytest.mark.full
def test_the_audit_of_a_comparison_stays_below_the_claim_and_reaches_a_third_of_it():
    found = never_above(1500)
    assert found.at_least(1e-3) >= found.claim / 3
    assert fits(found.noise, 1)


@pytest.mark.full
def test_the_audit_refutes_the_claim_when_noise_is_too_small():
    """0.7 times the noise is missed with odds of 2e-6; the bound is one of 99%."""
    found = audit(1500, noise_factor=0.7)
    assert found.at_least(1e-2) > found.claim
    assert not fits(found.noise, 1)


@pytest.mark.full
def test_the_audit_sees_that_noise_is_too_large():
    """1.3 times the noise: the adversary demonstrably stays below the claim; missed with odds 5e-6."""
    found = audit(1500, noise_factor=1.3)
    assert found.at_most(1e-2) < found.claim
    assert not fits(found.noise, 1)
