r"""``PrivacyBudget``: one budget that several calls share.

The epsilon of a call stands for that call alone. Calls on the same people add up in :math:`\mu^2`: 100 calls
at epsilon = 1 and delta = 1e-5 have :math:`\mu = \sqrt{100} \cdot 0.268`, which is an epsilon of 14.4 at the
same delta. A budget makes a ledger of such calls, in memory or on disk, and refuses the one that would exceed
it.

**What is charged** is the cap of the call, :math:`\mu^2` of its epsilon at its delta, in one transaction
before anything is computed. It stays charged whether the call stops early, fails on the way or succeeds: how
far it came depends on data. So the guarantee of all calls together is that of the sum of their caps
(docs/concepts/privacy.md, section 2): whether a call is made, and with what epsilon, may depend on
the results of earlier ones, and calls may run at the same time, since their releases in the
order of time are one sequence
whose costs stay within the caps.

**Different deltas.** A call's delta serves to find its mu and nothing else; the budget's own delta is the one
of the total. What the grid and the stream of the noise add to delta
(:mod:`capedjica.privacy.reserved_delta`) is compared with the budget's reserve, in the same proportion as the
charge.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from capedjica.errors import BudgetExceededError, InputError, ProtocolError
from capedjica.privacy import validate
from capedjica.privacy.charges import Cap, epsilon_of
from capedjica.privacy.gaussian import gaussian_epsilon
from capedjica.privacy.ledger import Ledger, Policy, StorageError, Summary
from capedjica.privacy.ledger.keys import verifies
from capedjica.privacy.ledger.memory import memory_ledger
from capedjica.privacy.reserved_delta import RESERVED_DELTA, check_reserve
from capedjica.privacy.wording import round_up, short
from capedjica.tools.atomic_files import TakenError, write_whole

_STUDY: Final = hashlib.sha256(b"capedjica budget 1").digest()
_TITLE: Final = "budget of several calls"
_KEY_BYTES: Final = 32
# What is left is told from below by this much, so that a call may ask for it.
_MARGIN: Final = 1e-9


class PrivacyBudget:
    """What several calls may cost a subject together.

    Pass the same object as ``budget`` to :func:`capedjica.private_mean`, :class:`capedjica.CapePCA`,
    :class:`capedjica.CapeDJICA` and the estimators of :mod:`capedjica.applications`. Threads may share it.
    A copy, such as scikit-learn's ``clone`` makes, is the same object, and it cannot be pickled: another
    process would have a second budget. An estimator that is pickled leaves it behind. Processes share one on
    disk (:meth:`on_ledger`). What it says holds against those whom every call in it holds against.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of all calls together, for one subject.

    Attributes
    ----------
    epsilon, delta : float
        As given.
    mu : float
        The same as a shift of the adversary's view in standard deviations.
    spent_epsilon, spent_mu : float
        Of the calls so far together, at the budget's delta.
    left_epsilon : float
        What one more call at the budget's delta may ask for, at most.

    Examples
    --------
    >>> import numpy as np
    >>> from capedjica import PrivacyBudget, private_mean
    >>> budget = PrivacyBudget(epsilon=2.0)
    >>> hospitals = [np.ones((40, 3)), np.ones((25, 3)), np.ones((60, 3))]
    >>> first = private_mean(hospitals, clip=2.0, epsilon=1.0, budget=budget)
    >>> second = private_mean(hospitals, clip=2.0, epsilon=1.0, budget=budget)
    >>> print(budget)
    epsilon 1.47 of 2 spent at delta 1e-5, by 2 calls; one more may ask for 1.25
    """

    def __init__(self, epsilon: float, delta: float = 1e-5) -> None:
        self._begin(epsilon, delta)
        self._use(memory_ledger(self._policy))

    @classmethod
    def on_ledger(cls, path: str | os.PathLike[str], epsilon: float, delta: float = 1e-5) -> Self:
        """Return a budget whose charges are kept in a file, for later sessions and other processes.

        The file is a ledger like a site's (:mod:`capedjica.privacy.ledger`), with its key and its signed head
        in two files beside it. An older copy of it is noticed by the head; whoever sets back or removes all
        three can spend the budget again.

        Parameters
        ----------
        path : path
            The ledger's file; its folder must exist.
        epsilon, delta : float
            As when it was made: another budget needs another file.
        """
        budget = cls.__new__(cls)
        budget._begin(epsilon, delta)
        file = Path(path).absolute()
        secret = _key_beside(file)
        signer = Ed25519PrivateKey.from_private_bytes(_derived(secret, b"sign"))
        public = signer.public_key().public_bytes_raw()
        ledger = Ledger.open(
            file,
            storage_key=_derived(secret, b"store"),
            sign=signer.sign,
            verify=lambda signature, data: verifies(public, signature, data),
            policy=budget._policy,
            head_path=file.with_name(file.name + ".head"),
        )
        try:
            budget._use(ledger)
        except BaseException:
            ledger.close()
            raise
        return budget

    def _begin(self, epsilon: float, delta: float) -> None:
        self.epsilon = validate.positive("epsilon", epsilon)
        self.delta = validate.probability("delta", delta)
        self._cap = Cap(self.epsilon, self.delta * (1 - RESERVED_DELTA))
        self._policy = Policy(total=self._cap, per_study=self._cap)

    def _use(self, ledger: Ledger) -> None:
        """Take a ledger, and a block of its own in which every call has a slot."""
        ledger.register_study(_STUDY, _TITLE, self._cap)
        self._ledger, self._slots = ledger, itertools.count()
        while True:
            self._block = ledger.last_block(_STUDY) + 1
            try:
                return ledger.claim(_STUDY, self._block, 0)
            except ProtocolError:  # another process was faster
                continue

    def charge(
        self,
        mu: float,
        what: str,
        sites: Collection[str],
        *,
        numbers: int = 0,
        grid: float = 0.0,
        distance: float = 0.0,
    ) -> None:
        r"""Charge a call, or refuse it and charge nothing.

        Parameters
        ----------
        mu : float
            The cap of the call for one subject; :math:`\mu^2` is charged.
        what : str
            The call in plain words, for the ledger.
        sites : collection of str
            Whose subjects take part.
        numbers : int
            How many numbers are released.
        grid, distance : float
            What its noise takes of the reserve (:func:`capedjica.privacy.reserved_delta.check_reserve`).

        Raises
        ------
        BudgetExceededError
            If the total would exceed the budget.
        """
        mu = validate.positive("mu", mu)
        if mu == math.inf:
            raise InputError("a call without privacy cannot be charged to a budget")
        check_reserve(self.epsilon, self.delta, min(1.0, mu * mu / self._cap.mu2), grid, distance)
        place = _STUDY, self._block, 0, next(self._slots)
        try:
            self._ledger.release(*place, sites, os.urandom(32), mu, bytes, Summary(what, numbers))
        except BudgetExceededError:
            asked = epsilon_of(mu * mu, self._cap.delta)
            raise BudgetExceededError(
                f"{what} asks for epsilon {round_up(asked)} at delta {short(self.delta)}, but of the budget "
                f"of {self.epsilon:g} one more call may ask for {_round_down(self.left_epsilon)} at most; "
                "nothing was computed or charged"
            ) from None

    @property
    def mu(self) -> float:
        """The whole budget, in standard deviations."""
        return math.sqrt(self._cap.mu2)

    @property
    def spent_mu(self) -> float:
        """What the calls so far cost together."""
        return math.sqrt(self._spent)

    @property
    def spent_epsilon(self) -> float:
        """The same as an epsilon at the budget's delta."""
        return epsilon_of(self._spent, self._cap.delta)

    @property
    def left_epsilon(self) -> float:
        """What one more call at the budget's delta may ask for, at most."""
        spent = self._spent
        if not spent:
            return self.epsilon
        left = math.sqrt(max(0.0, self._cap.mu2 - spent)) * (1 - _MARGIN)
        return gaussian_epsilon(left, self._cap.delta) * (1 - _MARGIN)

    @property
    def _spent(self) -> float:
        return self._ledger.spent(_STUDY)

    def close(self) -> None:
        """Close the ledger's file; the budget cannot be used afterwards."""
        self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        n_calls = self._ledger.totals().overall.n_releases
        calls = f"{n_calls} call{'s' * (n_calls != 1)}"
        return (
            f"epsilon {round_up(self.spent_epsilon, 3)} of {self.epsilon:g} spent at delta "
            f"{short(self.delta)}, by {calls}; one more may ask for {_round_down(self.left_epsilon)}"
        )

    def __repr__(self) -> str:
        return f"PrivacyBudget(epsilon={self.epsilon:g}, delta={self.delta:g})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a PrivacyBudget cannot be pickled: another process would have a second budget; open the same "
            "ledger in each with PrivacyBudget.on_ledger"
        )


class AbsentBudget:
    """Stands for the budget of an estimator that was pickled: results can be used, but nothing is charged."""

    def __repr__(self) -> str:
        return "<budget left behind>"


def check_budget(budget: Any, mechanism: str, insecure: bool) -> None:
    """Refuse what is not a budget, and calls whose cost no budget can hold.

    Parameters
    ----------
    budget : PrivacyBudget or None
        As the user gave it.
    mechanism : str
        How means are made private.
    insecure : bool
        Whether the noise comes from a seed.
    """
    if budget is None:
        return
    if isinstance(budget, AbsentBudget):
        raise InputError(
            "this estimator was pickled, and its budget stayed behind; before it is fitted again give it one "
            "by set_params(budget=...), PrivacyBudget.on_ledger(...) for example"
        )
    if not isinstance(budget, PrivacyBudget):
        raise InputError(f"budget must be a PrivacyBudget or None, got {type(budget).__name__}")
    if mechanism == "none" or insecure:
        why = "mechanism 'none' adds no noise" if mechanism == "none" else "seeded noise protects nobody"
        raise InputError(f"{why}: its cost is infinite, and no budget can be charged with it")


def _round_down(value: float, digits: int = 3) -> str:
    """Return a number that may be asked for, never above its value."""
    return round_up(-value, digits).removeprefix("-")


def _derived(secret: bytes, purpose: bytes) -> bytes:
    info = b"capedjica budget 1 " + purpose
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(secret)


def _key_beside(ledger: Path) -> bytes:
    """Return the secret in the file beside a ledger; a new ledger gets a new one."""
    path = ledger.with_name(ledger.name + ".key")
    try:
        if not ledger.exists():
            # Only its owner can read it; it is put in its place as a whole, unless one is there.
            with suppress(TakenError):
                write_whole(path, os.urandom(_KEY_BYTES), mode=0o600, new=True)
        secret = path.read_bytes()
    except OSError as error:
        raise StorageError(f"the key of the budget, {path}: {error.strerror}") from None
    if len(secret) != _KEY_BYTES:
        raise StorageError(f"the key of the budget, {path}, must hold {_KEY_BYTES} bytes, got {len(secret)}")
    return secret
