"""Symbols that the wrapper solves for."""

from __future__ import annotations

import sympy

from litz.codegen.wrapper.inputs import _solve


def test_a_symbol_among_factors() -> None:
    """A stride s0*s1*s2 with s0 and s1 known. (Found by litz_testing.fuzz.)"""
    s0, s1, s2 = sympy.symbols("s0 s1 s2", integer=True, positive=True)
    ((symbol, text),) = _solve(s0**2 * s1 * s2, "stride", {s0, s1})
    assert symbol == s2
    assert eval(text, {"stride": 5 * 5 * 3 * 7, "s0": 5, "s1": 3}) == 7
