"""Compile time grows with the length of a program, and no faster: work is counted, as calls of functions.

Counts do not depend on how busy the machine is. Each family is compiled once before anything is counted, so that what
is remembered between compiles is there for the short program and for the long one.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from benchmarks.growth import FAMILIES
from sympy.core.cache import clear_cache
from torch.fx.experimental.proxy_tensor import make_fx

from litz.capture import torch_api
from litz.capture.decompositions import decompositions
from litz.capture.graph import Graph, make_graph
from litz.driver.garbage import NEVER, young_objects_only
from litz.driver.stages import capture
from litz.ir import build
from litz.ir.node import Node, walk
from litz.pipeline import generate, make_compiler, plan_schedule, schedule_graph
from litz.schedule import inline

FOUR_TIMES = 5.0
"""A program of four times the length may take so many times the calls: n log n, and some for chance."""


def count_calls(name: str, n: int) -> int:
    """Calls of functions in litz's stages, from a graph of a family's program to the text of its kernels."""
    fn, args = FAMILIES[name].make(n)
    args = tuple(x.detach() for x in args)
    graph = make_graph("graph0", make_fx(fn, decompositions(), tracing_mode="fake")(*args), "inference")
    compiler, profile = make_compiler(), cProfile.Profile()
    profile.enable()
    generate(plan_schedule(schedule_graph(graph, compiler), compiler), compiler)
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.ci_cases("chain-150", "cat-100", "views-12", "adam-20")
@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("chain", 150),  # up to the limit of a kernel's size the work grows with its square
        ("chain", 250),
        *(("cat", 100), ("cat views", 40), ("sum", 60), ("sum reduced", 40), ("views", 12), ("adam", 20)),
    ],
)
def test_work_grows_with_length(name: str, n: int) -> None:
    count_calls(name, n // 4)
    short, long = count_calls(name, n), count_calls(name, 4 * n)
    assert long <= FOUR_TIMES * short, f"{short} calls for {n}, {long} for {4 * n}"


def test_work_is_the_same_after_other_programs() -> None:
    """sympy remembers few symbols. Were a variable of loops made anew, each look at what litz remembers would compare
    it with its twin of before, name and assumptions."""
    count_calls("sum reduced", 10)
    before = count_calls("sum reduced", 10)
    clear_cache()
    count_calls("sum reduced", 10)
    assert count_calls("sum reduced", 10) <= 1.02 * before


def test_a_step_of_a_chain_is_not_worked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation is inlined into the next; what was inlined before is not substituted once more."""
    substituted: list[Node] = []
    original = inline._substituted
    monkeypatch.setattr(
        inline, "_substituted", lambda root, *rest: (substituted.append(root), original(root, *rest))[1]
    )
    count_calls("chain", 100)
    assert not substituted
    count_calls("views", 12)
    assert substituted


@pytest.mark.nightly
@pytest.mark.parametrize("train", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_more_layers_are_no_more_kernels_to_build(train: bool) -> None:
    pytest.importorskip("transformers")
    few, many = (kernels_of_layers(n, train) for n in (2, 3))
    assert len(many) == len(few)


def kernels_of_layers(n: int, train: bool) -> set[tuple[str, str]]:
    """The distinct kernels of GPT-2 of n layers."""
    torch._dynamo.reset()
    compiler = make_compiler()
    found: set[tuple[str, str]] = set()

    def keep(graph: Graph) -> Callable[[list[Any]], Any]:
        sources = generate(plan_schedule(schedule_graph(graph, compiler), compiler), compiler)
        found.update((source.text, repr(source.settings)) for source in sources.values())
        return lambda args: torch.fx.Interpreter(graph.module).run(*args)

    fn, args = FAMILIES["layers"].make(n)
    with torch.set_grad_enabled(train):
        out = torch.compile(fn, backend=partial(capture, compile_graph=keep, compiler=compiler))(*args)
    if train:
        out.sum().backward()
    return found


def test_owners_of_a_chain_of_views_are_found_in_one_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = torch.fx.Graph()
    with torch._subclasses.FakeTensorMode():
        value = torch.empty(4, 6)
    x = graph.placeholder("x")
    x.meta["val"] = value
    nodes = [x]
    for k in range(200):
        base = graph.call_function(torch.ops.aten.sin.default, (nodes[-1],)) if k == 100 else nodes[-1]
        base.meta["val"] = value
        view = graph.call_function(torch.ops.aten.t.default, (base,))
        view.meta["val"] = value
        nodes += [base, view]
    graph.output(nodes[-1])
    expected = {node: torch_api.memory_owner(node) for node in nodes}
    asked: list[torch.fx.Node] = []
    from litz.capture.torch_api import operators

    original = operators.aliased_argument
    monkeypatch.setattr(operators, "aliased_argument", lambda node: (asked.append(node), original(node))[1])
    owners = torch_api.memory_owners(graph.nodes)
    assert {node: owners[node] for node in nodes} == expected
    assert len(set(expected.values())) == 2
    assert len(asked) <= 2 * len(graph.nodes)


def test_nodes_are_walked_arguments_first_and_once() -> None:
    def reference(*roots: Node) -> list[Node]:
        found: list[Node] = []

        def visit(node: Node) -> None:
            for arg in node.args:
                visit(arg)
            if node not in found:
                found.append(node)

        for root in roots:
            visit(root)
        return found

    a, b = build.const(1.5, torch.float32), build.load("x", (), torch.float32)
    c = build.call("mul", b, b)
    d = build.call("add", build.call("sin", c), build.call("mul", c, b))
    e = build.call("sub", build.call("add", d, b), c)
    for roots in ((e,), (d, e), (e, d, a), (a, c, e, a)):
        assert list(walk(*roots)) == reference(*roots)
    kept = list(walk(e, into=lambda node: node is not c))
    assert len(kept) == len(set(kept)) and set(kept) == set(reference(e)) - {c}


def test_old_objects_are_not_collected_while_a_compile_runs() -> None:
    before = gc.get_threshold()
    with young_objects_only():
        assert gc.get_threshold() == (before[0], before[1], NEVER)
        with young_objects_only():
            pass
        assert gc.get_threshold()[2] == NEVER
    assert gc.get_threshold() == before


def test_a_threshold_that_is_set_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with young_objects_only():
            gc.set_threshold(500, 5, 5)
        assert gc.get_threshold() == (500, 5, 5)
    finally:
        gc.set_threshold(*before)


def test_the_collector_is_as_before_when_a_compile_fails() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="later"), young_objects_only():
        raise ValueError("later")
    assert gc.get_threshold() == before
