"""A site's side of the secure sum, as a state machine without I/O: bytes in, bytes out.

Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", figure 4, with
its consistency check. U1 are the sites that advertised keys, U2 those that dealt shares, U3 those whose
masked input arrived (the survivors).

Guarantee against an active aggregator that colludes with up to S_C sites, given 2t > S + S_C: at most one sum
of honest inputs is ever revealed, and it includes *all* honest sites of one set U3 of at least t sites, the
set given by :attr:`SiteSum.survivors`.

- Shares are revealed only for a set U3 signed by t sites. A site signs one set, which contains itself, and
  two sets with t signatures each would require 2t <= S + S_C. So the set is the same for all, and no site is
  presented as lost to one site and as surviving to another: b_u or s_u is recovered, never both.
- No part of U3 can be split off either. The honest sites that signed share masks pairwise, since each has U3
  inside its U2. An honest site u of U3 that did not sign (say there are k such sites) used masks with all of
  its own U2 of at least t sites. U3 has at least t + k members, so at least 2t + k - S > S_C + k of them are
  in both sets. Beyond the S_C colluding sites and the k that did not sign, these include an honest signer,
  whose mask with u cancels only in their sum.

Without the agreement round the second statement fails: for S = 100, S_C = 33, t = 67, split views would
reveal the sum of two honest sites, which noise calibrated for 34 sites would not protect.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn, Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from capedjica.errors import InputError, ProtocolError
from capedjica.securesum import shamir
from capedjica.securesum.commitments import seed_commitment, share_commitment, survivors_hash
from capedjica.securesum.identity import Identity
from capedjica.securesum.masks import agree, apply_masks, derive_key, pairwise_mask, self_mask
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
    encode_payload,
    header,
    listed,
    read_aggregator_message,
    read_site_message,
    sign,
)
from capedjica.securesum.parameters import SumParameters, framed
from capedjica.securesum.stream import Keystream

# Each key seals one envelope, in one direction, in one attempt.
_NONCE: Final = bytes(12)


class BlockRegister(Protocol):
    """Persistent record of claimed blocks.

    A site claims (block, attempt) before it sends its first message. The secrets of a sum are kept in memory
    only, so a restarted site cannot continue a sum. A claim is granted only once, so the site cannot start
    the sum again with other keys and the same input.
    """

    def claim(self, study_hash: bytes, block: int, attempt: int) -> None:
        """Record (block, attempt) durably; raise ProtocolError unless it exceeds all earlier claims."""


class _Secrets:
    """The secrets of a site, in memory that is overwritten when it is no longer needed.

    Overwriting covers the bytes held here. It does not cover copies made by Python and its libraries: the
    integers of the secret sharing, immutable bytes passed to or returned by a cipher, OpenSSL's own
    buffers (which it clears itself), and pages that the operating system wrote to swap.
    """

    __slots__ = ("channel_secret", "mask_secret", "seed", "shares", "unseal")

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self.channel_secret = bytearray(random_bytes(32))
        self.mask_secret = bytearray(random_bytes(32))
        self.seed = bytearray(random_bytes(32))
        # dealer -> (share of the dealer's seed, share of its secret mask key)
        self.shares: dict[str, tuple[bytearray, bytearray]] = {}
        # peer -> key of the envelope that it seals for this site
        self.unseal: dict[str, bytearray] = {}

    def wipe_keys(self) -> None:
        """Overwrite everything except the shares, which are all that is needed after the masked input."""
        for secret in (self.channel_secret, self.mask_secret, self.seed, *self.unseal.values()):
            _overwrite(secret)
        self.unseal.clear()

    def wipe(self) -> None:
        """Overwrite all secrets."""
        self.wipe_keys()
        for pair in self.shares.values():
            for share in pair:
                _overwrite(share)
        self.shares.clear()

    def __repr__(self) -> str:
        return "<secrets>"


class SiteSum:
    """One site in one secure sum.

    The first message comes from :meth:`start`; after that, each message of the aggregator passed to
    :meth:`receive` yields the site's answer. Each round is answered once: repeating the last request returns
    the same bytes, and any other request for an answered round is refused. A refusal (ProtocolError) changes
    nothing, so the correct request can still follow.

    Parameters
    ----------
    parameters : SumParameters
        The public values, taken from the approved study, never from an aggregator's message.
    identity : Identity
        The site's signing key, the one pinned in the roster.
    name : str
        The site's name in the roster.
    vector : array of uint64
        The site's summand, drawn anew for every attempt: if it entered two sums with different survivors,
        their difference would reveal it. It is not copied and must not change until the masked input is made.
    register : BlockRegister
        Where (block, attempt) is claimed before the first message; shared by all runs of this identity.
    random_bytes : callable
        Source of all secrets; anything but the default is for test vectors only.
    """

    def __init__(
        self,
        parameters: SumParameters,
        identity: Identity,
        name: str,
        vector: NDArray[np.uint64],
        register: BlockRegister,
        *,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        _check_membership(parameters, identity, name)
        _check_vector(parameters, vector, name)
        self.parameters: Final = parameters
        self.name: Final = name
        self._identity = identity
        self._vector: NDArray[np.uint64] | None = vector
        self._register = register
        self._random_bytes = random_bytes
        self._secrets: _Secrets | None = None
        self._keys: dict[str, Advertisement] = {}
        self._dealers: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()
        self._round = 0
        self._answered = b""
        self._answer = b""
        # Two threads, or the two halves of a fork, must not answer the same round differently.
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def done(self) -> bool:
        """Whether the site has given all its answers; its secrets are then overwritten."""
        return self._round == len(_REQUESTS) + 1

    @property
    def survivors(self) -> tuple[str, ...]:
        """The sites in the sum, in roster order, as agreed by t of them."""
        if not self.done:
            raise ProtocolError(f"site {self.name}: the survivors are not agreed on yet")
        return self._survivors

    def start(self) -> bytes:
        """Claim (block, attempt), generate keys and return the signed advertisement."""
        with self._lock:
            self._check_process()
            if self._round == 1 and self._secrets is not None:
                return self._answer
            if self._round != 0:
                raise ProtocolError(f"site {self.name} already started this sum")
            p = self.parameters
            self._register.claim(p.study_hash, p.block, p.attempt)
            self._secrets = _Secrets(self._random_bytes)
            self._commit(b"", self._advertise(self._secrets))
            return self._answer

    def receive(self, data: bytes) -> bytes:
        """Return the answer to a message of the aggregator, or raise ProtocolError and change nothing."""
        with self._lock:
            self._check_process()
            digest = hashlib.sha256(data).digest()
            if digest == self._answered:
                return self._answer
            if self._secrets is None or not 1 <= self._round <= len(_REQUESTS):
                raise ProtocolError(f"site {self.name} expects no message: its sum is not running")
            expected, answer = _REQUESTS[self._round - 1]
            message = read_aggregator_message(data, self.parameters, expected)
            self._commit(digest, answer(self, message, self._secrets))
            self._drop_what_was_used(self._secrets)
            return self._answer

    def wipe(self) -> None:
        """Overwrite the secrets and leave the sum; the site then answers nothing, not even a repeat."""
        with self._lock:
            self._forget()
            self._answered = self._answer = b""
            if not self.done:
                self._round = _LEFT

    def __repr__(self) -> str:
        p = self.parameters
        return f"SiteSum({self.name}, block {p.block}, attempt {p.attempt}, round {self._round})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a site's sum cannot be pickled or copied: two copies could answer differently")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ProtocolError(f"site {self.name}: only the process that started a sum can continue it")

    def _commit(self, request: bytes, answer: bytes) -> None:
        # The round first: if interrupted here, the answer is lost, but no second one can be given.
        self._round += 1
        self._answered, self._answer = request, answer

    def _drop_what_was_used(self, secret: _Secrets) -> None:
        """Overwrite used secrets, after the round is committed so that an interruption cannot repeat it."""
        if self._round == _MASKED:
            secret.wipe_keys()
            self._vector = None
        elif self.done:
            self._forget()

    def _forget(self) -> None:
        if self._secrets is not None:
            self._secrets.wipe()
        self._secrets, self._vector = None, None

    def _sign(self, message: Message) -> bytes:
        return sign(encode_payload(message), self._identity)

    def _header(self) -> tuple[int, bytes, bytes, int, int, str]:
        return header(self.parameters, self.name)

    # Round 1

    def _advertise(self, secret: _Secrets) -> bytes:
        return self._sign(
            Advertisement(*self._header(), _public(secret.channel_secret), _public(secret.mask_secret))
        )

    # Round 2

    def _share_keys(self, request: KeyList, secret: _Secrets) -> bytes:
        keys = self._read_keys(request)
        points = [self.parameters.roster.points[name] for name in keys]
        threshold = self.parameters.roster.threshold
        seed_shares = shamir.split(secret.seed, threshold, points, self._random_bytes)
        key_shares = shamir.split(secret.mask_secret, threshold, points, self._random_bytes)
        shares = {
            name: (bytearray(seed_shares[point]), bytearray(key_shares[point]))
            for name, point in zip(keys, points, strict=True)
        }
        envelopes, unseal = self._seal(keys, shares, secret)
        answer = self._sign(self._shared_keys(envelopes, shares, secret))
        self._keys = keys
        secret.shares[self.name] = shares[self.name]
        secret.unseal = unseal
        return answer

    def _read_keys(self, request: KeyList) -> dict[str, Advertisement]:
        """Return the advertisements of U1 in roster order, after checking signatures and distinct keys."""
        keys: dict[str, Advertisement] = {}
        for data in request.advertisements:
            message = read_site_message(data, self.parameters, Advertisement)
            if message.sender in keys:
                raise ProtocolError(f"the keys of site {message.sender} are listed twice")
            if message.sender == self.name and data != self._answer:
                raise ProtocolError(f"the keys listed for site {self.name} are not those it advertised")
            keys[message.sender] = message
        self._check_group("advertised keys", keys)
        check_distinct_keys(keys)
        return {name: keys[name] for name in self.parameters.roster.in_order(keys)}

    def _seal(
        self,
        keys: Mapping[str, Advertisement],
        shares: Mapping[str, tuple[bytearray, bytearray]],
        secret: _Secrets,
    ) -> tuple[dict[str, bytes], dict[str, bytearray]]:
        """Encrypt each peer's two shares for it, and derive the keys of the envelopes from the peers."""
        private = X25519PrivateKey.from_private_bytes(secret.channel_secret)
        envelopes, unseal = {}, {}
        for peer in keys:
            if peer != self.name:
                shared = agree(private, keys[peer].channel_key, peer)
                key = derive_key(shared, "envelope", self.parameters, self.name, peer)
                aad = _associated_data(self.parameters, self.name, peer)
                envelopes[peer] = AESGCM(key).encrypt(_NONCE, b"".join(shares[peer]), aad)
                unseal[peer] = bytearray(derive_key(shared, "envelope", self.parameters, peer, self.name))
        return envelopes, unseal

    def _shared_keys(
        self,
        envelopes: dict[str, bytes],
        shares: Mapping[str, tuple[bytearray, bytearray]],
        secret: _Secrets,
    ) -> SharedKeys:
        p = self.parameters
        return SharedKeys(
            *self._header(),
            seed_commitment(secret.seed, p, self.name),
            envelopes,
            {
                holder: share_commitment(p, "seed", self.name, holder, pair[0])
                for holder, pair in shares.items()
            },
            {
                holder: share_commitment(p, "key", self.name, holder, pair[1])
                for holder, pair in shares.items()
            },
        )

    # Round 3

    def _mask_input(self, request: ShareList, secret: _Secrets) -> bytes:
        dealers = self._check_group("dealt shares", {*request.envelopes, self.name}, within=self._keys)
        if self.name in request.envelopes:
            raise ProtocolError(f"site {self.name} was sent shares that it dealt itself")
        shares = {dealer: self._open(dealer, sealed, secret) for dealer, sealed in request.envelopes.items()}
        answer = sign(self._masked_input(dealers, secret), self._identity)
        self._dealers = dealers
        secret.shares.update(shares)
        return answer

    def _open(self, dealer: str, envelope: bytes, secret: _Secrets) -> tuple[bytearray, bytearray]:
        aad = _associated_data(self.parameters, dealer, self.name)
        try:
            plain = AESGCM(secret.unseal[dealer]).decrypt(_NONCE, envelope, aad)
        except InvalidTag:
            raise ProtocolError(
                f"the shares of site {dealer} for site {self.name} do not open; they were altered"
            ) from None
        return bytearray(plain[: shamir.SHARE_BYTES]), bytearray(plain[shamir.SHARE_BYTES :])

    def _masked_input(self, dealers: Iterable[str], secret: _Secrets) -> bytearray:
        """Return the encoded masked input; the array is released before the signed copy is made."""
        assert self._vector is not None, "the vector is kept until it was masked"
        private = X25519PrivateKey.from_private_bytes(secret.mask_secret)
        added = [self_mask(secret.seed, self.parameters, self.name)]
        subtracted: list[Keystream] = []
        points = self.parameters.roster.points
        for peer in dealers:
            if peer != self.name:
                shared = agree(private, self._keys[peer].mask_key, peer)
                signed = added if points[self.name] < points[peer] else subtracted
                signed.append(pairwise_mask(shared, self.parameters, self.name, peer))
        masked = np.array(self._vector, dtype="<u8", order="C")
        apply_masks(masked, added, subtracted)
        return encode_payload(MaskedInput(*self._header(), masked.data.cast("B")))

    # Round 4

    def _agree(self, request: SurvivorList, secret: _Secrets) -> bytes:
        if len(set(request.survivors)) != len(request.survivors):
            raise ProtocolError("the list of survivors names a site twice")
        survivors = self._check_group("sent a masked input", request.survivors, within=self._dealers)
        answer = self._sign(Agreement(*self._header(), survivors_hash(self.parameters, survivors)))
        self._survivors = survivors
        return answer

    # Round 5

    def _unmask(self, request: AgreementList, secret: _Secrets) -> bytes:
        self._check_agreements(request)
        alive = set(self._survivors)
        return self._sign(
            Unmasking(
                *self._header(),
                {name: bytes(secret.shares[name][0]) for name in self._dealers if name in alive},
                {name: bytes(secret.shares[name][1]) for name in self._dealers if name not in alive},
            )
        )

    def _check_agreements(self, request: AgreementList) -> None:
        """Refuse unless t survivors signed exactly the set that this site signed."""
        agreed = survivors_hash(self.parameters, self._survivors)
        signers = set()
        for data in request.agreements:
            message = read_site_message(data, self.parameters, Agreement)
            # defence: agreement-on-survivors
            if message.survivors_hash != agreed:
                raise ProtocolError(
                    f"sites {self.name} and {message.sender} were told of different survivors: "
                    "nothing is unmasked"
                )
            if message.sender in signers:
                raise ProtocolError(f"the agreement of site {message.sender} is listed twice")
            signers.add(message.sender)
        # defence: dead-and-alive
        self._check_group("agreed on the survivors", signers, within=self._survivors)

    def _check_group(
        self, what: str, names: Iterable[str], within: Iterable[str] | None = None
    ) -> tuple[str, ...]:
        """Return ``names`` in roster order; refuse fewer than t, any outside ``within``, or without self."""
        group = self.parameters.roster.in_order(names)
        if within is not None and (strangers := set(names) - set(within)):
            raise ProtocolError(
                f"site {self.name} cannot accept that {listed(strangers)} {what}: not in the previous round"
            )
        if self.name not in group:
            raise ProtocolError(f"site {self.name} is not among the sites listed as having {what}: excluded")
        # defence: enough-agreements-end-to-end
        if len(group) < self.parameters.roster.threshold:
            raise ProtocolError(
                f"only {len(group)} sites {what}, {self.parameters.roster.threshold} are needed: "
                f"site {self.name} stops here"
            )
        return group


# The expected message of each round after the first, and its handler.
_REQUESTS: Final[tuple[tuple[type[Message], Callable[..., bytes]], ...]] = (
    (KeyList, SiteSum._share_keys),
    (ShareList, SiteSum._mask_input),
    (SurvivorList, SiteSum._agree),
    (AgreementList, SiteSum._unmask),
)
# Values of the round counter: masked input sent; sum abandoned.
_MASKED: Final = 3
_LEFT: Final = -1


def _overwrite(secret: bytearray) -> None:
    secret[:] = bytes(len(secret))


def _public(secret: bytearray) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _associated_data(parameters: SumParameters, sender: str, receiver: str) -> bytes:
    return framed(b"share keys", parameters.context, sender.encode(), receiver.encode())


def _check_membership(parameters: SumParameters, identity: Identity, name: str) -> None:
    pinned = {site.name: site.public_key for site in parameters.roster.sites}
    if name not in pinned:
        raise InputError(f"site {name!r} is not in the roster: {', '.join(pinned)}")
    if pinned[name] != identity.public_key:
        raise InputError(f"the identity of site {name} is not the one pinned in the roster")


def _check_vector(parameters: SumParameters, vector: NDArray[np.uint64], name: str) -> None:
    if vector.dtype != np.uint64 or vector.shape != (parameters.length,):
        raise InputError(
            f"site {name}: the vector to be summed must have {parameters.length} words of type uint64, "
            f"got shape {vector.shape} of type {vector.dtype}"
        )
