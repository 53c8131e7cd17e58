"""Weights in tensor subclasses that hold numbers of few bits and scales, as torchao's do: one graph, right results, and
conversions that fuse. Training in float8 too, whose products are autograd functions."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support.retarget import cuda_schedules
from support.versions import OLD_TORCH

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
Tensor = torch.Tensor
ONE_SCALE = pytest.mark.skipif(OLD_TORCH, reason="torch 2.11's CPU has one scale a tensor only")


def scaled(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of an activation or a weight in a narrow type, and their scales."""
    most = 448.0 if dtype == E4M3 else 127.0
    scale = (x.abs().amax(-1, keepdim=True).float() / most).clamp(min=1e-12)
    values = (x.float() / scale).clamp(-most, most)
    return (values if dtype.is_floating_point else values.round()).to(dtype), scale


def int8(x: Tensor, q: Tensor, s: Tensor, group: int) -> Tensor:
    return F.linear(x, q.to(x.dtype)) * s.t().to(x.dtype)


def groups(x: Tensor, q: Tensor, s: Tensor, group: int) -> Tensor:
    """Dequantised by groups, which share a scale."""
    values = q.view(q.shape[0], -1, group).to(x.dtype) * s.to(x.dtype)[..., None]
    return F.linear(x, values.view(q.shape))


def dynamic(x: Tensor, q: Tensor, s: Tensor, group: int) -> Tensor:
    rows, scale = scaled(x, E4M3)
    return torch._scaled_mm(rows, q.t(), scale, s.t(), out_dtype=x.dtype)


HOW: dict[str, tuple[torch.dtype, Callable[..., Tensor]]] = {
    "int8": (torch.int8, int8),
    "int8-groups": (torch.int8, groups),
    "float8": (E4M3, int8),
    "float8-groups": (E4M3, groups),
    "float8-dynamic": (E4M3, dynamic),
}


class Quantised(Tensor):
    """A weight as values of few bits and scales, which `F.linear` takes."""

    values: Tensor
    scale: Tensor
    how: str
    group: int

    @staticmethod
    def __new__(cls, values: Tensor, scale: Tensor, how: str, group: int, dtype: torch.dtype) -> Quantised:
        return Tensor._make_wrapper_subclass(cls, values.shape, dtype=dtype, device=values.device)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, values: Tensor, scale: Tensor, how: str, group: int, dtype: torch.dtype) -> None:
        self.values_, self.scale_, self.how, self.group = values, scale, how, group

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Quantised({self.how}, {tuple(self.shape)})"

    @classmethod
    def of(cls, weight: Tensor, how: str, group: int = 32) -> Quantised:
        dtype = HOW[how][0]
        if how.endswith("groups"):
            values, scale = scaled(weight.view(weight.shape[0], -1, group), dtype)
            return cls(values.view(weight.shape), scale.squeeze(-1), how, group, weight.dtype)
        return cls(*scaled(weight, dtype), how, group, weight.dtype)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["values_", "scale_"], (self.how, self.group, self.dtype)

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], rest: Any, size: Any, stride: Any) -> Quantised:
        return cls(inner["values_"], inner["scale_"], *rest)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight, *bias = args
            y = HOW[weight.how][1](x, weight.values_, weight.scale_, weight.group)
            return y if not bias or bias[0] is None else y + bias[0]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            (own,) = args
            return cls(own.values_, own.scale_, own.how, own.group, own.dtype)
        raise NotImplementedError(func)


class Gated(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.gate = (torch.nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def model(how: str, width: int = 128) -> tuple[Gated, Gated]:
    """The model and itself in float64 before."""
    torch.manual_seed(0)
    made = Gated(width).bfloat16().eval()
    exact = deepcopy(made).double()
    for linear in (made.up, made.gate, made.down):
        weight = Quantised.of(linear.weight.detach(), how)
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    return made, exact


CASES = [pytest.param(how, marks=ONE_SCALE if how == "float8-dynamic" else ()) for how in HOW]


@pytest.mark.ci_cases("int8-groups-dynamic", "float8-static", "float8-dynamic-static")
@pytest.mark.parametrize("dynamic_sizes", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("how", CASES)
def test_one_graph_and_no_worse_than_eager(how: str, dynamic_sizes: bool) -> None:
    made, exact = model(how)
    torch._dynamo.reset()
    compiled = torch.compile(made, backend="litz", fullgraph=True, dynamic=dynamic_sizes)
    with torch.no_grad():
        for rows in (5, 1, 33) if dynamic_sizes else (1, 33):
            x = torch.randn(rows, 128).bfloat16()
            got, eager, wanted = compiled(x), made(x), exact(x.double())
            errors = [((y.double() - wanted).norm() / wanted.norm()).item() for y in (got, eager)]
            assert errors[0] <= 1.1 * errors[1] + 1e-3, (rows, errors)


@pytest.mark.ci_cases("int8-groups", "float8-dynamic")
@pytest.mark.parametrize("how", CASES)
def test_conversions_fuse(how: str) -> None:
    """On a GPU. Weights are converted by kernels that multiply, and nothing writes them out; an activation is quantised
    by one kernel, with what comes before it."""
    made, _ = model(how, 2048)
    x = torch.randn(2, 2048).bfloat16()

    def run(backend: Any) -> None:
        with torch.no_grad():
            torch.compile(made, backend=backend, fullgraph=True)(x)

    torch._dynamo.reset()
    (schedule,) = cuda_schedules(run)
    kinds = [type(step).__name__ for step in schedule.steps]
    if how == "float8-dynamic":
        assert kinds == ["Kernel", "Template", "Template", "Kernel", "Template"] + ["Kernel"] * (len(kinds) == 6), kinds
    else:
        assert "Template" not in kinds and kinds.count("KernelCall") == 2 and len(kinds) <= 3, kinds


# Training.


def cast_by_tensor(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    most = torch.finfo(dtype).max
    scale = most / x.abs().amax().double().clamp(min=1e-12)
    scale = scale.float()
    return (x.float() * scale).clamp(-most, most).to(dtype), scale.reciprocal()


class Float8Product(torch.autograd.Function):
    """x @ w.t() in float8, and both gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        (a, one), (b, other) = cast_by_tensor(x, E4M3), cast_by_tensor(w, E4M3)
        return torch._scaled_mm(a, b.t(), one, other, out_dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        (g, scale), (b, other), (a, one) = (
            cast_by_tensor(grads[0], E5M2),
            cast_by_tensor(w.t().contiguous(), E4M3),
            cast_by_tensor(x.t().contiguous(), E4M3),
        )
        turned = g.t().contiguous()
        return (
            torch._scaled_mm(g, b.t(), scale, other, out_dtype=x.dtype),
            torch._scaled_mm(turned, a.t(), scale, one, out_dtype=x.dtype),
        )


def test_training_in_float8() -> None:
    def loss(x: Tensor, w1: Tensor, w2: Tensor, product: Any) -> Tensor:
        return product(F.silu(product(x, w1)), w2).float().square().mean()

    def gradients(fn: Callable[..., Tensor], *given: Tensor) -> list[Tensor]:
        own = [t.clone().requires_grad_() for t in given]
        fn(*own).backward()
        return [t.grad for t in own]  # type: ignore[misc]

    torch.manual_seed(0)
    given = [torch.randn(64, 96).bfloat16(), torch.randn(128, 96).bfloat16() / 10, torch.randn(96, 128).bfloat16() / 11]
    in_float8 = lambda *t: loss(*t, product=Float8Product.apply)
    torch._dynamo.reset()
    got = gradients(torch.compile(in_float8, backend="litz", fullgraph=True), *given)
    eager = gradients(in_float8, *given)
    exact = gradients(lambda *t: loss(*t, product=F.linear), *(t.double() for t in given))
    for mine, theirs, wanted in zip(got, eager, exact, strict=True):
        errors = [((y.double() - wanted).norm() / wanted.norm()).item() for y in (mine, theirs)]
        assert errors[0] <= 1.05 * errors[1] + 1e-3 and errors[1] < 0.2, errors
