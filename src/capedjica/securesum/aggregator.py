"""The aggregator's side of the secure sum, as a state machine without I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from capedjica.errors import ProtocolError
from capedjica.securesum import shamir
from capedjica.securesum.commitments import seed_commitment, share_commitment, survivors_hash
from capedjica.securesum.identity import AGGREGATOR
from capedjica.securesum.masks import agree, apply_masks, pairwise_mask, self_mask
from capedjica.securesum.messages import (
    Advertisement,
    Agreement,
    AgreementList,
    KeyList,
    MaskedInput,
    Message,
    SharedKeys,
    ShareList,
    SurvivorList,
    Unmasking,
    check_distinct_keys,
    encode,
    header,
    listed,
    read_site_message,
)
from capedjica.securesum.parameters import SumParameters
from capedjica.securesum.stream import Keystream


class AggregatorSum:
    """The aggregator of one secure sum, which learns only the total of the sites' vectors.

    In each of five rounds the sites' messages are passed to :meth:`receive`, in any order; :meth:`advance`
    closes the round with the sites that answered and returns the next message for each of them. A message
    that is refused (ProtocolError) changes nothing, and the round continues with the other sites. A site that
    did not answer a round is excluded from the sum; with fewer than t answers :meth:`advance` refuses to
    close the round.

    Parameters
    ----------
    parameters : SumParameters
        The public values of the sum.
    """

    def __init__(self, parameters: SumParameters) -> None:
        self.parameters: Final = parameters
        self._round = 0
        # Sites that may answer this round, and the bytes of the answers (kept only if they are relayed).
        self._expected = parameters.roster.names
        self._answered: dict[str, bytes] = {}
        self._keys: dict[str, Advertisement] = {}
        self._deals: dict[str, SharedKeys] = {}
        self._survivors: tuple[str, ...] = ()
        self._total = np.zeros(parameters.length, dtype=np.uint64)
        # dealer -> holder -> valid share, of the seed for survivors and of the mask key for the others
        self._shares: dict[str, dict[str, bytes]] = {}
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        """Whether the sum is complete."""
        return self._round == len(_ROUNDS)

    @property
    def survivors(self) -> tuple[str, ...]:
        """The sites in the sum, in roster order."""
        self._check_done()
        return self._survivors

    @property
    def result(self) -> NDArray[np.uint64]:
        """The sum modulo 2^64 of the survivors' vectors."""
        self._check_done()
        return self._total

    def receive(self, data: bytes) -> None:
        """Accept a message of a site, or raise ProtocolError and change nothing."""
        with self._lock:
            if self.done:
                raise ProtocolError("the sum is complete; no more messages are expected")
            expected, take, _ = _ROUNDS[self._round]
            message = read_site_message(data, self.parameters, expected)
            sender = message.sender
            if sender in self._answered:
                raise ProtocolError(f"site {sender} already answered this round; its first answer is kept")
            if sender not in self._expected:
                raise ProtocolError(
                    f"site {sender} is excluded from this sum because it did not answer an earlier round"
                )
            take(self, message)
            self._answered[sender] = bytes(data) if expected in _RELAYED else b""

    def advance(self) -> dict[str, bytes]:
        """Close the round and return the next message for each site still taking part.

        After the last round there are no messages and :attr:`result` holds the sum. If too few sites have
        answered, ProtocolError names the missing sites, nothing is sent, and the round stays open.
        """
        with self._lock:
            if self.done:
                raise ProtocolError("the sum is complete; there is no round to close")
            expected, _, close = _ROUNDS[self._round]
            present = self.parameters.roster.in_order(self._answered)
            self._check_enough(expected.__name__, present)
            messages = close(self, present)
            self._expected, self._answered = present, {}
            self._round += 1
            return messages

    def __repr__(self) -> str:
        p = self.parameters
        return (
            f"AggregatorSum(block {p.block}, attempt {p.attempt}, round {self._round + 1} of {len(_ROUNDS)})"
        )

    def _check_done(self) -> None:
        if not self.done:
            raise ProtocolError("the sum is not complete yet")

    def _check_enough(self, what: str, present: tuple[str, ...]) -> None:
        roster = self.parameters.roster
        if len(present) < roster.threshold:
            missing = [name for name in roster.names if name not in present]
            raise ProtocolError(
                f"{what}: {len(present)} sites answered, {roster.threshold} are needed; "
                f"missing: {', '.join(missing)}"
            )

    def _header(self) -> tuple[int, bytes, bytes, int, int, str]:
        return header(self.parameters, AGGREGATOR)

    # Round 1

    def _take_advertisement(self, message: Advertisement) -> None:
        probe = X25519PrivateKey.generate()
        for key in (message.channel_key, message.mask_key):
            agree(probe, key, message.sender)
        keys = {**self._keys, message.sender: message}
        check_distinct_keys(keys)
        self._keys = keys

    def _list_keys(self, present: tuple[str, ...]) -> dict[str, bytes]:
        advertisements = tuple(self._answered[name] for name in present)
        return dict.fromkeys(present, encode(KeyList(*self._header(), advertisements)))

    # Round 2

    def _take_shared_keys(self, message: SharedKeys) -> None:
        holders = set(self._expected)
        _check_names(message, "envelopes", message.envelopes, holders - {message.sender})
        _check_names(message, "commitments", message.seed_share_commitments, holders)
        _check_names(message, "commitments", message.key_share_commitments, holders)
        self._deals[message.sender] = message

    def _list_shares(self, present: tuple[str, ...]) -> dict[str, bytes]:
        return {
            name: encode(
                ShareList(
                    *self._header(),
                    {peer: self._deals[peer].envelopes[name] for peer in present if peer != name},
                )
            )
            for name in present
        }

    # Round 3

    def _take_masked_input(self, message: MaskedInput) -> None:
        if len(message.words) != self._total.nbytes:
            raise ProtocolError(
                f"the masked input of site {message.sender} has {len(message.words)} bytes, "
                f"expected {self._total.nbytes}"
            )
        np.add(self._total, np.frombuffer(message.words, dtype="<u8"), out=self._total)

    def _list_survivors(self, present: tuple[str, ...]) -> dict[str, bytes]:
        self._survivors = present
        return dict.fromkeys(present, encode(SurvivorList(*self._header(), present)))

    # Round 4

    def _take_agreement(self, message: Agreement) -> None:
        if message.survivors_hash != survivors_hash(self.parameters, self._survivors):
            raise ProtocolError(f"site {message.sender} agreed on different survivors than it was sent")

    def _list_agreements(self, present: tuple[str, ...]) -> dict[str, bytes]:
        agreements = tuple(self._answered[name] for name in present)
        return dict.fromkeys(present, encode(AgreementList(*self._header(), agreements)))

    # Round 5

    def _take_unmasking(self, message: Unmasking) -> None:
        alive = set(self._survivors)
        _check_names(message, "shares of seeds", message.seed_shares, alive)
        _check_names(message, "shares of keys", message.key_shares, set(self._deals) - alive)
        for kind, shares in (("seed", message.seed_shares), ("key", message.key_shares)):
            for dealer, share in shares.items():
                deal = self._deals[dealer]
                commitments = deal.seed_share_commitments if kind == "seed" else deal.key_share_commitments
                found = share_commitment(self.parameters, kind, dealer, message.sender, share)
                # Only the share that its dealer committed to counts.
                if found == commitments[message.sender]:
                    self._shares.setdefault(dealer, {})[message.sender] = share

    def _unmask(self, present: tuple[str, ...]) -> dict[str, bytes]:
        """Remove the masks; recover every secret first, so that a failure leaves the total unchanged."""
        survivors = set(self._survivors)
        seeds = {name: self._recover("seed", name) for name in self._survivors}
        secrets = {name: self._recover("key", name) for name in self._deals if name not in survivors}
        added, subtracted = self._leftover_masks(secrets)
        subtracted += [self_mask(seed, self.parameters, name) for name, seed in seeds.items()]
        apply_masks(self._total, added, subtracted)
        return {}

    def _recover(self, kind: str, dealer: str) -> bytes:
        roster = self.parameters.roster
        shares = self._shares.get(dealer, {})
        if len(shares) < roster.threshold:
            unsound = [name for name in self._answered if name not in shares]
            raise ProtocolError(
                f"the {kind} of site {dealer} cannot be recovered: got {len(shares)} valid shares, "
                f"{roster.threshold} are needed; invalid shares came from: {', '.join(unsound) or 'no site'}"
            )
        holders = roster.in_order(shares)[: roster.threshold]
        try:
            secret = shamir.combine({roster.points[holder]: shares[holder] for holder in holders})
        except ProtocolError:
            secret = b""
        if not (secret and self._is_committed(kind, dealer, secret)):
            raise ProtocolError(f"site {dealer} dealt shares of a different {kind} than it committed to")
        return secret

    def _is_committed(self, kind: str, dealer: str, secret: bytes) -> bool:
        if kind == "seed":
            return seed_commitment(secret, self.parameters, dealer) == self._deals[dealer].seed_commitment
        private = X25519PrivateKey.from_private_bytes(secret)
        return private.public_key().public_bytes_raw() == self._keys[dealer].mask_key

    def _leftover_masks(self, secrets: dict[str, bytes]) -> tuple[list[Keystream], list[Keystream]]:
        """Return the masks between survivors and lost sites, those to add and those to subtract."""
        added: list[Keystream] = []
        subtracted: list[Keystream] = []
        points = self.parameters.roster.points
        for lost, secret in secrets.items():
            private = X25519PrivateKey.from_private_bytes(secret)
            for name in self._survivors:
                shared = agree(private, self._keys[name].mask_key, name)
                mask = pairwise_mask(shared, self.parameters, name, lost)
                (subtracted if points[name] < points[lost] else added).append(mask)
        return added, subtracted


# For each round: the message that sites send, its handler, and the method that closes the round.
_ROUNDS: Final[tuple[tuple[type[Message], Callable[..., None], Callable[..., dict[str, bytes]]], ...]] = (
    (Advertisement, AggregatorSum._take_advertisement, AggregatorSum._list_keys),
    (SharedKeys, AggregatorSum._take_shared_keys, AggregatorSum._list_shares),
    (MaskedInput, AggregatorSum._take_masked_input, AggregatorSum._list_survivors),
    (Agreement, AggregatorSum._take_agreement, AggregatorSum._list_agreements),
    (Unmasking, AggregatorSum._take_unmasking, AggregatorSum._unmask),
)
_RELAYED: Final = (Advertisement, Agreement)


def _check_names(message: Message, what: str, given: dict[str, Any], wanted: set[str]) -> None:
    if set(given) != wanted:
        names = listed(set(given) ^ wanted)
        raise ProtocolError(
            f"site {message.sender} sent {what} for different sites than requested; the sets differ in: "
            f"{names}"
        )
