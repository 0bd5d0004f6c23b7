"""What is taken for a template, and what is not."""

import numpy as np
import pytest

from capedjica.algorithms.ica.template import Template
from capedjica.errors import InputError

MAPS = np.eye(3, 8) * 5 - 0.5


def test_maps_are_scaled_and_keep_order_and_sign():
    template = Template.of(-MAPS, ["a", "b", "c"])
    np.testing.assert_allclose(template.maps, -MAPS / 4.5)
    assert template.names == ("a", "b", "c")
    assert (template.n_networks, template.n_features) == (3, 8)
    assert Template.of(MAPS).names == ("network 1", "network 2", "network 3")


@pytest.mark.parametrize(
    ("maps", "names", "message"),
    [
        (MAPS[:1], None, "at least two maps"),
        (MAPS[0], None, "at least two maps"),
        ([["a"]], None, "an array of real numbers"),
        (MAPS.T, None, "8 networks; expected at most 3"),
        (np.where(np.eye(3, 8) > 0, np.nan, MAPS), None, "map 1 contains NaN"),
        (MAPS * np.array([[1], [0], [1]]), None, "map 2 is zero everywhere"),
        (np.vstack([MAPS, MAPS[0] + MAPS[1]]), None, "collinear"),
        (MAPS[[0, 1, 1]], ["a", "b", "c"], "collinear .* in particular '[bc]' and '[bc]'"),
        (MAPS, ["a", "b"], "3 networks, but 2 names"),
        (MAPS, ["a", "b", "a"], "two networks have the name 'a'"),
        (MAPS, ["a", "b", " "], "1 to 80 printable"),
        (MAPS, ["a", "b", "x" * 81], "1 to 80 printable"),
        (MAPS, ["a", "b", "\x1b[2J"], "1 to 80 printable"),
    ],
)
def test_what_is_no_template_is_refused(maps, names, message):
    with pytest.raises(InputError, match=message):
        Template.of(maps, names)
