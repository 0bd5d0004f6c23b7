r"""An audit of the default method from end to end: what the adversary really learns about one subject.

**The game.** Four sites run the real protocol. At each of the three honest ones one subject, the victim, has
scan A or another, B; everything else is known. The adversary is the aggregator with the fourth site: it keeps
every message, the sum of masks T, and that site's data and noise, and it chooses the public states, which the
guarantee allows it to. For each victim it forms the likelihood ratio of its whole view and guesses.

**The view.** One message alone is uniform (:mod:`tests.attacks.views.test_release_transcripts`), so of each
release what matters is y, the sum of all messages less T and less what the colluding site added: the sum F
of the honest sites on the grid plus Gaussian noise of variance sigma^2 = sum n_s^2. With f_A and f_B the sums
that the two scans would give, the likelihood ratio of the view is

.. math:: L = \sum_{releases} (f_A - f_B)' (y - (f_A + f_B) / 2) / \sigma^2 .                          (1)

**The bound.** Whoever tells two inputs of a mu-GDP view apart is right in at most Phi(mu/2) of the cases,
averaged over the two worlds. Guesses by the sign of L are right in p of them, and p is bounded from below by
Clopper and Pearson (Hoeffding 1956: it makes no difference there that p differs between the worlds), so

.. math:: \mu \ge 2 \Phi^{-1}(p_{low})                                                                 (2)

whatever the noise looks like. Three victims give three guesses a run. Their canaries move every release in
orthogonal directions, so that noise of the law that is claimed makes these guesses independent; where it is
not so, only one of the victims is counted.

**The neighbours.** B may be any scan at all (:data:`NEIGHBOURS`): the opposite of A as it is, over more or
fewer time points than the study plans with, or in units in which its numbers are huge or tiny; or one that
cannot be used and counts as zero, which moves every sum by half as far, or by 1/sqrt 2 in the first stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy.linalg import hadamard
from scipy.special import ndtri
from scipy.stats import beta, chi2

from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.parallel import one_thread
from capedjica.algorithms.state import pack
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.messages import Answer, Ask, Hello, read_question
from capedjica.privacy import gaussian_epsilon
from capedjica.securesum.ring import lift
from tests.mechanisms.world import reply

R, D, T = 4, 8, 64
HONEST, COLLUDING = ("s0", "s1", "s2"), "s3"
DELTA = 1e-5
# As planned for the 7 subjects of the four sites at an epsilon of 8, whatever the claim.
NOISE = in_process(epsilon=8.0, delta=DELTA).mean_noise([2, 2, 2, 1])
METHOD = SubjectMethod(D, R, T, NOISE, max_rotations=2)
# Amplitudes of a source whose variance changes; the mean of their squares is 1.
QUIET, LOUD = math.sqrt(0.2), math.sqrt(1.8)

# The public states that the adversary sends, by the stage they are for: what is published, and the state.
# W is so large that the floor of local variances plays no part: a weak source moves as much as a strong one.
V = np.linalg.qr(np.random.default_rng(1).standard_normal((D, R)))[0]
PUBLISHED = pack(V=V, sphering=np.eye(R))
STATES = {
    "subspace": (b"", b""),
    "log-covariance": (PUBLISHED, b""),
    "log-covariance, whitened": (PUBLISHED, b""),
    "rotation": (PUBLISHED, pack(W=100 * np.eye(R))),
}


# Canaries: for each victim a scan A and a scan B, opposite in every stage


def scan(victim, world, length=T):
    """Scan 0 (A) or 1 (B) of a victim: (time, features), every stage's statistic at its clip."""
    features = span(victim, world)
    result = np.zeros((length, D))
    result[:, features] = sources(victim, world, length) @ np.linalg.inv(V[features])
    return result


# What a victim may have in place of scan A, by the number of the victim.
NEIGHBOURS = {
    "opposite": lambda victim: scan(victim, 1),
    "longer": lambda victim: scan(victim, 1, 4 * T),
    "shorter": lambda victim: scan(victim, 1, T // 2),
    "huge": lambda victim: 1e15 * scan(victim, 1),
    "tiny": lambda victim: 1e-15 * scan(victim, 1),
    "NaN": lambda victim: np.full((T, D), np.nan),
    "overflow": lambda victim: np.full((T, D), 1e308),
    "empty": lambda victim: np.empty((0, D)),
}
# Those that count as zero: the shifts of two victims are then not orthogonal.
UNUSABLE = ["NaN", "overflow", "empty"]
USABLE = [name for name in NEIGHBOURS if name not in UNUSABLE]


def span(victim, world):
    """Subspace: half of the features for A, the other half for B, after rows of a Hadamard matrix."""
    return np.flatnonzero(hadamard(D)[victim + 1] == 1 - 2 * world)


def variances(victim, world):
    """Log-covariance: two components strong and two weak, the other way round in B, so opposite; norm 5."""
    return np.exp(2.5 * (1 - 2 * world) * hadamard(R)[victim + 1])


def sources(victim, world, length=T):
    """Rotation: the sources of the victim's pair (0, j) agree in one half of the scan, not in the other.

    Source 0 is quiet in the outer quarters, while they agree, and source j in the middle half, while they
    are opposite. The score of a quiet source is the larger one, so E_0j - E_j0 gathers from both halves;
    source j has the other sign in B. All other entries vanish: local variances are even in time, the signs
    of the pair even, those of the other two sources odd; these two are of constant variance and uncorrelated.
    """
    j = next(j for j in range(1, R) if hadamard(R)[victim + 1][j] == 1)
    alternating, half, quarters = (hadamard(length)[row] for row in (1, length // 2, 3 * length // 4))
    amplitudes = np.where(quarters == 1, [[QUIET], [LOUD]], [[LOUD], [-QUIET]])
    result = np.empty((length, R))
    result[:, [0, j]] = (half * alternating * amplitudes).T * [1, 1 - 2 * world]
    result[:, [i for i in range(1, R) if i != j]] = np.stack([half, alternating], axis=1)
    return result * np.sqrt(variances(victim, world))


def bystander(number):
    """A scan that everybody knows."""
    return np.random.default_rng(100 + number).standard_normal((T, D))


@cache
def population(site, world):
    """The subjects of a site: its victim, unless it colludes, and a bystander.

    In world "A" the victim has scan A, else what the neighbour of that name has.
    """
    number = int(site[1:])
    if site == COLLUDING:
        return [bystander(number)]
    return [scan(number, 0) if world == "A" else NEIGHBOURS[world](number), bystander(number)]


# Runs


def make_study(epsilon, subjects):
    """A study of the default method on the subjects of each site, with its transcript kept."""
    study = EmbeddedStudy.of("audit", METHOD, subjects, in_process(epsilon=epsilon, delta=DELTA))
    study.engine.keep_transcript = True
    return study


def worst_states(study):
    """Drive a study through its stages, on the states that suit the adversary."""
    for index, stage in enumerate(study.contract.stages):
        published, state = STATES[stage.query.label]
        study.publish(published)
        for _ in range(stage.count):
            study.mean(index, state)


def honest_states(study):
    """Drive a study as an honest aggregator does."""
    METHOD.estimate(study)


def shape(study):
    """Everything about a transcript but the bytes."""
    return tuple((x.round, x.site, x.direction, len(x.data)) for x in study.engine.transcript)


def falsify(site, factor):
    """Let a site draw noise of another scale than it should."""
    draw = site._draw
    site._draw = lambda scale, size: draw(factor * scale, size)


def listen(site):
    """Return the list of what a site will draw."""
    draw, drawn = site._draw, []

    def tapped(scale, size):
        drawn.append(draw(scale, size))
        return drawn[-1]

    site._draw = tapped
    return drawn


# The adversary


@dataclass
class Release:
    """What the adversary has of one release, in units of the sum over subjects.

    Attributes
    ----------
    question : tuple
        Stage, what was published, and the state.
    total : array
        y, the noisy sum of the honest sites.
    variance : float
        sigma^2 of the noise on it, as planned.
    """

    question: tuple[int, bytes, bytes]
    total: np.ndarray
    variance: float

    def noise(self, worlds):
        """What is left when everybody's part is taken off, in standard deviations."""
        known = sum(site_sum(site, world, self.question) for site, world in zip(HONEST, worlds, strict=True))
        return (self.total - known) / math.sqrt(self.variance)

    def likelihood_ratio(self, victim, worlds, neighbour):
        """One term of equation (1), positive for scan A; of the worlds only those of the others are used."""
        others = sum(site_sum(HONEST[i], worlds[i], self.question) for i in range(3) if i != victim)
        f_a, f_b = (site_sum(HONEST[victim], world, self.question) for world in ("A", neighbour))
        return (f_a - f_b) @ (self.total - others - (f_a + f_b) / 2) / self.variance


@lru_cache(maxsize=64)
def site_sum(site, world, question):
    """Sum of the clipped vectors of a site whose victim has the scan of a world."""
    rows = np.concatenate(list(METHOD.site(population(site, world))(*question)))
    return np.sum(clipped(rows, METHOD.stages()[question[0]].query.clip), axis=0)


def clipped(rows, clip):
    """Shorten rows to the clip; one that is not finite counts as zero."""
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    return rows * (clip / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), clip))


def releases(study, own_noise):
    """Read the transcript: every release, with T and what the colluding site added taken off."""
    block, published, seen = study.aggregator._block, b"", {}
    for letter in study.engine.transcript:
        asks = letter.direction == "question"
        match read_question(letter.data, study.contract) if asks else reply(letter.data):
            case Hello() as hello:
                published = hello.published
            case Ask() as ask:
                words = np.zeros(block.plan(ask.slot).query.size, np.uint64)
                seen.setdefault(ask.slot, ((ask.plan.stage, published, ask.state), words))
            case Answer() as answer:
                seen[answer.slot][1][:] += np.frombuffer(answer.words, "<u8")
    return [
        unmasked(block.plan(slot), question, words - block.masks(slot), own)
        for (slot, (question, words)), own in zip(seen.items(), own_noise, strict=True)
    ]


def unmasked(plan, question, words, own_noise):
    """Return a release as the colluding site sees it, from the sum of all messages less T."""
    total = (lift(words) - own_noise) * plan.step - site_sum(COLLUDING, "A", question)
    return Release(question, total, math.fsum((plan.noise[site] * plan.step) ** 2 for site in HONEST))


# The audit


def fits(noise, scale):
    """Whether the noise has this variance: chi-square, false alarm 1e-7."""
    statistic = np.sum((noise / scale) ** 2)
    return min(chi2.cdf(statistic, len(noise)), chi2.sf(statistic, len(noise))) > 5e-8


@dataclass
class Audit:
    """What many runs showed.

    Attributes
    ----------
    claim : float
        The epsilon that the study states.
    right : array of bool
        Whether each guess was right; a row for each run, a column for each victim.
    noise : array
        The noise of all releases, in the standard deviations that were planned.
    shapes : set
        The shapes of all transcripts.
    """

    claim: float
    right: np.ndarray
    noise: np.ndarray
    shapes: set

    def at_least(self, odds):
        """Lower bound on epsilon, too high with probability ``odds`` at most."""
        correct, count = self.right.sum(), self.right.size
        return epsilon_of(beta.ppf(odds, correct, count - correct + 1))

    def at_most(self, odds):
        """Upper bound on the epsilon that this adversary reaches, too low with probability ``odds``."""
        correct, count = self.right.sum(), self.right.size
        return epsilon_of(beta.ppf(1 - odds, correct + 1, count - correct))


def epsilon_of(p):
    """Equation (2), converted at delta."""
    return gaussian_epsilon(max(0.0, 2 * float(ndtri(p))), DELTA)


def play(epsilon, drive, worlds, noise_factor):
    """Run one study; return it with what the adversary has of its releases."""
    honest = {site: population(site, world) for site, world in zip(HONEST, worlds, strict=True)}
    study = make_study(epsilon, honest | {COLLUDING: population(COLLUDING, "A")})
    for site in HONEST:
        falsify(study.sites[site], noise_factor)
    own_noise = listen(study.sites[COLLUDING])
    drive(study)
    return study, releases(study, own_noise)


def audit(epsilon, n_runs, drive=worst_states, victims=(0, 1, 2), noise_factor=1.0, neighbour="opposite"):
    """Play ``n_runs`` times; each victim has each of its scans in half of them (``n_runs`` divides by 8)."""
    right, noise, shapes = [], [], set()
    with one_thread():
        for number in range(n_runs):
            worlds = ["A" if number >> victim & 1 else neighbour for victim in range(len(HONEST))]
            study, seen = play(epsilon, drive, worlds, noise_factor)
            ratios = [
                sum(one.likelihood_ratio(victim, worlds, neighbour) for one in seen) for victim in victims
            ]
            right.append(
                [(ratio > 0) == (worlds[v] == "A") for ratio, v in zip(ratios, victims, strict=True)]
            )
            noise += [release.noise(worlds) for release in seen]
            shapes.add(shape(study))
    return Audit(study.privacy.epsilon, np.array(right), np.concatenate(noise), shapes)
