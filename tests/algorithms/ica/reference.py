"""The algorithms as they are printed: plain loops in float64, slow and easy to compare with the page.

Algorithm 4 departs from the page in two things, as the package does: its gradients are means of the subjects'
own means, so that scan lengths may differ, and the adjustment of the rate, left open there, is that of Baker
et al. 2018.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import expit


class Step(NamedTuple):
    """Where an iteration ends, and which safeguards spoke."""

    W: np.ndarray
    b: np.ndarray
    rate: float
    change: float
    events: tuple[str, ...]


class Rate:
    """The learning rate and its safeguards, rule by rule."""

    def __init__(self, rate):
        self.rate = rate
        self.turned = None

    def restart(self):
        self.rate *= 0.9
        self.turned = None

    def adjust(self, step):
        events = []
        if self.turned is None:
            self.turned = step
        elif angle(step, self.turned) > 60:
            self.rate *= 0.9
            self.turned = step
            events.append("turn")
        if np.sum(step**2) > 1e9:
            self.rate *= 0.8
            events.append("blow-up")
        return tuple(events)


def angle(first, second):
    """Degrees between two matrices taken as vectors."""
    cosine = np.sum(first * second) / (np.linalg.norm(first) * np.linalg.norm(second))
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


def point_gradients(x, W, b, clip_g, clip_h):
    """Lines 6 to 9 of Algorithm 4 for one time point."""
    z = W @ x + b
    y = 1 - 2 * expit(z)
    G = (np.eye(len(W)) + np.outer(y, z)) @ W
    G = G / max(1, np.linalg.norm(G) / clip_g)
    h = y / max(1, np.linalg.norm(y) / clip_h)
    return G, h


def mean_gradients(sites, W, b, clip_g, clip_h):
    """Mean over all subjects of all sites of each subject's mean over its own time points."""
    G, h, count = np.zeros_like(W), np.zeros_like(b), 0
    for site in sites:
        for subject in site:
            count += 1
            for x in subject:
                G_n, h_n = point_gradients(x, W, b, clip_g, clip_h)
                G += G_n / len(subject)
                h += h_n / len(subject)
    return G / count, h / count


def algorithm_4(sites, rate, n_iterations, clip_g=30.0, clip_h=30.0**0.5, tolerance=1e-6):
    """Yield every iteration of Algorithm 4 without noise, up to and including the one that stops it."""
    size = sites[0][0].shape[1]
    W, b, rho = np.eye(size), np.zeros(size), Rate(rate)
    for _ in range(n_iterations):
        G, h = mean_gradients(sites, W, b, clip_g, clip_h)
        step = rho.rate * G
        if np.abs(W + step).max() > 1e8:
            rho.restart()
            W, b = np.eye(size), np.zeros(size)
            yield Step(W, b, rho.rate, math.inf, ("restart",))
            continue
        W, b = W + step, b + rho.rate * h
        events = rho.adjust(step)
        change = float(np.sum(step**2))
        yield Step(W, b, rho.rate, change, events)
        if change < tolerance:
            return


def djica(sites, rate, n_passes, rng):
    """Yield every pass of djICA: each site its own block, gradients added up over the sites."""
    points = [np.concatenate(site) for site in sites]
    everything = np.concatenate(points)
    centre, covariance = everything.mean(axis=0), np.cov(everything.T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    sphering = 2 * vectors @ np.diag(values**-0.5) @ vectors.T
    points = [(site - centre) @ sphering for site in points]
    smallest = min(map(len, points))
    block = math.floor(math.sqrt(smallest / 20))
    size = len(sphering)
    W, b, rho = np.eye(size), np.zeros(size), Rate(rate)
    for _ in range(n_passes):
        orders = [rng.permutation(len(site)) for site in points]
        start = W
        for t in range(0, smallest - block + 1, block):
            G, h = np.zeros((size, size)), np.zeros(size)
            for site, order in zip(points, orders, strict=True):
                X = site[order[t : t + block]].T
                Z = W @ X + b[:, np.newaxis]
                Y = 1 - 2 * expit(Z)
                G += (block * np.eye(size) + Y @ Z.T) @ W
                h += Y.sum(axis=1)
            W, b = W + rho.rate * G, b + rho.rate * h
        events = rho.adjust(W - start)
        yield Step(W @ sphering, b, rho.rate, float(np.sum((W - start) ** 2)), events)


def clipped_moments(samples, clip):
    """Mean of x x' over samples, each shortened to ``clip``."""
    total = np.zeros((samples.shape[1],) * 2)
    for x in samples.astype(np.float64):
        shortened = x * min(1.0, clip / max(np.linalg.norm(x), 1e-300))
        total += np.outer(shortened, shortened)
    return total / max(len(samples), 1)
