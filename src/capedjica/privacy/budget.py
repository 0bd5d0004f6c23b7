r"""``PrivacyBudget``: one privacy budget shared by several calls.

The epsilon of a call covers that call alone. Calls on the same subjects compose by adding :math:`\mu^2`: 100
calls at epsilon = 1 and delta = 1e-5 have :math:`\mu = \sqrt{100} \cdot 0.268`, which is an epsilon of 14.4
at the same delta. A budget keeps a ledger of such calls, in memory or on disk, and refuses a call that would
exceed it.

**The charge** is the cap of the call, the :math:`\mu^2` of its epsilon at its delta, recorded in one
transaction before anything is computed. It is never refunded, whether the call stops early, fails or
succeeds, because how far the call progressed depends on the data. The guarantee of all calls in total is
therefore that of the sum of their caps (docs/concepts/privacy.md, section 2). Whether a call is made, and
with which epsilon, may depend on the results of earlier calls. Calls may also run concurrently: ordered in
time, their releases form one sequence whose costs stay within the caps.

**Different deltas.** A call's delta only determines its mu; the total guarantee has the delta of the budget.
The contributions of the grid and of the noise stream to delta (:mod:`capedjica.privacy.reserved_delta`) are
compared with the budget's reserve, in the same proportion as the charge.
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
# The remaining budget is understated by this much, so that a call for exactly that epsilon is not refused.
_MARGIN: Final = 1e-9


class PrivacyBudget:
    """The total privacy cost that several calls may have for one subject.

    Pass the same object as ``budget`` to :func:`capedjica.private_mean`, :class:`capedjica.CapePCA`,
    :class:`capedjica.CapeDJICA` and the estimators of :mod:`capedjica.applications`. Threads may share it.
    Copying it, as scikit-learn's ``clone`` does, returns the same object. It cannot be pickled, because
    another process would then have a second budget; an estimator is pickled without its budget. To share a
    budget between processes, keep it on disk (:meth:`on_ledger`). The total guarantee holds against the
    adversaries that every charged call covers.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of all calls in total, for one subject.

    Attributes
    ----------
    epsilon, delta : float
        The parameters.
    mu : float
        The budget as a shift of the adversary's view in standard deviations.
    spent_epsilon, spent_mu : float
        Total cost of the calls so far, at the budget's delta.
    left_epsilon : float
        The largest epsilon that one more call at the budget's delta may use.

    Examples
    --------
    >>> import numpy as np
    >>> from capedjica import PrivacyBudget, private_mean
    >>> budget = PrivacyBudget(epsilon=2.0)
    >>> hospitals = [np.ones((40, 3)), np.ones((25, 3)), np.ones((60, 3))]
    >>> first = private_mean(hospitals, clip=2.0, epsilon=1.0, budget=budget)
    >>> second = private_mean(hospitals, clip=2.0, epsilon=1.0, budget=budget)
    >>> print(budget)
    epsilon 1.47 of 2 spent at delta 1e-5 by 2 calls; one more call may use up to 1.25
    """

    def __init__(self, epsilon: float, delta: float = 1e-5) -> None:
        self._begin(epsilon, delta)
        self._use(memory_ledger(self._policy))

    @classmethod
    def on_ledger(cls, path: str | os.PathLike[str], epsilon: float, delta: float = 1e-5) -> Self:
        """Return a budget whose charges are stored in a file, for later sessions and other processes.

        The file is a ledger like that of a site (:mod:`capedjica.privacy.ledger`), with its key and its
        signed head in two files next to it. The head reveals that an older copy of the ledger was restored;
        anyone who restores or removes all three files can spend the budget again.

        Parameters
        ----------
        path : path
            The ledger file; its folder must exist.
        epsilon, delta : float
            The same values as when the file was created; a different budget needs a different file.
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
        """Use a ledger, and claim a block in which every call takes one slot."""
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
            A short description of the call, for the ledger.
        sites : collection of str
            The participating sites.
        numbers : int
            Number of values released.
        grid, distance : float
            The part of the reserve that the noise uses
            (:func:`capedjica.privacy.reserved_delta.check_reserve`).

        Raises
        ------
        BudgetExceededError
            If the total would exceed the budget.
        """
        mu = validate.positive("mu", mu)
        if mu == math.inf:
            raise InputError("a call without privacy has infinite cost and cannot be charged to a budget")
        check_reserve(self.epsilon, self.delta, min(1.0, mu * mu / self._cap.mu2), grid, distance)
        place = _STUDY, self._block, 0, next(self._slots)
        try:
            self._ledger.release(*place, sites, os.urandom(32), mu, bytes, Summary(what, numbers))
        except BudgetExceededError:
            asked = epsilon_of(mu * mu, self._cap.delta)
            raise BudgetExceededError(
                f"{what} needs epsilon {round_up(asked)} at delta {short(self.delta)}, but the budget of "
                f"{self.epsilon:g} allows at most {_round_down(self.left_epsilon)} for one more call; "
                "nothing was computed or charged"
            ) from None

    @property
    def mu(self) -> float:
        """The whole budget as a shift of the adversary's view in standard deviations."""
        return math.sqrt(self._cap.mu2)

    @property
    def spent_mu(self) -> float:
        """Total mu of the calls so far."""
        return math.sqrt(self._spent)

    @property
    def spent_epsilon(self) -> float:
        """Total epsilon of the calls so far, at the budget's delta."""
        return epsilon_of(self._spent, self._cap.delta)

    @property
    def left_epsilon(self) -> float:
        """The largest epsilon that one more call at the budget's delta may use."""
        spent = self._spent
        if not spent:
            return self.epsilon
        left = math.sqrt(max(0.0, self._cap.mu2 - spent)) * (1 - _MARGIN)
        return gaussian_epsilon(left, self._cap.delta) * (1 - _MARGIN)

    @property
    def _spent(self) -> float:
        return self._ledger.spent(_STUDY)

    def close(self) -> None:
        """Close the ledger file; the budget cannot be used afterwards."""
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
            f"{short(self.delta)} by {calls}; one more call may use up to {_round_down(self.left_epsilon)}"
        )

    def __repr__(self) -> str:
        return f"PrivacyBudget(epsilon={self.epsilon:g}, delta={self.delta:g})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a PrivacyBudget cannot be pickled, because another process would have a second budget; open the "
            "same ledger in each process with PrivacyBudget.on_ledger"
        )


class AbsentBudget:
    """Placeholder for the budget of an unpickled estimator, whose results can be used without a charge."""

    def __repr__(self) -> str:
        return "<budget not pickled>"


def check_budget(budget: Any, mechanism: str, insecure: bool) -> None:
    """Raise InputError if ``budget`` is not a budget, or if the cost of the call is infinite.

    Parameters
    ----------
    budget : PrivacyBudget or None
        The user's argument.
    mechanism : str
        The privacy mechanism.
    insecure : bool
        Whether the noise comes from a seed.
    """
    if budget is None:
        return
    if isinstance(budget, AbsentBudget):
        raise InputError(
            "this estimator was pickled without its budget; before fitting it again, set one with "
            "set_params(budget=...), for example PrivacyBudget.on_ledger(...)"
        )
    if not isinstance(budget, PrivacyBudget):
        raise InputError(f"budget must be a PrivacyBudget or None, got {type(budget).__name__}")
    if mechanism == "none" or insecure:
        why = "mechanism 'none' adds no noise" if mechanism == "none" else "seeded noise gives no privacy"
        raise InputError(f"{why}: the cost is infinite and cannot be charged to a budget")


def _round_down(value: float, digits: int = 3) -> str:
    """Return a number rounded down to ``digits`` significant digits."""
    return round_up(-value, digits).removeprefix("-")


def _derived(secret: bytes, purpose: bytes) -> bytes:
    info = b"capedjica budget 1 " + purpose
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(secret)


def _key_beside(ledger: Path) -> bytes:
    """Return the secret in the key file next to a ledger; create one for a new ledger."""
    path = ledger.with_name(ledger.name + ".key")
    try:
        if not ledger.exists():
            # Readable by its owner only; written atomically, unless a key already exists.
            with suppress(TakenError):
                write_whole(path, os.urandom(_KEY_BYTES), mode=0o600, new=True)
        secret = path.read_bytes()
    except OSError as error:
        raise StorageError(f"the budget's key file {path} cannot be read: {error.strerror}") from None
    if len(secret) != _KEY_BYTES:
        raise StorageError(f"the budget's key file {path} must contain {_KEY_BYTES} bytes, got {len(secret)}")
    return secret
