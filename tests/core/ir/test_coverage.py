"""The verifier refuses loops that read or write outside of their buffers, or leave out what is read; and no others."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import sympy
import torch

from litz.ir import Buffer, Layout, Loop, Program, Range, Store, TensorRef, build
from litz.ir.coverage import loops_inside, written_where_read
from litz.ir.index import FloorDiv, PythonMod, loop_var, reduction_var, to_expr
from litz.ir.node import Node

CPU, F32 = torch.device("cpu"), torch.float32
I0, I1, R0 = loop_var(0), loop_var(1), reduction_var(0)
S0 = sympy.Symbol("s0", integer=True, positive=True)
U0 = sympy.Symbol("u0", integer=True, nonnegative=True)


def program(index: tuple, mask: Node | None = None, size: tuple = (5, 7), ranges: tuple = (), **known) -> Program:
    """A loop that copies elements of `x` at `index` into `out`. ranges: of the loop, those of `size` if not given."""
    buffers = {
        "x": Buffer("x", F32, CPU, Layout.contiguous((5, 7)), "input"),
        "flags": Buffer("flags", torch.bool, CPU, Layout.contiguous((5,)), "input"),
        "out": Buffer("out", F32, CPU, Layout.contiguous(size)),
    }
    own = tuple(Range(loop_var(at), to_expr(extent)) for at, extent in enumerate(ranges or size))
    value = build.load("x", tuple(map(to_expr, index)), F32, mask=mask)
    store = Store("out", tuple(r.var for r in own), value)
    loop = Loop("op0", CPU, own, (), (store,), ("relu",))
    return Program("test", ("x", "flags"), buffers, (loop,), (TensorRef("out", buffers["out"].layout),), **known)


def below(left: sympy.Expr, right: int) -> Node:
    return build.call("lt", build.index(left), build.index(to_expr(right)))


FLAG = build.load("flags", (I0,), torch.bool)
RIGHT = {
    "all": program((I0, I1)),
    "backwards": program((4 - I0, 6 - I1)),
    "wrapped": program((PythonMod(I0 + 3, 5), I1)),
    "reshaped": program((FloorDiv(I0, 7), PythonMod(I0, 7)), size=(35,)),
    "masked": program((I0 + 1, I1), below(I0, 4)),
    "masked by data": program((I0 + 1, I1), FLAG),
    "masked by both": program((I0 + 1, I1), build.call("bitwise_and", FLAG, below(I0, 4))),
    "no point": program((I0 + 9, I1), size=(0, 7)),
    "of unknown size": program((I0, I1), size=(U0, 7)),
    "of a size": program((I0, I1), size=(S0, 7), hints={S0: 5}),
    "one element": program((4, 6), size=(S0, 7), hints={S0: 5}),
}
OUTSIDE = {
    "one to the right": (program((I0, I1 + 1)), r"dimension 1 at position i1 \+ 1 = 7, where i1 = 6"),
    "far": (program((I0 + 10**8, I1)), "of 5 elements along dimension 0 at position .* = 100000000, where i0 = 0"),
    "before": (program((I0 - 1, I1)), "= -1, where i0 = 0"),
    "number": (program((5, I1)), "at position 5$"),
    "mask too wide": (program((I0 + 1, I1), below(I0, 5)), "= 5, where i0 = 4"),
    "quotient": (program((FloorDiv(I0, 7), PythonMod(I0, 7)), size=(36,)), "= 5, where i0 = 35"),
    "of a size": (program((I0 + 1, I1), size=(S0, 7), hints={S0: 5}), "= 5, where i0 = 4"),
}


def test_no_right_program_is_refused() -> None:
    found = {name: [*loops_inside(case), *written_where_read(case)] for name, case in RIGHT.items()}
    assert {name: complaints for name, complaints in found.items() if complaints} == {}


@pytest.mark.parametrize("name", OUTSIDE)
def test_reads_outside(name: str) -> None:
    case, text = OUTSIDE[name]
    (complaint,) = loops_inside(case)
    assert complaint.startswith("op0 of relu: reads x of ")
    assert re.search(text, complaint), complaint


def test_writes_outside_and_too_little() -> None:
    (wide,) = [each for each in loops_inside(program((0, 0), ranges=(5, 8))) if "writes" in each]
    assert wide == "op0 of relu: writes out of 7 elements along dimension 1 at position i1 = 7, where i1 = 7"
    (narrow,) = written_where_read(program((I0, I1), ranges=(4, 7)))
    assert narrow == "op0 of relu: writes 28 elements of out at most, of which 35 are read"
    assert list(written_where_read(program((I0, I1), ranges=(S0 - 1, 7), hints={S0: 6}))) == []


def test_who_reads_what_is_not_written() -> None:
    part = program((I0, I1), ranges=(4, 7))
    first, size = part.loops[0], part.buffers["out"].layout.size
    next_ = Buffer("next", F32, CPU, Layout.contiguous((4, 7)))

    def read(index: tuple, mask: Node | None = None, rows: int = 4) -> list[str]:
        """What a second loop, of `rows`, reads at `index` is all that is wanted of the first."""
        ranges = (Range(I0, to_expr(rows)), Range(I1, size[1]))
        stored = Store("next", (I0, I1), build.load("out", index, F32, mask=mask))
        second = Loop("op1", CPU, ranges, (), (stored,))
        whole = replace(part, operations=(first, second), buffers={**part.buffers, "next": next_}, outputs=())
        return list(written_where_read(whole))

    assert read((I0, I1)) == []  # the row that nobody wrote is not read
    assert read((I0, I1), below(I0, 4), rows=5) == []
    assert read((I0, I1), rows=5) == ["op0 of relu: writes 28 elements of out at most, of which 35 are read"]
    summed = replace(first, ranges=first.ranges[:1], reduction_ranges=(Range(R0, to_expr(7)),))
    stores = (Store("out", (I0, to_expr(0)), build.reduce("sum", build.load("x", (I0, R0), F32))),)
    (column,) = written_where_read(replace(part, operations=(replace(summed, stores=stores),)))
    assert "writes 4 elements of out" in column


def test_overlapping_windows_in_memory_with_gaps_are_not_counted_twice() -> None:
    """Two windows of 3 of 5 elements, each 2 apart: the buffer of 9 places holds 5, and 5 are read."""
    whole = program((0, 0), size=(9,), ranges=(5,))
    store = Store("out", (2 * I0,), build.load("x", (to_expr(0), I0), F32))
    loop = replace(whole.loops[0], stores=(store,))
    six = "op0 of relu: writes 5 elements of out at most, of which 6 are read"
    for sizes, wanted in (((2, 3), []), ((6,), [six])):
        windows = Layout(tuple(map(to_expr, sizes)), tuple(map(to_expr, (4, 2)[-len(sizes) :])))
        wanted_of = replace(whole, operations=(loop,), outputs=(TensorRef("out", windows),))
        assert list(written_where_read(wanted_of)) == wanted
