"""A small world to test releases in: sites with data, and everything within reach."""

from __future__ import annotations

import msgspec
import numpy as np

from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import Query, Stage
from capedjica.mechanisms.messages import VERSION, Hello, encode, question_hash
from capedjica.mechanisms.messages import _replies as replies_decoder
from capedjica.securesum.identity import SIGNATURE_BYTES

NONCE = bytes(16)


def hello(contract, published=b"", aborted=(), head=b"", version=VERSION):
    """The bytes of a greeting."""
    return encode(Hello(version, contract.hash, published, list(aborted), head, NONCE))


def reply(data):
    """What is in a signed reply, whoever signed it."""
    return replies_decoder.decode(data[SIGNATURE_BYTES:])


def parts(letter):
    """What a letter is made of: the kind of its message, and its fields."""
    start = 0 if letter.direction == "question" else SIGNATURE_BYTES
    return msgspec.msgpack.decode(letter.data[start:])


class Liar:
    """A site that changes its replies of one kind before it signs them."""

    def __init__(self, site, kind, change):
        self.site, self.kind, self.change = site, kind, change

    def handle(self, data):
        honest = self.site.handle(data)
        said = reply(honest)
        if type(said).__name__ != self.kind:
            return honest
        return self.site.sign(question_hash(data), self.change(said))

    def __getattr__(self, name):
        return getattr(self.site, name)


def clipped_mean(data, clip=1.0, weights=None):
    """The mean a trusted party would compute: rows clipped, broken rows zero, sites weighted."""
    means, sizes = [], []
    for rows in data.values():
        values = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        means.append((values * np.minimum(1, clip / np.maximum(norms, 1e-300))).mean(axis=0))
        sizes.append(len(rows))
    weights = np.array(sizes) / sum(sizes) if weights is None else np.asarray(weights)
    return weights @ np.array(means)


def make_data(sizes, size, seed=0, length=2.0):
    """Rows of random direction whose norms lie around ``length`` times the clip of 1."""
    rng = np.random.default_rng(seed)
    data = {}
    for number, count in enumerate(sizes):
        rows = rng.standard_normal((count, size))
        rows *= length * rng.random((count, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
        data[f"s{number}"] = rows
    return data


def make_study(data, *, count=1, epsilon=1.0, mechanism="cape", **options):
    """An embedded study that asks ``count`` times for the mean of the rows."""
    size = next(iter(data.values())).shape[1]
    terms = {name: options.pop(name) for name in ("masking", "n_colluding", "reserve") if name in options}
    return EmbeddedStudy(
        "test",
        {name: len(rows) for name, rows in data.items()},
        {name: (lambda stage, published, state, rows=rows: [rows]) for name, rows in data.items()},
        [Stage(Query("mean", size, 1.0), count)],
        in_process(epsilon=None if mechanism == "none" else epsilon, mechanism=mechanism, **terms),
        **options,
    )
