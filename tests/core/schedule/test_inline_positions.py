"""Inlining keeps every position inside: a program that the verifier takes is one that it takes after the pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from core.ir.harness import CPU, F32, I0, n, program
from core.schedule.harness import CPU as TARGET
from core.schedule.harness import OPTIONS
from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store, TensorRef, build
from litz.ir.index import FloorDiv, placeholder
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.schedule.inline import inline_pointwise
from litz_plugins import Decision, PassContext

I64, I8 = torch.int64, torch.int8


def number(kind: str, of: Node, value: int) -> Node:
    return build.call(kind, of, build.const(value, of.dtype))


def inlined(prog: Program) -> tuple[Program, list[Decision]]:
    """The program after the pass, which the verifier takes, and the pass's decisions."""
    verify(prog)
    decisions: list[Decision] = []
    context = PassContext(OPTIONS, note=decisions.append, target_of=lambda device: TARGET)
    after = inline_pointwise(prog, context)
    verify(after)
    return after, decisions


def chain(made: Node, read: Node, size: int, inputs: dict[str, Any]) -> Program:
    """A loop that stores `made` in t, of 8 elements, and a loop that stores `read`, of `size`."""
    first = program((Store("t", (I0,), made),), {I0: 8}, {}, inputs, {"t": ((8,), made.dtype)})
    out = Buffer("out", read.dtype, CPU, Layout.contiguous((n(size),)))
    reader = Loop("loop1", CPU, (Range(I0, n(size)),), (), (Store("out", (I0,), read),))
    buffers = {**first.buffers, "out": out}
    return replace(
        first, buffers=buffers, operations=(*first.operations, reader), outputs=(TensorRef("out", out.layout),)
    )


X = build.load("x", (I0,), I8)
AT_I0 = build.load("w", (I0,), I64)
MADE = {
    "power": build.call("mul", X, build.call("mul", X, X)),
    "shift": build.call("shift_right", build.call("mul", X, X), number("bitwise_and", X, 3)),
    "clamp": number("minimum", number("maximum", X, -2), 2),
    "cast": build.cast(build.cast(number("add", X, 1), F32), I8),
    "choice": build.call("where", number("lt", build.index(I0), 3), X, number("mul", X, 2)),
    "part of a concatenation": build.call(
        "where",
        number("lt", build.index(I0), 5),
        build.load("x", (I0,), I8, mask=number("lt", build.index(I0), 5)),
        build.load("x", (I0 - 5,), I8, mask=number("ge", build.index(I0), 5)),
    ),
    "gathered": build.load("x", (placeholder(0),), I8, (number("bitwise_and", AT_I0, 7),)),
}
"""What the loop that is inlined computes, of x[i0]."""


@pytest.mark.parametrize("moved", ["less", "counted down", "halved"])
@pytest.mark.parametrize("kind", MADE)
def test_a_mask_keeps_a_position_inside_where_a_loop_is_inlined(kind: str, moved: str) -> None:
    """A gather from a concatenation reads its part of the result under a mask, which is about the position."""
    at = build.bounded(build.load("at", (I0,), I64), 30)
    low, high, position = {
        "less": (20, 28, placeholder(0) - 20),
        "counted down": (5, 13, 12 - placeholder(0)),
        "halved": (10, 26, FloorDiv(placeholder(0) - 10, n(2))),
    }[moved]
    part = build.logical_and(number("ge", at, low), number("lt", at, high))
    read = build.call("where", part, build.load("t", (position,), I8, (at,), part), build.const(7, I8))
    prog = chain(MADE[kind], read, 4, {"x": ((8,), I8), "w": ((8,), I64), "at": ((4,), I64)})
    after, _ = inlined(prog)
    assert [loop.name for loop in after.loops] == ["loop1"]
    checks = [node for node in after.loops[0].nodes if node.op == "bounded" and node.attrs[0] == 30]
    assert checks == [at], "the position is checked once, as before"
    given = [torch.arange(-4, 4).to(I8), torch.tensor([7, 0, 3, 3, 1, 2, 6, 5]), torch.tensor([21, 12, 0, 29])]
    assert interpret(after, given)[0].tolist() == interpret(prog, given)[0].tolist()
    for wrong in (-1, 30):
        with pytest.raises(IndexError, match="out of range for size 30"):
            interpret(after, [*given[:2], torch.tensor([21, 12, 0, wrong])])


HERE = build.index(I0)
NESTED = build.call(
    "where",
    number("ge", HERE, 2),
    build.call("where", number("lt", HERE, 4), number("mul", HERE, 2), build.const(0, I64)),
    build.const(0, I64),
)


def test_a_loop_stays_whose_result_is_a_position_that_is_proved_there_alone() -> None:
    """Choices in choices under a mask are more than is followed: what the loop stores says that the position is
    inside."""
    masked = number("ge", HERE, 1)
    read = build.load("y", (placeholder(0),), F32, (build.load("t", (I0,), I64),), masked)
    after, decisions = inlined(chain(NESTED, read, 8, {"y": ((7,), F32)}))
    assert len(after.loops) == 2
    assert any("keeps a position inside, and in loop1 that is not proved" in each.reason for each in decisions)
    plain = build.load("y", (placeholder(0),), F32, (build.load("t", (I0,), I64),))
    after, _ = inlined(chain(NESTED, plain, 8, {"y": ((7,), F32)}))
    assert len(after.loops) == 1, "without the mask that is proved, and the loop goes"
