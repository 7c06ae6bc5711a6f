from math import inf, nan

import pytest

from contracts.config import convert
from contracts.errors import ConfigError
from contracts.ranges import Count, CountOrZero, Rate, Seed, Share, ShareBelowOne, Weight


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (Count, [1, 4096], [0, -1, 10**12]),
        (CountOrZero, [0, 7], [-1]),
        (Rate, [1e-9, 1.0], [0.0, -1.0, nan, inf]),
        (Share, [0.0, 1.0], [-0.1, 1.1, nan]),
        (ShareBelowOne, [0.0, 0.99], [1.0, nan]),
        (Weight, [0.0, 2.0], [-1.0, nan, inf]),
        (Seed, [0, 2**63 - 1], [-1, 2**63, 2**70]),
    ],
)
def test_numbers_are_held_to_their_range(kind: type, inside: list, outside: list) -> None:
    for number in inside:
        assert convert(number, kind, source="file") == number
    for number in outside:
        with pytest.raises(ConfigError, match="file: expected"):
            convert(number, kind, source="file")
