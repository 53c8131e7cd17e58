"""Compiled functions under dispatch modes: fake tensors, tracers and counters get of them what they get of eager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import litz_aot
from litz import graph_cache
from litz.errors import TracedCallError
from litz.report import collect
from support.compare import NO_GPU, litz, same

Fn = Callable[..., Any]


def product(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.relu(x @ y.mT).sum(-1), torch.softmax(x, -1) + 1, x.mT


def writes(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(y.sum())
    return x.mT, y * 2


def attention(x: torch.Tensor, y: torch.Tensor) -> Any:
    return F.scaled_dot_product_attention(x, y, y)


def in_two(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x + 1
    torch._dynamo.graph_break()
    return torch.cat([z, y]).sum(0) + torch.ones(6, device=x.device)


PROGRAMS = [product, writes, attention, in_two]


def inputs(rows: int, device: str = "cpu") -> list[torch.Tensor]:
    return [torch.randn(rows, 6, device=device), torch.randn(rows, 6, device=device)]


def described(result: Any) -> list[Any]:
    return [(type(v), v.device, v.dtype, tuple(v.shape), v.stride(), v.requires_grad) for v in tree_leaves(result)]


def check_fake(fn: Fn, compiled: Fn, rows: int, device: str = "cpu") -> None:
    with FakeTensorMode():
        found, wanted = compiled(*inputs(rows, device)), fn(*inputs(rows, device))
    assert all(isinstance(value, FakeTensor) for value in tree_leaves(found))
    assert described(found) == described(wanted)


def check_real(fn: Fn, compiled: Fn, rows: int) -> None:
    given = inputs(rows)
    ours, theirs = [x.clone() for x in given], [x.double() for x in given]
    found, wanted = tree_leaves(compiled(*ours)), tree_leaves(fn(*theirs))
    same([value.double() for value in (*found, *ours)], [value.double() for value in (*wanted, *theirs)])


@pytest.mark.ci_cases("writes-True", "attention-True", "in_two-None")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_fake_calls_and_real_ones_in_either_order(fn: Fn, dynamic: bool | None) -> None:
    compiled = litz(fn, dynamic=dynamic)
    with collect() as reports:
        check_fake(fn, compiled, 4)
    assert not reports, "what runs on no numbers needs no kernels"
    check_real(fn, compiled, 4)
    compiled = litz(fn, dynamic=dynamic)
    with collect() as reports:
        check_real(fn, compiled, 4)
    assert reports
    for rows in (4, 7):
        check_fake(fn, compiled, rows)
        check_real(fn, compiled, rows)


@pytest.mark.parametrize("fn", [product, in_two])  # of the others torch without CUDA makes no fake results
def test_fake_tensors_of_a_device_that_is_not_here(fn: Fn) -> None:
    compiled = litz(fn)
    check_fake(fn, compiled, 4, "cuda")
    check_real(fn, compiled, 4)
    check_fake(fn, compiled, 5, "cuda")


@pytest.mark.ci_cases("True")
@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_the_user_traces_with_stay_symbols(dynamic: bool | None) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x, y = (mode.from_tensor(value) for value in inputs(4))
    rows = x.shape[0]
    assert isinstance(rows, torch.SymInt)
    for within in (mode, nullcontext()):
        with within:
            sums, shifted, turned = litz(product, dynamic=dynamic)(x, y)
        assert sums.fake_mode is shifted.fake_mode is mode
        assert str(sums.shape[0]) == str(shifted.shape[0]) == str(turned.shape[1]) == str(rows)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.norm(self.linear(x)).relu(), 0.5, self.training)


def trained(dynamic: bool | None, device: str = "cpu") -> None:
    with torch.device(device):
        module = Network()
        compiled = litz(module, dynamic=dynamic)
        optimizer = torch.optim.Adam(module.parameters())
        for rows in (4, 7):
            loss = compiled(torch.randn(rows, 6)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    assert isinstance(loss, FakeTensor) and loss.requires_grad
    for parameter in module.parameters():
        assert isinstance(parameter.grad, FakeTensor) and parameter.grad.shape == parameter.shape


@pytest.mark.ci_cases("True")
@pytest.mark.parametrize("dynamic", [None, True])
def test_training_of_fake_parameters(dynamic: bool | None) -> None:
    with FakeTensorMode():
        trained(dynamic)


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("dynamic", [None, True])
def test_training_of_fake_parameters_on_a_gpu(dynamic: bool | None) -> None:
    with FakeTensorMode():
        trained(dynamic, "cuda")
    before = torch.cuda.memory_allocated()
    compiled = litz(product, mode="reduce-overhead")
    for _ in range(3):
        check_fake(product, compiled, 4, "cuda")
    assert torch.cuda.memory_allocated() == before
    given = inputs(4, "cuda")
    for _ in range(4):  # recorded by now
        found = [value.clone() for value in compiled(*given)]
    check_fake(product, compiled, 4, "cuda")
    same(found, product(*given))
    same([value.clone() for value in compiled(*given)], product(*given))


def test_real_parameters_under_a_fake_mode(tmp_path: Any) -> None:
    """No guard of dynamo's sees the mode: the graph that runs is the one of real calls, here and from the cache."""
    weight = torch.randn(5, 6)
    for kept in ("miss", "hit"):
        graph_cache.forget()
        compiled = litz(lambda: torch.softmax(weight * 2, -1) + 1, options={"cache_dir": tmp_path, "graph_cache": True})
        with collect() as reports:
            real = compiled()
            with FakeTensorMode(allow_non_fake_inputs=True):
                fake = compiled()
            again = compiled()
        assert [report.graph_cache.split()[0] for report in reports] == [kept]
        assert isinstance(fake, FakeTensor) and fake.shape == (5, 6)
        assert type(real) is type(again) is torch.Tensor and torch.equal(real, again)


def test_new_tensors_under_a_fake_mode() -> None:
    """A program without tensors among its inputs."""
    compiled = litz(lambda n: torch.ones(n, 3).sum(0) + 1)
    assert torch.equal(compiled(4), torch.full((3,), 5.0))
    with FakeTensorMode():
        assert isinstance(compiled(4), FakeTensor)
    assert torch.equal(compiled(4), torch.full((3,), 5.0))


@pytest.mark.ci_cases("True")
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_backward_of_a_real_forward_is_refused(dynamic: bool | None) -> None:
    """What the forward saved is real, and the compiled backward would write where a fake tensor has no memory."""
    weight = torch.randn(5, 6, requires_grad=True)
    result = litz(lambda x: torch.softmax(x @ weight.mT, -1).exp(), dynamic=dynamic)(torch.randn(4, 6))
    result.sum().backward(retain_graph=True)
    given, weight.grad = torch.ones(4, 5), None
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(TracedCallError, match="FakeTensorMode"):
        result.backward(given, retain_graph=True)
    result.backward(given)
    assert type(weight.grad) is torch.Tensor


@pytest.mark.ci_cases("symbols")
@pytest.mark.parametrize(
    "shapes", [None, ({0: torch.export.Dim("rows", min=2, max=64)}, None)], ids=["numbers", "symbols"]
)
def test_a_package_is_refused(shapes: Any, tmp_path: Path) -> None:
    given = (torch.randn(4, 6), torch.randn(6, 6))
    folder = litz_aot.compile(lambda x, y: (x @ y).relu().sum(-1), given, tmp_path / "p", dynamic_shapes=shapes)
    call = litz_aot.load(folder)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(TracedCallError, match="package under none"):
        call(*given)
    same([call(*given)], [(given[0] @ given[1]).relu().sum(-1)])


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Outside(Watching):
    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def test_a_users_mode_sees_what_it_asks_to_see() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1).sum()

    compiled, x = litz(fn), torch.randn(4, 6)
    expected = compiled(x)
    with Outside() as outside:
        found = compiled(x)
    assert torch.equal(found, expected) and "aten.sin.default" not in outside.seen
    with Watching() as inside:  # last: dynamo leaves the function to eager from here on
        found = compiled(x)
    torch.testing.assert_close(found, expected)
    assert inside.seen == ["aten.sin.default", "aten.add.Tensor", "aten.sum.default"]


def test_operations_are_counted_as_in_eager() -> None:
    """Also where the function was compiled before, in both directions of training."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (attention(x[None, None], y[None, None]) @ y.mT).sum()

    def counted(run: Fn) -> int:
        x, y = (value.requires_grad_() for value in inputs(4))
        with FlopCounterMode(display=False) as counter:
            run(x, y).backward()
        return counter.get_total_flops()

    compiled = litz(fn)
    compiled(*(value.requires_grad_() for value in inputs(4))).backward()
    assert counted(compiled) == counted(fn) > 0


def test_tracers_and_transformations_see_through() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x + 1).sum()

    compiled, x = litz(fn), torch.randn(4, 6)
    compiled(x)
    same([torch.func.vmap(compiled)(x)], [torch.func.vmap(fn)(x)])
    same([torch.func.vmap(torch.func.grad(compiled))(x)], [torch.func.vmap(torch.func.grad(fn))(x)])
    same(torch.func.jvp(compiled, (x,), (x,)), torch.func.jvp(fn, (x,), (x,)))
    with torch._dynamo.config.patch(error_on_nested_fx_trace=False):
        for mode in ("real", "fake", "symbolic"):
            targets = [
                [str(node.target) for node in make_fx(f, tracing_mode=mode)(x).graph.nodes] for f in (compiled, fn)
            ]
            assert targets[0] == targets[1]

    def written(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1).sin()

    ours, theirs = x.clone(), x.clone()
    same([torch.func.functionalize(litz(written))(ours), ours], [torch.func.functionalize(written)(theirs), theirs])


@pytest.mark.ci_cases("True")
@pytest.mark.parametrize("strict", [False, True])
def test_an_export_of_a_module_with_a_compiled_part(strict: bool) -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = litz(Network().eval())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * 2  # type: ignore[no-any-return]

    outer, x = Outer(), torch.randn(4, 6)
    outer(x)
    shapes = ({0: torch.export.Dim("rows", min=2, max=64)},)
    exported = torch.export.export(outer, (x,), dynamic_shapes=shapes, strict=strict).module()
    for rows in (4, 9):
        x = torch.randn(rows, 6)
        same([exported(x)], [outer(x)])
