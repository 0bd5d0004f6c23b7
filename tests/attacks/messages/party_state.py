"""Everything a party of a secure sum remembers, as one hash: to see that a refusal changed nothing."""

import hashlib


def digest(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def site_state(site):
    held = site._secrets
    secrets = [(name, getattr(held, name)) for name in held.__slots__] if held else None
    vector = None if site._vector is None else site._vector.tobytes()
    return digest(
        repr(site), secrets, vector, site._keys, site._dealers, site._survivors, site._answered, site._answer
    )


def aggregator_state(aggregator):
    return digest(
        repr(aggregator),
        aggregator._expected,
        aggregator._total.tobytes(),
        [sorted(held) for held in (aggregator._keys, aggregator._deals, aggregator._answered)],
        aggregator._survivors,
        aggregator._shares,
    )
