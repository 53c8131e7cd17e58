"""What torch does with float8, moves and conversions, becomes Loops; what it does not, stays a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.ir import Loop
from litz.lower import lower
from litz.target import target_of
from support.float8 import every_byte
from support.own_plugins import operators

from . import harness
from .harness import capture

program_of = partial(harness.program_of, plugins=operators())

E4M3, E5M2, POWERS = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
AT = torch.tensor([3, 0, 3])

MOVES: dict[str, Callable[..., Any]] = {
    "to float32": lambda x, y: x.to(torch.float32) * 2,
    "to bfloat16": lambda x, y: x.to(torch.bfloat16) + 1,
    "to half and back": lambda x, y: x.half().to(E5M2),
    "to the other": lambda x, y: x.to(E5M2),
    "to integers": lambda x, y: x.to(torch.int32),
    "quantised": lambda x, y: (y * 3).clamp(-448, 448).to(x.dtype),
    "transposed": lambda x, y: x.t().contiguous(),
    "cloned": lambda x, y: x.clone(),
    "joined": lambda x, y: torch.cat([x, y.to(x.dtype), x[1:]]),
    "stacked": lambda x, y: torch.stack([x, x]),
    "padded": lambda x, y: F.pad(x, (1, 2)),
    "padded with a number": lambda x, y: F.pad(x, (1, 2), value=0.3),
    "rolled": lambda x, y: x.roll(1, 0),
    "indexed": lambda x, y: x[AT],
    "selected": lambda x, y: x.index_select(1, AT),
    "embedded": lambda x, y: F.embedding(AT, x),
    "put": lambda x, y: x.index_put((AT[:2],), y[:2].to(x.dtype)),
    "chosen": lambda x, y: torch.where(y > 0, x, y.to(x.dtype)),
    "chosen from a number": lambda x, y: torch.where(y > 0, x, 1.7),
    "bits": lambda x, y: x.view(torch.uint8) + 1,
    "from bits": lambda x, y: (x.view(torch.uint8) ^ 1).view(x.dtype),
    "repeated": lambda x, y: x.repeat(2, 2),
    "repeated in place": lambda x, y: x.repeat_interleave(2, 0).float(),
    "expanded": lambda x, y: x[:, None].expand(6, 3, 8).reshape(18, 8),
    "slice written": lambda x, y: torch.slice_scatter(x, y[:2].to(x.dtype), 0, 1, 3),
    "filled": lambda x, y: (torch.full((3,), 1.7, dtype=x.dtype), torch.zeros_like(x)),
    "scaled": lambda x, y: (x.float() * y).to(x.dtype).float(),
    "copied": lambda x, y: torch.empty_like(x).copy_(y),
}  # fmt: skip


def same(got: Any, want: Any) -> None:
    for one, other in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        if one.dtype.itemsize == 1:
            one, other = one.view(torch.uint8), other.view(torch.uint8)
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def interpreted(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> Any:
    from litz.ir.interpret import interpret

    return interpret(program_of(function, *inputs, dynamic=dynamic), [x.clone() for x in inputs])


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MOVES)
def test_moves_are_loops(name: str, dynamic: bool) -> None:
    if dynamic and name in ("expanded", "filled"):
        pytest.skip("of sizes that are numbers")
    x, y = torch.randn(6, 8).to(E4M3), torch.randn(6, 8)
    program = program_of(MOVES[name], x, y, dynamic=dynamic)
    assert program.operations and all(isinstance(op, Loop) for op in program.operations), str(program)
    same(interpreted(MOVES[name], x, y, dynamic=dynamic), MOVES[name](x, y))


@pytest.mark.parametrize("dtype", [E4M3, E5M2, POWERS], ids=str)
def test_every_byte_is_moved_as_it_is(dtype: torch.dtype) -> None:
    x = every_byte(dtype).reshape(16, 16)
    for function in (lambda x: x.t().contiguous(), lambda x: torch.cat([x, x]), lambda x: x[AT]):
        same(interpreted(function, x), function(x))


REFUSED: dict[str, Callable[..., Any]] = {
    "abs": lambda x: x.abs(),
    "equal": lambda x: x == x,
    "isnan": lambda x: x.isnan(),
    "put and added": lambda x: x.index_put((AT,), x[AT], accumulate=True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_computes_with_float8_stays_a_call(name: str) -> None:
    x = torch.randn(6, 8).to(E4M3)
    program = program_of(REFUSED[name], x)
    assert program.externs
    same(interpreted(REFUSED[name], x), REFUSED[name](x))


def test_a_target_without_float8_calls_the_library() -> None:
    graph = capture(lambda x: x.to(torch.float32) * 2, torch.randn(4, 8).to(E4M3))
    program = lower(graph, target_of=lambda device: replace(target_of(device), abilities=frozenset()))
    assert len(program.externs) == 1


def test_scales_of_a_block_are_read_as_powers() -> None:
    """As MX formats have them: bytes that are exponents."""
    scales = torch.tensor([[120, 127], [130, 127]], dtype=torch.uint8)
    x = torch.randn(2, 64).to(E4M3)

    def f(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return (x.float().view(2, 2, 32) * scales.view(POWERS).float()[:, :, None]).view(2, 64).bfloat16()

    program = program_of(f, x, scales)
    assert len(program.loops) == len(program.operations)
    same(interpreted(f, x, scales), f(x, scales))
