"""The roots are those of SciPy to the last bit, also of functions with kinks, steep walls and flat ends."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from capedjica.privacy import gaussian
from capedjica.privacy.root import SMALLEST_RTOL, root

FUNCTIONS = [
    lambda x: x**3 - 2,
    lambda x: math.exp(-x) - 1e-9,
    lambda x: math.atan(50 * (x - 0.3)),
    lambda x: max(x - 1, 10 * (x - 1)) + 1e-3,
    lambda x: -1.0 if x < 0.25 else 1.0,
    lambda x: (x - 0.7) ** 9,
    lambda x: 1e-200 * (x - 0.1) ** 3,
    lambda x: 1e200 * math.sinh(x - 0.9),
    lambda x: x,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("ends", [(-30.0, 30.0), (-1.0, 40.0), (0.0, 40.0)])
@pytest.mark.parametrize("xtol", [1e-300, 1e-12])
def test_the_root_is_that_of_scipy(function, ends, xtol):
    low, high = ends
    if function(low) * function(high) > 0:
        with pytest.raises(ValueError, match="no root between"):
            root(function, low, high, xtol)
        return
    expected = brentq(function, low, high, xtol=xtol, rtol=SMALLEST_RTOL, maxiter=500)
    assert root(function, low, high, xtol) == expected


def test_guarantees_are_those_with_the_root_of_scipy(monkeypatch):
    rng = np.random.default_rng(0)
    cases = [(10 ** rng.uniform(-4, 3), 10 ** rng.uniform(-200, -0.1)) for _ in range(500)]

    def both():
        return [(gaussian.gaussian_mu(*case), gaussian.gaussian_epsilon(*case)) for case in cases]

    found = both()
    steps = {"xtol": 1e-300, "rtol": SMALLEST_RTOL, "maxiter": 500}
    monkeypatch.setattr(
        gaussian, "root", lambda function, low, high, xtol: brentq(function, low, high, **steps)
    )
    assert both() == found


def test_a_function_without_a_value_has_no_root():
    with pytest.raises(ValueError, match="no root between 0 and 1"):
        root(lambda _: math.nan, 0.0, 1.0, 1e-12)
