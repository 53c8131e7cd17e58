"""Half values that several operations read are rounded where they are computed."""

from __future__ import annotations

import pytest
import torch

from core.schedule.harness import passed

PROGRAM = """program graph0
  input x: {dtype} [64] cpu
  loop op0 [i0<64] cpu
    v0: {dtype} = load x[i0]
    v1: {dtype} = {op}
    store product[i0] = v1  # {dtype} [64]
  loop op1 [i0<64] cpu
    v0: {dtype} = load product[i0]
    v1: {dtype} = exp v0
    store first[i0] = v1  # {dtype} [64]
  loop op2 [i0<64] cpu
    v0: {dtype} = load {second}[i0]
    v1: {dtype} = neg v0
    store out[i0] = v1  # {dtype} [64]
  return {returned}
"""


def made(second: str = "product", returned: str = "out[64]", op: str = "mul v0, v0", dtype: str = "bf16") -> str:
    return passed("round_shared", PROGRAM.format(second=second, returned=returned, op=op, dtype=dtype))


@pytest.mark.parametrize(("second", "returned"), [("product", "out[64], first[64]"), ("first", "out[64], product[64]")])
def test_what_two_see_is_rounded(second: str, returned: str) -> None:
    """Two operations, or an operation and whoever gets the result."""
    text = made(second, returned)
    assert "v2: bf16 = cast v1\n    store product[i0] = v2" in text and text.count("cast") == 1


def test_what_one_sees_is_as_it_was_computed() -> None:
    assert "cast" not in made("first")


def test_what_memory_holds_anyway_is_not_rounded() -> None:
    for text in (made(dtype="f32", returned="out[64], first[64]"), made(op="load x[63 - i0]", returned="out[64]")):
        assert "cast" not in text


def test_what_two_see_once_inlining_is_done_is_rounded() -> None:
    """A cast alone reads the maxima, and each reader of the cast makes its own: one in the kernel of the maxima."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        most = (x * 1.37).amax(1).float()
        return most * 2, most.max()

    x = torch.randn(64, 300, generator=torch.Generator().manual_seed(1)).bfloat16()
    doubled, most = torch.compile(f, backend="litz")(x)
    assert doubled.max() == 2 * most
