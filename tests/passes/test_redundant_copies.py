"""Copies inside a joint graph: the forward saves one tensor where it would save a copy too, and gradients stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from litz.capture.graph import Graph
from litz.capture.joint import JointGraph
from litz.capture.torch_api.operators import memory_owner
from litz.driver.stages import capture
from litz.pipeline import compile_graph, make_compiler
from litz_passes.joint.redundant_copies import remove_redundant_copies
from litz_plugins import PassContext

Fn = Callable[..., Any]


def compiled_of(fn: Fn, dynamic: bool = False, **options: Any) -> tuple[Fn, list[Graph]]:
    found: list[Graph] = []
    compiler = make_compiler(options=options)

    def keep(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        found.append(graph)
        return compile_graph(graph, compiler)

    torch._dynamo.reset()
    return torch.compile(fn, backend=partial(capture, compile_graph=keep, compiler=compiler), dynamic=dynamic), found


def saved_bytes(graph: Graph) -> int:
    """The memory that a forward makes and does not return: what it saves."""
    outputs: Any = graph.output_node.args[0]
    made = {
        memory_owner(item) for at, item in enumerate(outputs) if item is not None and at not in graph.visible_outputs
    }
    values = [node.meta["val"] for node in made if node.op == "call_function"]
    return sum(graph.hint(value.untyped_storage().nbytes()) for value in values if isinstance(value, Tensor))


def gradients(fn: Fn, *args: Tensor) -> list[Tensor]:
    given = [arg.detach().clone().requires_grad_() for arg in args]
    result = fn(*given)
    for each in result if isinstance(result, tuple) else (result,):
        each.sum().backward(retain_graph=True)
    return [arg.grad for arg in given if arg.grad is not None]


def numbers(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def attended(x: Tensor, w: Tensor) -> Tensor:
    return F.dropout(torch.softmax(x @ x.mT, -1), 0.0) @ w


def padded(x: Tensor, w: Tensor) -> Tensor:
    high = torch.cumsum(x, 0)
    return (F.pad(high, (0, 0, 0, 0)) @ w).sin() * high.exp()


def twice(x: Tensor, w: Tensor) -> Tensor:
    high = torch.cumsum(x, 0)
    return (high.clone().clone() @ w).sin() * high.exp()


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fn", [attended, padded, twice])
def test_a_value_is_saved_once(fn: Fn, dynamic: bool) -> None:
    x, w = numbers(64, 64), numbers(64, 64)
    compiled, graphs = compiled_of(fn, dynamic)
    torch.testing.assert_close(gradients(compiled, x, w), gradients(fn, x, w), rtol=1e-4, atol=1e-4)
    once = saved_bytes(graphs[0])
    compiled, graphs = compiled_of(fn, dynamic, veto=["remove_redundant_copies"])
    gradients(compiled, x, w)
    assert once + 64 * 64 * 4 <= saved_bytes(graphs[0])


def returned(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    high = x.exp()
    return high, (high.clone() @ w)


def both_returned(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    high = x.exp()
    return high, high.clone(), high @ w


@pytest.mark.parametrize("fn", [returned, both_returned])
def test_what_the_user_writes_is_not_what_is_saved(fn: Fn) -> None:
    """The copy was made so that the results can be written before the backward."""

    def written(run: Fn, *args: Tensor) -> list[Tensor]:
        given = [arg.detach().clone().requires_grad_() for arg in args]
        *others, last = run(*given)
        with torch.no_grad():
            others[-1].zero_()
        last.sum().backward()
        return [arg.grad for arg in given if arg.grad is not None]

    def apart(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return tuple(each * 1.0 if at == 0 else each for at, each in enumerate(fn(x, w)))

    x, w = numbers(32, 32), numbers(32, 32)
    compiled, _ = compiled_of(apart)
    torch.testing.assert_close(written(compiled, x, w), written(apart, x, w))


def test_results_stay_apart() -> None:
    compiled, _ = compiled_of(both_returned)
    first, second, _ = compiled(numbers(8, 8).requires_grad_(), numbers(8, 8))
    assert first.data_ptr() != second.data_ptr()


def test_a_copied_input_may_be_written_before_the_backward() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.clone()

    def written(run: Fn) -> Tensor:
        x, w = numbers(16, 16).requires_grad_(), numbers(16, 16)
        result = run(x, w)
        w.zero_()
        result.sum().backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(written(compiled_of(fn)[0]), written(fn))


def test_a_copied_part_does_not_keep_the_whole() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.cumsum(x, 0)[:4].clone() @ w

    x, w = numbers(1024, 16), numbers(16, 16)
    compiled, graphs = compiled_of(fn)
    torch.testing.assert_close(gradients(compiled, x, w), gradients(fn, x, w))
    assert saved_bytes(graphs[0]) <= 4 * 16 * 4


def test_a_pad_that_shifts_is_no_copy() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        high = torch.cumsum(x, 0)
        return (F.pad(high, (1, -1)) @ w).sin() * high.exp()

    x, w = numbers(16, 16).double(), numbers(16, 16).double()
    compiled, _ = compiled_of(fn)
    torch.testing.assert_close(gradients(compiled, x, w), gradients(fn, x, w))


def test_checkpoints_compute_again_what_they_would() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        inner: Tensor = checkpoint(attended, x, w, use_reentrant=False)
        return inner.sin()

    x, w = numbers(32, 32), numbers(32, 32)
    compiled, _ = compiled_of(fn)
    torch.testing.assert_close(gradients(compiled, x, w), gradients(fn, x, w), rtol=1e-4, atol=1e-4)


def test_the_old_value_of_a_written_input_stays() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    old = graph.call_function(torch.ops.aten.clone.default, (x,))
    high = graph.call_function(torch.ops.aten.exp.default, (x,))
    new = graph.call_function(torch.ops.aten.clone.default, (high,))
    graph.call_function(torch.ops.aten.copy_.default, (x, new))
    graph.output((graph.call_function(torch.ops.aten.sin.default, (old,)),))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4)
    joint = JointGraph("graph0_joint", torch.fx.GraphModule({}, graph), 1)
    left = {node.name for node in remove_redundant_copies(joint, PassContext({})).nodes}
    assert left == {node.name for node in graph.nodes} - {new.name} and old.name in left
