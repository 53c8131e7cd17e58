"""What must come before what."""

from __future__ import annotations

import sympy
import torch

from core.schedule.programs import CPU, Writer, call
from litz.ir import Buffer, Check, Collective, Extern, Layout, Loop, Range, Store, TensorRef, Unbacked, Wait, build
from litz.ir.index import loop_var
from litz.ir.operation import require
from litz.schedule.contracted import ContractedGraph
from litz.schedule.dependences import dependences, topological


def edges(writer: Writer) -> list[set[int]]:
    return dependences(writer.operations, writer.buffers)


def test_read_after_write_write_after_read_and_write_after_write():
    w = Writer()
    w.input("x", 4)
    w.pointwise("a", (4,), lambda i: call("neg", w.load("x", i)))
    w.pointwise("b", (4,), lambda i: call("neg", w.load("a", i)))
    w.store_into("a", (4,), lambda i: w.load("x", i))
    w.pointwise("c", (4,), lambda i: w.load("a", i))
    assert edges(w) == [set(), {0}, {0, 1}, {2}]


def test_an_alias_is_the_same_memory():
    w = Writer()
    w.input("x", 4)
    w.pointwise("a", (4,), lambda i: call("neg", w.load("x", i)))
    w.call("view", torch.ops.aten.alias.default, "a", alias=True)
    w.pointwise("b", (4,), lambda i: w.load("view", i))
    w.store_into("a", (4,), lambda i: w.load("x", i))
    assert edges(w)[3] >= {2}
    assert edges(w)[2] == {1}


def test_effects_keep_their_order():
    w = Writer()
    w.input("x", 4)
    w.call("a", torch.ops.aten.cos.default, "x", effect=True)
    w.call("b", torch.ops.aten.cos.default, "x")
    w.call("c", torch.ops.aten.cos.default, "x", effect=True)
    assert edges(w) == [set(), set(), {0}]


def communication() -> Writer:
    """A reduction that is started, something that overwrites its source, and the wait."""
    w = Writer()
    w.input("x", 4)
    w.pointwise("send", (4,), lambda i: call("neg", w.load("x", i)))
    ref = TensorRef("send", w.buffers["send"].layout)
    w.buffers["got"] = Buffer("got", torch.float32, CPU, Layout.contiguous((4,)))
    w.operations.append(Collective("op1", CPU, torch.ops.aten.clone.default, (ref,), {}, ("got",), group="g"))
    w.pointwise("other", (4,), lambda i: call("exp", w.load("x", i)))
    w.buffers["done"] = Buffer("done", torch.float32, CPU, Layout.contiguous((4,)))
    got = TensorRef("got", w.buffers["got"].layout)
    w.operations.append(
        Wait("op3", CPU, torch.ops.aten.alias.default, (got,), {}, ("done",), (), {"done": "got"}, effect=True)
    )
    w.pointwise("y", (4,), lambda i: w.load("done", i))
    w.store_into("send", (4,), lambda i: w.load("x", i))
    w.pointwise("z", (4,), lambda i: w.load("send", i))
    return w


def test_what_a_collective_reads_is_not_written_before_the_wait():
    found = edges(communication())
    assert found[3] >= {1}
    assert found[4] == {3}
    assert 3 in found[5]


def test_collectives_keep_their_order_among_themselves_alone():
    w = Writer()
    w.input("x", 4)
    ref = TensorRef("x", w.buffers["x"].layout)
    for name, kind in [("a", Collective), ("b", Extern), ("c", Collective), ("d", Extern)]:
        w.buffers[name] = Buffer(name, torch.float32, CPU, Layout.contiguous((4,)))
        w.operations.append(kind(name, CPU, torch.ops.aten.clone.default, (ref,), {}, (name,), effect=True))
    assert edges(w) == [set(), set(), {0}, {1}]
    assert dependences(w.operations, w.buffers, collectives_stay=False) == [set(), set(), set(), {1}]


def test_sizes_that_a_call_finds_out():
    u = sympy.Symbol("u0", integer=True, nonnegative=True)
    x = Buffer("x", torch.float32, CPU, Layout.contiguous((4,)), "input")
    out = Buffer("out", torch.float32, CPU, Layout.contiguous((u,)))
    found = Extern("op0", CPU, torch.ops.aten.nonzero.default, (TensorRef("x", x.layout),), unbacked=(Unbacked(u, ()),))
    i = loop_var(0)
    fill = Loop("op1", CPU, (Range(i, u),), (), (Store("out", (i,), build.const(1.0, torch.float32)),))
    assert dependences([found, fill], {"x": x, "out": out}) == [set(), {0}]


def checked(condition: sympy.Basic, *later: Loop) -> list[set[int]]:
    """x.nonzero() in buf, a Check, then `later`; out and x may be written."""
    u = sympy.Symbol("u0", integer=True)
    x = Buffer("x", torch.float32, CPU, Layout.contiguous((4,)), "input")
    buf = Buffer("buf", torch.int64, CPU, Layout.contiguous((4,)))
    out = Buffer("out", torch.float32, CPU, Layout.contiguous((4,)))
    ref = (TensorRef("x", x.layout),)
    found = Extern("op0", CPU, torch.ops.aten.nonzero.default, ref, {}, ("buf",), unbacked=(Unbacked(u, ()),))
    check = Check("op1", CPU, require, (condition,), effect=True)
    return dependences([found, check, *later], {"x": x, "buf": buf, "out": out})


def copied(source: str, target: str, dtype: torch.dtype = torch.float32) -> Loop:
    i = loop_var(0)
    value = build.cast(build.load(source, (i,), dtype), torch.float32)
    return Loop("op2", CPU, (Range(i, sympy.Integer(4)),), (), (Store(target, (i,), value),))


def test_who_reads_what_a_check_vouches_for_comes_after_the_check():
    """Though the size reads 4 everywhere."""
    four = sympy.Eq(sympy.Symbol("u0", integer=True), 4)
    assert checked(four, copied("buf", "out", torch.int64))[1:] == [{0}, {0, 1}]
    assert checked(four, copied("x", "out"))[2] == set()


def test_an_input_is_not_written_before_an_assertion():
    four = sympy.Eq(sympy.Symbol("u0", integer=True), 4)
    assert 1 in checked(four, copied("x", "x"))[2]


def test_topological_order_is_stable():
    assert topological([set(), set(), {0}, {1, 2}]) == [0, 1, 2, 3]
    assert topological([{2}, set(), set()]) == [1, 2, 0]


def test_contraction_knows_cycles():
    # 0 -> 1 -> 2 and 0 -> 2: 0 and 2 cannot be one while 1 is between them.
    graph = ContractedGraph([set(), {0}, {0, 1}, set()])
    assert not graph.is_contractible(0, 2)
    assert graph.is_contractible(0, 1)
    graph.contract(0, 1)
    assert graph.is_contractible(0, 2)
    assert graph.precedes(0, 2) and not graph.precedes(3, 2)


def test_ancestors_follow_contractions():
    # a: 0 -> 1, b: 2 -> 3. Once 1 and 2 are one, 0 precedes 3.
    graph = ContractedGraph([set(), {0}, set(), {2}])
    assert not graph.precedes(0, 3)
    graph.contract(1, 2)
    assert graph.precedes(0, 3) and graph.precedes(1, 3)
    assert not graph.is_contractible(0, 3)
