r"""A guarantee in words: the one text for terminal, report, JSON, approval and Python.

Readers are told of a *person*. Shifts of the adversary's view add up at most (triangle inequality), so a
person with k time points has k mu (:mod:`capedjica.privacy.neighbour`), and one who is enrolled at two sites
has the sum of their mu.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from typing import Any, Final

from capedjica.privacy.adversary import Adversary, adversary, curious_site_epsilon
from capedjica.privacy.gaussian import gaussian_delta, gaussian_epsilon
from capedjica.privacy.neighbour import WHOLE_SUBJECT, ProtectedUnit
from capedjica.privacy.reserved_delta import RESERVED_DELTA, STREAM_EPSILON, difference

NOT_PRIVATE: Final = "NOT PRIVATE"
# To a site, also where somebody trusts the aggregator (mechanism "pooled").
NOT_FROM_THE_AGGREGATOR: Final = f"{NOT_PRIVATE}: nobody is protected from the aggregator."


def round_up(value: float | None, digits: int = 4) -> str:
    """Return a guarantee to ``digits`` significant digits, never below its value; a dash if there is none."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(decimal.Decimal(value))):.{digits}g}"


def short(value: float, digits: int = 6) -> str:
    """Return a number as people write it: 1e-5."""
    return f"{value:.{digits}g}".replace("e-0", "e-")


@dataclass(frozen=True)
class Guarantee:
    """The facts of a guarantee, and the sentences that tell them.

    Attributes
    ----------
    nominal_epsilon, delta, nominal_mu : float
        For one unit and everything together that is released, had the noise come from a secure source.
    mechanism : str
        How means are made private.
    n_sites, n_colluding : int
        The sites, and how many of them may side with the aggregator.
    unit : ProtectedUnit
        What is protected.
    secure : bool
        False if noise comes from a seed: then nobody is protected.
    alone : str
        The site that works alone under ``mechanism="local"``.
    other_mu : float, optional
        The largest ``nominal_mu`` of a site; that given above, if it is not given.
    fewest_sites : int, optional
        Those in the release with the fewest; all, if it is not given.
    not_covered : tuple of str
        Sentences on what the guarantee does not cover.
    """

    nominal_epsilon: float
    delta: float
    nominal_mu: float
    mechanism: str
    n_sites: int
    n_colluding: int
    unit: ProtectedUnit = WHOLE_SUBJECT
    secure: bool = True
    alone: str = ""
    other_mu: float | None = None
    fewest_sites: int | None = None
    not_covered: tuple[str, ...] = ()

    # Facts

    @property
    def private(self) -> bool:
        """Whether anybody is protected: not without noise, and not with noise from a seed."""
        return self.secure and self.mechanism != "none" and self.nominal_epsilon < math.inf

    @property
    def epsilon(self) -> float:
        """Of one unit; infinite if nobody is protected."""
        return self.nominal_epsilon if self.private else math.inf

    @property
    def mu(self) -> float:
        """The same as a shift of the adversary's view in standard deviations."""
        return self.nominal_mu if self.private else math.inf

    @property
    def person_mu(self) -> float:
        """The mu of a whole person: that of as many units as a person may hold."""
        return self.unit.subject_mu(self.mu)

    @property
    def person_epsilon(self) -> float:
        """The epsilon of a whole person; ``epsilon`` if that is the unit."""
        return self.epsilon if self.unit.is_subject else self.unit.subject_epsilon(self.mu, self.delta)

    @property
    def two_sites_epsilon(self) -> float | None:
        """Of a person who is enrolled at two sites.

        None if a time point is the unit, which is there once, and where only one site gives anything.
        """
        if not self.private or not self.unit.is_subject or self.mechanism == "local":
            return None
        # What the grid adds to delta is added at both.
        mu = self.mu + (self.other_mu or self.mu)
        return gaussian_epsilon(mu, self.delta * (1 - 2 * RESERVED_DELTA))

    @property
    def curious_site_epsilon(self) -> float | None:
        """Epsilon against one curious site, where the guarantee covers none; None where it does, or nobody.

        The cap on mu is scaled by equation (1) of :mod:`capedjica.privacy.adversary`, at the release with the
        fewest participants.
        """
        if not self.private or self.mechanism != "cape" or self.n_colluding > 0:
            return None
        return curious_site_epsilon(self.mu, self.fewest_sites or self.n_sites, self.delta)

    @property
    def adversary(self) -> Adversary:
        """Against whom the guarantee holds, and against whom it does not."""
        mechanism = self.mechanism if self.private or not self.secure else "none"
        return adversary(mechanism, self.n_sites, self.n_colluding, self.alone, self.secure)

    @property
    def best_guess(self) -> float:
        r"""The largest probability of telling which of two equally likely units is the true one.

        For mu-GDP the total variation distance is at most delta(0) = Phi(mu/2) - Phi(-mu/2), and a guess
        between two equally likely worlds is right with probability (1 + TV)/2 = Phi(mu/2) at best. What the
        grid and the stream of the noise add, ``RESERVED_DELTA`` of delta, is added to the distance.
        """
        return min(1.0, (1 + gaussian_delta(self.mu, 0.0) + RESERVED_DELTA * self.delta) / 2)

    # Sentences

    @property
    def protected(self) -> str:
        """Who is protected, with which epsilon; or that nobody is."""
        if not self.secure:
            return f"{NOT_PRIVATE}: the noise comes from a seed and can be taken off, so nobody is protected."
        if not self.private:
            return f"{NOT_PRIVATE}: no noise is added, so nobody is protected."
        return (
            f"Each {self.unit.named()} is protected with epsilon {round_up(self.epsilon, 6)} at delta "
            f"{short(self.delta)}, for everything together."
        )

    @property
    def whole_person(self) -> str:
        """What a whole person has where a time point is the unit; empty where the person is."""
        if self.unit.is_subject:
            return ""
        return f"But {self.unit.holding()} only with epsilon {round_up(self.person_epsilon)}."

    @property
    def holds(self) -> str:
        """Against whom."""
        return f"It holds against {self.adversary.against}."

    @property
    def does_not_hold(self) -> str:
        """Against whom it does not, and what one curious site could learn where none is covered."""
        curious = self.curious_site_epsilon
        learns = "" if curious is None else f" Against one curious site it is epsilon {round_up(curious)}."
        return f"It does NOT hold against {self.adversary.not_against}.{learns}"

    @property
    def odds(self) -> str:
        """What (epsilon, delta) says: no outcome is e^epsilon times as likely, but for delta."""
        if not self.private:
            return ""
        if self.epsilon <= math.log(1e6):
            likelier, little = math.exp(self.epsilon), ""
            factor = round_up(likelier, 3) if self.epsilon < 2 else f"{math.ceil(likelier):,}"
        else:
            factor = f"10^{math.ceil(self.epsilon / math.log(10))}"
            little = " It may be a factor of more than a million, which protects next to nobody."
        chance = f"{self.delta:g}" if self.delta > 0.1 else f"1 in {math.floor((1 + 1e-9) / self.delta):,}"
        replaced = "the data of one person" if self.unit.is_subject else "one time point of one person"
        return (
            f"That is: if {replaced} were replaced by any other, no outcome, and nothing that anybody "
            f"concludes from it, would become more likely by a factor of more than {factor} (e to the power "
            f"of epsilon), but for a remainder of probability {chance} (delta).{little}"
        )

    @property
    def bet(self) -> str:
        """The best guess."""
        which = "data sets of one person" if self.unit.is_subject else "values of one time point"
        return (
            "Put as a bet: somebody against whom it holds, who knows everything about everybody else and "
            f"must tell which of two equally likely {which} is the true one, is right in at most "
            f"{round_up(100 * self.best_guess, 3)}% of cases. Guessing blindly is right in 50%."
        )

    @property
    def shift(self) -> str:
        """The guarantee as mu."""
        whole = "" if self.unit.is_subject else f"; of a whole person, mu = {round_up(self.person_mu)}"
        mu = round_up(self.mu)
        return f"As a shift of what an adversary sees, it is mu = {mu} standard deviations{whole}."

    @property
    def enrolled_once(self) -> str:
        """What a person loses who is enrolled twice; empty where that cannot be more than once."""
        twice = self.two_sites_epsilon
        if twice is None:
            return ""
        return (
            "Nobody is enrolled at more than one site. The same person at several has the mu of each of "
            f"them, added up: at two, epsilon {round_up(twice)} and not {round_up(self.epsilon, 6)}. No site "
            "can see that; ask people before they are enrolled."
        )

    @property
    def rests_on(self) -> tuple[str, ...]:
        """What the guarantee rests on."""
        sides = ""
        if self.mechanism == "cape":
            sides = "No site sides with the aggregator, and all follow the protocol."
            if self.n_colluding:
                sides = (
                    f"No more than {self.n_colluding} of the {self.n_sites} sites side with the aggregator; "
                    "the others follow the protocol."
                )
        counted = "people each site enrolled" if self.unit.is_subject else "time points each site holds"
        fixed = f"How many {counted} was fixed, and public, before the study was approved."
        ciphers = "Ciphers stay unbroken (X25519, AES), and each site's computer is its own."
        return tuple(filter(None, (sides, self.enrolled_once, fixed, ciphers)))

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the guarantee does not cover; of a large epsilon, what it is said of."""
        if not STREAM_EPSILON < self.person_epsilon < math.inf:
            return self.not_covered
        ideal = (
            f"An epsilon above {STREAM_EPSILON:g} is said of ideal random numbers; those drawn are as good "
            f"except with probability {round_up(difference(self.delta), 2)}."
        )
        return (ideal, *self.not_covered)

    @property
    def summary(self) -> tuple[str, ...]:
        """The least that must be said: who is protected, with what, against whom, and against whom not."""
        if not self.private:
            return (self.protected,)
        return tuple(filter(None, (self.protected, self.whole_person, self.holds, self.does_not_hold)))

    @property
    def article(self) -> str:
        """The same for the methods section of an article."""
        if not self.private:
            return self.protected
        differ = "the data of one person"
        if not self.unit.is_subject:
            whole = f"{self.unit.holding()} has ε = {round_up(self.person_epsilon)} only"
            differ = f"one time point ({whole})"
        return (
            f"All releases together satisfy (ε, δ)-differential privacy at the level of {self.unit.plural()} "
            f"with ε = {round_up(self.epsilon)} and δ = {short(self.delta)} {self.adversary}; neighbouring "
            f"data sets differ in {differ}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the sentences, for programs; those of a guarantee are empty where there is none."""
        sentences = ("whole_person", "holds", "does_not_hold", "odds", "bet", "shift", "enrolled_once")
        return {
            "protected": self.protected,
            **{name: getattr(self, name) if self.private else "" for name in sentences},
            "rests_on": list(self.rests_on) if self.private else [],
            "caveats": list(self.caveats),
        }
