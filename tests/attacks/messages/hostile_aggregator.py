"""An aggregator that lies, with sites that collude, against real honest sites.

It knows all messages, holds the keys of the colluding sites, says anything to anyone in any order, and keeps
count of what it has learnt; it decrypts nothing that the count does not need.
"""

from __future__ import annotations

from collections import defaultdict

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from capedjica.errors import ProtocolError
from capedjica.securesum.commitments import survivors_hash
from capedjica.securesum.identity import AGGREGATOR, SIGNATURE_BYTES
from capedjica.securesum.masks import agree, derive_key
from capedjica.securesum.messages import (
    Advertisement,
    Agreement,
    AgreementList,
    KeyList,
    MaskedInput,
    SharedKeys,
    ShareList,
    SurvivorList,
    Unmasking,
    _aggregator_decoder,
    _site_decoder,
    encode,
    encode_payload,
    header,
    read_site_message,
    sign,
)
from capedjica.securesum.site import _NONCE, _associated_data


class Attempt:
    """What was seen in one (block, attempt)."""

    def __init__(self):
        self.advertisements = {}
        self.envelopes = defaultdict(dict)  # receiver -> dealer -> envelope
        self.dealers = {}  # honest site -> U2 as it accepted it
        self.agreements = defaultdict(dict)  # set of survivors -> signer -> signed message
        self.unmasked_for = {}  # honest site -> set of survivors it gave shares for
        self.seed_holders = defaultdict(set)  # honest site u -> whose shares of b_u are known
        self.key_holders = defaultdict(set)  # honest site u -> whose shares of s_u are known


class HostileAggregator:
    """The adversary; `random` decides every lie."""

    def __init__(self, consortium, colluders, random):
        self.consortium = consortium
        self.random = random
        self.colluders = tuple(colluders)
        self.honest = tuple(name for name in consortium.names if name not in self.colluders)
        self.pool = []
        self.refusals = 0
        self.begin()

    @property
    def parameters(self):
        return self.consortium.parameters

    @property
    def everyone(self):
        return self.consortium.names

    def begin(self):
        """Start an attempt with fresh honest sites, and keys for the colluders."""
        self.attempt = Attempt()
        self.sites = {name: self.consortium.site(name) for name in self.honest}
        self.channel = {name: X25519PrivateKey.generate() for name in self.colluders}
        for name, site in self.sites.items():
            self.attempt.advertisements[name] = site.start()
        for name, key in self.channel.items():
            keys = (key, X25519PrivateKey.generate())
            public = (k.public_key().public_bytes_raw() for k in keys)
            self.attempt.advertisements[name] = self.signed(name, Advertisement, *public)

    def signed(self, colluder, kind, *fields):
        message = kind(*header(self.parameters, colluder), *fields)
        return sign(encode_payload(message), self.consortium.identities[colluder])

    def request(self, kind, field):
        return encode(kind(*header(self.parameters, AGGREGATOR), field))

    def tell(self, name, data):
        """Say something to an honest site, and note what its answer gives away."""
        self.pool.append(data)
        before = repr(self.sites[name])
        try:
            answer = self.sites[name].receive(data)
        except ProtocolError:
            self.refusals += 1
            return
        self.pool.append(answer)
        if repr(self.sites[name]) != before:
            self.note(name, data, _site_decoder.decode(answer[:-SIGNATURE_BYTES]), answer)

    def note(self, name, request, message, answer):
        seen = self.attempt
        if isinstance(message, SharedKeys):
            for receiver, envelope in message.envelopes.items():
                seen.envelopes[receiver][name] = envelope
            known = self.parameters.roster.in_order(set(message.envelopes) & set(self.colluders))
            seen.seed_holders[name].update(known)
            seen.key_holders[name].update(known)
        elif isinstance(message, MaskedInput):
            seen.dealers[name] = {name, *_aggregator_decoder.decode(request).envelopes}
        elif isinstance(message, Agreement):
            view = self.parameters.roster.in_order(_aggregator_decoder.decode(request).survivors)
            seen.agreements[view][name] = answer
        elif isinstance(message, Unmasking):
            seen.unmasked_for[name] = self.parameters.roster.in_order(message.seed_shares)
            for dealer in message.seed_shares:
                seen.seed_holders[dealer].add(name)
            for dealer in message.key_shares:
                seen.key_holders[dealer].add(name)

    # The rounds, each with whatever view the adversary likes

    def list_keys(self, name, view):
        advertisements = tuple(self.attempt.advertisements[peer] for peer in view)
        self.tell(name, self.request(KeyList, advertisements))

    def seal(self, colluder, receiver):
        """What a colluder deals to an honest site: shares of nothing, properly sealed."""
        key = read_site_message(
            self.attempt.advertisements[receiver], self.parameters, Advertisement
        ).channel_key
        shared = agree(self.channel[colluder], key, receiver)
        cipher = AESGCM(derive_key(shared, "envelope", self.parameters, colluder, receiver))
        return cipher.encrypt(_NONCE, bytes(66), _associated_data(self.parameters, colluder, receiver))

    def list_shares(self, name, view):
        dealt = self.attempt.envelopes[name]
        envelopes = {
            peer: self.seal(peer, name) if peer in self.colluders else dealt[peer]
            for peer in view
            if peer != name and (peer in self.colluders or peer in dealt)
        }
        self.tell(name, self.request(ShareList, envelopes))

    def list_survivors(self, name, view):
        self.tell(name, self.request(SurvivorList, self.parameters.roster.in_order(view)))

    def list_agreements(self, name, view):
        view = self.parameters.roster.in_order(view)
        agreed = survivors_hash(self.parameters, view)
        signed = self.attempt.agreements[view] | {
            peer: self.signed(peer, Agreement, agreed) for peer in self.colluders
        }
        self.tell(name, self.request(AgreementList, tuple(signed.values())))

    def mix_agreements(self, name):
        """Hand a site what others of its survivors signed, whatever set it was that they signed."""
        seen = self.attempt.agreements
        own = next((view for view, signers in seen.items() if name in signers), ())
        signed = {peer: data for signers in seen.values() for peer, data in signers.items() if peer in own}
        agreed = survivors_hash(self.parameters, own)
        signed |= {peer: self.signed(peer, Agreement, agreed) for peer in self.colluders if peer in own}
        self.tell(name, self.request(AgreementList, tuple(signed.values())))

    # Mischief between the rounds

    def disturb(self):
        """Replay, alter or misdirect anything ever said; invent bytes; restart a site."""
        name, move = self.random.choice(self.honest), self.random.randrange(4)
        if move == 0 and self.pool:
            self.tell(name, self.random.choice(self.pool))
        elif move == 1 and self.pool:
            data = bytearray(self.random.choice(self.pool))
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            self.tell(name, bytes(data))
        elif move == 2:
            self.restart(name)
        else:
            self.tell(name, self.random.randbytes(self.random.randrange(1, 200)))

    def restart(self, name):
        """A restarted site must not begin the same attempt again; were it to, the adversary would use it."""
        again = self.consortium.site(name)
        try:
            self.attempt.advertisements[name] = again.start()
        except ProtocolError:
            return
        self.sites[name] = again

    # What has been learnt

    def both_recovered(self):
        """Honest sites of which t shares of b_u and t shares of s_u are known."""
        t, seen = self.consortium.threshold, self.attempt
        return [
            name
            for name in self.honest
            if len(seen.seed_holders[name]) >= t and len(seen.key_holders[name]) >= t
        ]

    def exposed_sums(self):
        """The sets of honest sites whose sum of inputs can be computed.

        Sites are joined where a pairwise mask is unknown: neither s_u nor s_v recovered, neither colluding. A
        joined group is exposed when each of its b_u is recovered and each mask was applied at both ends.
        """
        t, seen = self.consortium.threshold, self.attempt
        masked = [name for name in self.honest if name in seen.dealers]
        known_key = {name for name in self.honest if len(seen.key_holders[name]) >= t}
        known_seed = {name for name in self.honest if len(seen.seed_holders[name]) >= t}
        linked = {u: {v for v in seen.dealers[u] if v in self.honest and v != u} - known_key for u in masked}
        linked = {u: set() if u in known_key else peers for u, peers in linked.items()}
        exposed = []
        for group in components(masked, linked):
            whole = all(v in linked and u in linked[v] for u in group for v in linked[u])
            if whole and group <= known_seed:
                exposed.append(group)
        return exposed


def components(nodes, linked):
    groups, left = [], set(nodes)
    while left:
        group, frontier = set(), {left.pop()}
        while frontier:
            node = frontier.pop()
            group.add(node)
            near = {v for v in nodes if v in linked[node] or node in linked[v]}
            frontier |= near - group
        left -= group
        groups.append(group)
    return groups
