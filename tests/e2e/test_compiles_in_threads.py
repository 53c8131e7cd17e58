"""Threads that compile at once, and threads that trace with torch alone while another compiles."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo import lookup_backend
from torch.fx.experimental.proxy_tensor import make_fx

import litz
import litz_aot
from litz.capture import torch_api
from litz.capture.decompositions import decompositions, fake_rules
from litz.capture.torch_api.asserts import keeps_asserted_calls
from litz.capture.torch_api.random import random_as_in_eager
from litz.capture.torch_api.rules import rules_of_resampling, traced_by
from litz.origins.trust import Trust

aten = torch.ops.aten
BACKEND = lookup_backend("litz")  # here, as torch registers what it finds by name, and not twice


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None], count: int) -> list[BaseException]:
    """What was raised."""
    found: list[BaseException] = []
    begin = threading.Barrier(count)

    def run(number: int) -> None:
        begin.wait()
        try:
            work(number)
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def changed_while_tracing() -> list[Any]:
    """Whatever is one for the process, and differs while litz traces."""
    from torch._functorch._aot_autograd import autograd_cache

    ops = [op for op, _ in rules_of_resampling()]
    ops += [aten.dropout.default, aten.bernoulli_.float, *fake_rules(decompositions())]
    tables = [(str(op), dict(op.py_kernels), dict(op.python_key_table)) for op in ops]
    cache = autograd_cache.AOTAutogradCache
    patched = (cache.try_load, cache.make_entry, autograd_cache.autograd_cache_key, torch.fx.Node.is_impure)
    return [sorted(tables, key=lambda each: each[0]), patched, torch.fx.node._side_effectful_functions]


def resampled(x: torch.Tensor) -> torch.Tensor:
    return torch.copysign(F.interpolate(x, scale_factor=2.0), x.new_ones(())) + 1


def by_backend(graph: torch.fx.GraphModule, x: torch.Tensor) -> Callable[..., Any]:
    return BACKEND(graph, [x])


def standalone(graph: torch.fx.GraphModule, x: torch.Tensor) -> Callable[..., Any]:
    return litz.standalone_compile(graph, (x,))


def packaged(graph: torch.fx.GraphModule, x: torch.Tensor) -> Callable[..., Any]:
    with tempfile.TemporaryDirectory() as folder:
        return litz_aot.load(litz_aot.compile(graph, (x,), f"{folder}/package"))


def exported(graph: torch.fx.GraphModule, x: torch.Tensor) -> Callable[..., Any]:
    with torch_api.compile_lock:  # torch's own fails where two threads export
        program = torch.export.export(graph, (x,))
    with tempfile.TemporaryDirectory() as folder:
        return litz_aot.load(litz_aot.compile(program, None, f"{folder}/package"))


def by_dynamo(graph: torch.fx.GraphModule, x: torch.Tensor) -> Callable[..., Any]:
    return torch.compile(graph, backend="litz", options={"cache": False})


@pytest.mark.parametrize("way", [by_backend, standalone, packaged, exported, by_dynamo])
@pytest.mark.usefixtures("quick_switches")
def test_threads_that_compile_at_once_leave_torch_as_it_was(way: Callable[..., Callable[..., Any]]) -> None:
    torch._dynamo.reset()
    xs = [torch.randn(1, 1, 4, 4 + number) for number in range(4)]
    graphs = [make_fx(resampled)(x) for x in xs]
    before = changed_while_tracing()

    def work(number: int) -> None:
        for _ in range(1 if way in (packaged, exported) else 2):  # those trace more than once, each time
            (found,) = torch.utils._pytree.tree_leaves(way(graphs[number], xs[number])(xs[number]))
            torch.testing.assert_close(found, resampled(xs[number]))

    assert in_threads(work, len(xs)) == []
    assert changed_while_tracing() == before


@pytest.mark.usefixtures("quick_switches")
def test_backwards_that_are_compiled_at_once_leave_torch_as_it_was() -> None:
    torch._dynamo.reset()
    xs = [torch.randn(1, 1, 4, 4 + number, requires_grad=True) for number in range(4)]
    before = changed_while_tracing()

    def work(number: int) -> None:
        for compiled_autograd in (False, True):
            with torch._dynamo.config.patch(compiled_autograd=compiled_autograd):
                fn = torch.compile(resampled, backend="litz", dynamic=False)
                (found,) = torch.autograd.grad(fn(xs[number]).square().sum(), xs[number])
            (wanted,) = torch.autograd.grad(resampled(xs[number]).square().sum(), xs[number])
            torch.testing.assert_close(found, wanted)

    assert in_threads(work, len(xs)) == []
    assert changed_while_tracing() == before


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(F.dropout(x, 0.5), size=(8, 8), mode="bilinear")


def transposed(x: torch.Tensor) -> torch.Tensor:
    return torch.copysign(x[0, 0].t(), x[0, 0].t()[:1])


def traced(fn: Callable[..., Any]) -> tuple[list[str], tuple[int, ...]]:
    """The ops of a trace with torch alone, and the strides of its result."""
    graph = make_fx(fn, tracing_mode="fake")(torch.ones(2, 3, 4, 4, requires_grad=True)).graph
    with torch._dispatch.python.enable_python_dispatcher(), torch._subclasses.FakeTensorMode() as mode:
        with torch.no_grad():
            strides = fn(mode.from_tensor(torch.ones(2, 3, 4, 4))).stride()
        graph = make_fx(fn)(mode.from_tensor(torch.ones(2, 3, 4, 4, requires_grad=True))).graph
    return [str(node.target) for node in graph.nodes if node.op == "call_function"], strides


@pytest.mark.parametrize("fn", [dropped, transposed])
def test_a_thread_that_traces_with_torch_has_torchs_rules_while_another_compiles(fn: Callable[..., Any]) -> None:
    usual, inside, found = traced(fn), list[Any](), list[Any]()
    with torch_api.compile_lock, torch_api.faked_by(fake_rules(decompositions())):
        with random_as_in_eager(), traced_by(rules_of_resampling()):
            assert in_threads(lambda _: inside.append(traced(fn)), 1) == []
            found.append(traced(fn))
    assert inside == [usual]
    assert found != [usual]
    assert traced(fn) == usual


def test_a_thread_beside_a_compile_has_torchs_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks AOTAutograd's cache, and what FX may drop, differ for the thread that compiles alone."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    def effect(x: torch.Tensor) -> torch.Tensor:
        return x

    def registers(_: int) -> None:
        torch.fx.node.has_side_effect(effect)

    def looks(found: list[Any]) -> None:
        found += [AOTAutogradCache.try_load(), aten.rand.default in torch.fx.node._side_effectful_functions]
        graph = torch.fx.Graph()
        node = graph.call_function(torch.sin, (graph.placeholder("x"),))
        node.meta["unbacked_bindings"] = {"u0": ()}
        found.append(node.is_impure())

    asserting = torch.fx.GraphModule({}, torch.fx.Graph())
    asserting.graph.call_function(aten._assert_scalar.default, (True, ""))
    monkeypatch.setattr(AOTAutogradCache, "try_load", staticmethod(lambda *_: None))
    outside, inside, missed = list[Any](), list[Any](), list[int]()
    miss = partial(missed.append, 1)
    with torch_api.found_by(asserting, "", lambda key, facts: None, Trust(), miss), random_as_in_eager():
        with keeps_asserted_calls(asserting):
            assert in_threads(lambda _: looks(outside), 1) == []
            assert in_threads(registers, 1) == []
            count = len(missed)
            looks(inside)
    kept = effect in torch.fx.node._side_effectful_functions
    torch.fx.node._side_effectful_functions.discard(effect)
    assert (outside, count, inside, missed) == ([None, False, False], 0, [None, True, True], [1])
    assert kept
