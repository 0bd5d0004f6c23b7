r"""Text of a guarantee, shared by the terminal, reports, JSON files, the approval and Python.

The text is about one *participant*. Shifts of the adversary's view at most add up (triangle inequality), so a
participant with k time points has k mu (:mod:`capedjica.privacy.neighbour`), and a participant enrolled at
two sites has the sum of their mu.
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
# Shown to a site, also if the aggregator is a trusted curator (mechanism "pooled").
NOT_FROM_THE_AGGREGATOR: Final = f"{NOT_PRIVATE}: no participant is protected from the aggregator."


def round_up(value: float | None, digits: int = 4) -> str:
    """Return a value rounded up to ``digits`` significant digits, or a dash if there is none."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(decimal.Decimal(value))):.{digits}g}"


def short(value: float, digits: int = 6) -> str:
    """Return a number in short notation, such as 1e-5."""
    return f"{value:.{digits}g}".replace("e-0", "e-")


@dataclass(frozen=True)
class Guarantee:
    """The parameters of a guarantee, and the sentences that state it.

    Attributes
    ----------
    nominal_epsilon, delta, nominal_mu : float
        For one unit and all releases in total, if the noise came from a secure source.
    mechanism : str
        The privacy mechanism.
    n_sites, n_colluding : int
        Number of sites, and how many of them may collude with the aggregator.
    unit : ProtectedUnit
        The unit of privacy.
    secure : bool
        False if the noise comes from a seed; there is then no guarantee.
    alone : str
        The only site used by ``mechanism="local"``.
    other_mu : float, optional
        The largest ``nominal_mu`` of any site; by default ``nominal_mu``.
    fewest_sites : int, optional
        Number of sites in the release with the fewest sites; by default ``n_sites``.
    not_covered : tuple of str
        Sentences that state what the guarantee does not cover.
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

    # Numbers

    @property
    def private(self) -> bool:
        """Whether there is a guarantee: False without noise and with noise from a seed."""
        return self.secure and self.mechanism != "none" and self.nominal_epsilon < math.inf

    @property
    def epsilon(self) -> float:
        """The epsilon of one unit; infinite if there is no guarantee."""
        return self.nominal_epsilon if self.private else math.inf

    @property
    def mu(self) -> float:
        """The same as a shift of the adversary's view in standard deviations."""
        return self.nominal_mu if self.private else math.inf

    @property
    def person_mu(self) -> float:
        """The mu of a whole participant with the largest number of units."""
        return self.unit.subject_mu(self.mu)

    @property
    def person_epsilon(self) -> float:
        """The epsilon of a whole participant; equal to ``epsilon`` if that is the unit."""
        return self.epsilon if self.unit.is_subject else self.unit.subject_epsilon(self.mu, self.delta)

    @property
    def two_sites_epsilon(self) -> float | None:
        """The epsilon of a participant who is enrolled at two sites.

        None if the unit is a time point, which exists only once, or if only one site contributes.
        """
        if not self.private or not self.unit.is_subject or self.mechanism == "local":
            return None
        # The grid's contribution to delta counts at both sites.
        mu = self.mu + (self.other_mu or self.mu)
        return gaussian_epsilon(mu, self.delta * (1 - 2 * RESERVED_DELTA))

    @property
    def curious_site_epsilon(self) -> float | None:
        """Epsilon against one curious site if the guarantee covers no other site, else None.

        The cap on mu is scaled by equation (1) of :mod:`capedjica.privacy.adversary`, at the release with the
        fewest sites.
        """
        if not self.private or self.mechanism != "cape" or self.n_colluding > 0:
            return None
        return curious_site_epsilon(self.mu, self.fewest_sites or self.n_sites, self.delta)

    @property
    def adversary(self) -> Adversary:
        """The adversaries that the guarantee covers and those that it does not."""
        mechanism = self.mechanism if self.private or not self.secure else "none"
        return adversary(mechanism, self.n_sites, self.n_colluding, self.alone, self.secure)

    @property
    def best_guess(self) -> float:
        r"""The largest probability of deciding correctly which of two equally likely units is the true one.

        For mu-GDP the total variation distance is at most delta(0) = Phi(mu/2) - Phi(-mu/2), and a guess
        between two equally likely inputs is correct with probability at most (1 + TV)/2 = Phi(mu/2). The
        contribution of the grid and of the noise stream, ``RESERVED_DELTA`` of delta, is added to the
        distance.
        """
        return min(1.0, (1 + gaussian_delta(self.mu, 0.0) + RESERVED_DELTA * self.delta) / 2)

    # Sentences

    @property
    def protected(self) -> str:
        """The protected unit and its epsilon, or that there is no privacy."""
        if not self.secure:
            return (
                f"{NOT_PRIVATE}: the noise comes from a seed and can be removed, so no participant is "
                "protected."
            )
        if not self.private:
            return f"{NOT_PRIVATE}: no noise is added, so no participant is protected."
        return (
            f"Each {self.unit.named()} is protected with epsilon {round_up(self.epsilon, 6)} at delta "
            f"{short(self.delta)}, for all releases in total."
        )

    @property
    def whole_person(self) -> str:
        """The guarantee for a whole participant if the unit is a time point, else empty."""
        if self.unit.is_subject:
            return ""
        epsilon = round_up(self.person_epsilon)
        return f"However, {self.unit.holding()} is protected only with epsilon {epsilon}."

    @property
    def holds(self) -> str:
        """The adversaries that the guarantee covers."""
        return f"This guarantee holds against {self.adversary.against}."

    @property
    def does_not_hold(self) -> str:
        """The adversaries not covered, and the epsilon against one curious site if no site is covered."""
        curious = self.curious_site_epsilon
        learns = "" if curious is None else f" Against one curious site, epsilon is {round_up(curious)}."
        return f"It does NOT hold against {self.adversary.not_against}.{learns}"

    @property
    def odds(self) -> str:
        """The meaning of (epsilon, delta): a bound on how much more likely any outcome can become."""
        if not self.private:
            return ""
        if self.epsilon <= math.log(1e6):
            likelier, little = math.exp(self.epsilon), ""
            factor = round_up(likelier, 3) if self.epsilon < 2 else f"{math.ceil(likelier):,}"
        else:
            factor = f"10^{math.ceil(self.epsilon / math.log(10))}"
            little = " A factor of more than one million offers practically no protection."
        chance = f"{self.delta:g}" if self.delta > 0.1 else f"1 in {math.floor((1 + 1e-9) / self.delta):,}"
        replaced = "the data" if self.unit.is_subject else "one time point"
        return (
            f"In other words: if {replaced} of one participant were replaced by any other value, no outcome, "
            f"and no conclusion drawn from it, would become more likely by a factor of more than {factor} (e "
            f"to the power of epsilon), apart from an additional probability of {chance} (delta).{little}"
        )

    @property
    def bet(self) -> str:
        """The guarantee as the success rate of the best guess."""
        which = "data sets of one participant" if self.unit.is_subject else "values of one time point"
        return (
            "As a guessing game: an adversary covered by the guarantee, who knows all other data and must "
            f"decide which of two equally likely {which} is the true one, is correct in at most "
            f"{round_up(100 * self.best_guess, 3)}% of cases. Random guessing is correct in 50%."
        )

    @property
    def shift(self) -> str:
        """The guarantee as mu."""
        whole = "" if self.unit.is_subject else f"; for a whole participant, mu = {round_up(self.person_mu)}"
        mu = round_up(self.mu)
        return f"As a shift of the adversary's view, the guarantee is mu = {mu} standard deviations{whole}."

    @property
    def enrolled_once(self) -> str:
        """The assumption that participants are enrolled once, and the cost if not; empty if irrelevant."""
        twice = self.two_sites_epsilon
        if twice is None:
            return ""
        return (
            "No participant is enrolled at more than one site. For a participant enrolled at several sites, "
            f"the mu of these sites add up: at two sites, epsilon is {round_up(twice)} and not "
            f"{round_up(self.epsilon, 6)}. No site can detect this; ask participants before enrolling them."
        )

    @property
    def rests_on(self) -> tuple[str, ...]:
        """The assumptions of the guarantee."""
        sides = ""
        if self.mechanism == "cape":
            sides = "No site colludes with the aggregator, and all sites follow the protocol."
            if self.n_colluding:
                sides = (
                    f"No more than {self.n_colluding} of the {self.n_sites} sites collude with the "
                    "aggregator; the others follow the protocol."
                )
        counted = "participants enrolled at" if self.unit.is_subject else "time points held by"
        fixed = f"The number of {counted} each site was fixed and public before the study was approved."
        ciphers = "The ciphers (X25519, AES) are not broken, and each site controls its own computer."
        return tuple(filter(None, (sides, self.enrolled_once, fixed, ciphers)))

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the guarantee does not cover, and how to interpret a large epsilon."""
        if not STREAM_EPSILON < self.person_epsilon < math.inf:
            return self.not_covered
        ideal = (
            f"An epsilon above {STREAM_EPSILON:g} is stated for ideal random numbers; the numbers drawn are "
            f"equivalent to these except with probability {round_up(difference(self.delta), 2)}."
        )
        return (ideal, *self.not_covered)

    @property
    def summary(self) -> tuple[str, ...]:
        """The essential sentences: the unit, its epsilon, and the adversaries covered and not covered."""
        if not self.private:
            return (self.protected,)
        return tuple(filter(None, (self.protected, self.whole_person, self.holds, self.does_not_hold)))

    @property
    def article(self) -> str:
        """The guarantee, phrased for the methods section of an article."""
        if not self.private:
            return self.protected
        differ = "the data of one participant"
        if not self.unit.is_subject:
            whole = f"{self.unit.holding()} has only ε = {round_up(self.person_epsilon)}"
            differ = f"one time point ({whole})"
        return (
            "In total, all releases satisfy (ε, δ)-differential privacy at the level of "
            f"{self.unit.plural()} with ε = {round_up(self.epsilon)} and δ = {short(self.delta)} "
            f"{self.adversary}; neighbouring data sets differ in {differ}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the sentences by name; those about a guarantee are empty if there is none."""
        sentences = ("whole_person", "holds", "does_not_hold", "odds", "bet", "shift", "enrolled_once")
        return {
            "protected": self.protected,
            **{name: getattr(self, name) if self.private else "" for name in sentences},
            "rests_on": list(self.rests_on) if self.private else [],
            "caveats": list(self.caveats),
        }
