"""The helpers in front of a C++ kernel: those that it uses, for the types that it has."""

from __future__ import annotations

import pytest

from litz.targets.cpp.prelude import prelude


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("const float x = tanh(y);", {"float"}),
        ("const double x = atan2(y, z);", {"double"}),
        ("const float x = power(y, z);", {"float"}),
        ("const double x = tanh((double)(float)y);", {"float", "double"}),
        ("const float x = erfinv(y);", {"float", "double"}),
        ("const double x = random_normal(y, z);", {"float", "double"}),
        ("auto x = tanh(y);", {"float", "double"}),
    ],
)
def test_one_result_is_made_for_the_types_that_there_are(text: str, types: set[str]) -> None:
    """Also of a helper in between, which computes in a type of its own; each takes time to build."""
    made = prelude(text)
    assert {type_ for type_ in ("float", "double") if f"LOCAL {type_} one_" in made} == types
    assert ("LOCAL Half_float" in made, "LOCAL Wide_double" in made) == ("float" in types, "double" in types)
