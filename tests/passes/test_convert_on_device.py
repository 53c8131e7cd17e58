"""Tensors of the CPU that go to a device in another dtype are copied as they are."""

from __future__ import annotations

import pytest
import torch

from litz.capture.graph import Graph
from litz.target import target_named
from litz_passes.graph.convert_on_device import convert_on_device
from litz_plugins import Decision, PassContext
from passes.test_graph_passes import graph_of

F32, F64, F16, BF16, I64, I8 = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8
META = torch.empty(4, 6, device="meta")


def passed(graph: Graph, decisions: list[Decision] | None = None) -> Graph:
    note = ([] if decisions is None else decisions).append
    target = target_named("H100")
    return convert_on_device(graph, PassContext(None, note=note, target_of=lambda device: target))


def calls(graph: Graph) -> list[tuple[str, torch.dtype]]:
    """Returns the copies and conversions, each with the dtype of its result."""
    return [
        (node.target._opname, node.meta["val"].dtype)
        for node in graph.nodes
        if node.op == "call_function" and node.target._opname in ("_to_copy", "convert_element_type")
    ]


def graph(source: torch.dtype, result: torch.dtype, table: torch.Tensor | None = None) -> Graph:
    table = torch.zeros(4, 6, dtype=source) if table is None else table
    return graph_of(lambda x, t: x + t.to("meta", result), META, table)


@pytest.mark.parametrize("source, result", [(F32, BF16), (F32, F16), (BF16, F32), (F16, F64), (I64, F32), (I8, I64)])
def test_the_device_converts(source, result):
    decisions = list[Decision]()
    after = passed(graph(source, result), decisions)
    assert calls(after)[:2] == [("_to_copy", source), ("convert_element_type", result)]
    assert len(decisions) == 1


@pytest.mark.parametrize(
    "source, result",
    [(F32, F32), (F64, F16), (F64, BF16), (F32, I64), (I64, I8), (torch.int32, F16), (F32, torch.float8_e4m3fn)],
    ids=str,
)
def test_copies_that_stay_whole(source, result):
    """Nothing to convert, other results on the CPU, or many more bytes."""
    before = graph(source, result)
    assert calls(passed(before)) == calls(before)


def test_numbers_and_copies_to_the_cpu_stay():
    number = graph(F32, BF16, torch.tensor(1.0))
    assert calls(passed(number)) == calls(number)
    back = graph_of(lambda t: t.to("cpu", BF16), META)
    assert calls(passed(back)) == calls(back)


def test_conversions_on_one_device_stay():
    for tensor in (META, torch.zeros(4, 6)):
        there = graph_of(lambda t: t.to(BF16).sin().float(), tensor)
        assert calls(passed(there)) == calls(there) != []


@pytest.mark.parametrize("table", [torch.zeros(6, 4).t(), torch.zeros(8, 12)[::2, ::2], torch.zeros(1, 6)], ids=str)
def test_the_result_lies_as_before(table):
    before = graph(F32, BF16, table)
    after = passed(before)
    strides = [
        [n.meta["val"].stride() for n in g.nodes if n.op == "call_function" and n.meta["val"].dtype == BF16]
        for g in (before, after)
    ]
    assert strides[0] == strides[1]
