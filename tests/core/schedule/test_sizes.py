"""Which of the sizes that were compiled for a call belongs to."""

import math

import pytest
import sympy

from litz.schedule.sizes import SizeGrid

S0, S1 = sympy.symbols("s0 s1", integer=True, positive=True)
LINE = SizeGrid(((S0, (16, 64, 512)),))
PLANE = SizeGrid(((S0, (8, 32)), (S1, (1, 100, 1000))))


@pytest.mark.parametrize(
    ("size", "number"), [(1, 0), (16, 0), (32, 0), (33, 1), (64, 1), (181, 1), (182, 2), (9999, 2)]
)
def test_a_call_belongs_to_the_nearest_by_ratio(size: int, number: int) -> None:
    assert LINE.number({S0: size}) == number


def test_that_is_the_nearest_on_a_logarithmic_scale_along_each_size() -> None:
    for a in (2, 9, 15, 17, 40):
        for b in (3, 11, 99, 310, 320, 5000):
            distances = [sum(math.log(v / p[s]) ** 2 for s, v in {S0: a, S1: b}.items()) for p in PLANE.points]
            assert PLANE.number({S0: a, S1: b}) == distances.index(min(distances))


def test_every_point_is_its_own() -> None:
    assert [PLANE.number(point) for point in PLANE.points] == list(range(PLANE.count)) == list(range(6))


def test_words() -> None:
    assert [LINE.where([n]) for n in range(3)] == ["s0 <= 32", "32 < s0 <= 181", "181 < s0"]
    assert LINE.where([0, 1]) == "s0 <= 181" and LINE.where([0, 2]) == "s0 <= 32 or 181 < s0"
    assert PLANE.where([1, 5]) == "s0 <= 16 and 10 < s1 <= 316 or 16 < s0 and 316 < s1"
    assert PLANE.at(5) == "s0 = 32 and s1 = 1000"
