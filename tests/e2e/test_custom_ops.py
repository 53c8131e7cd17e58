"""Operators of the user: torch.library, with strides they ask for, and their own Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.compare import check, device_param, litz, same, t


@torch.library.custom_op("litz_test::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scale.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


scale.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("litz_test::increment_", mutates_args=("x",))
def increment_(x: torch.Tensor, by: torch.Tensor) -> None:
    x.add_(by)


@torch.library.custom_op("litz_test::swap_and_count_", mutates_args=("a", "b"))
def swap_and_count_(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)
    return torch.tensor(a.numel(), device=a.device)


@swap_and_count_.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=a.device)


@torch.library.custom_op("litz_test::several", mutates_args=())
def several(xs: list[torch.Tensor], k: int | None = None, name: str = "") -> tuple[list[torch.Tensor], torch.Tensor]:
    return [x + (k or 0) for x in xs], torch.stack([x.sum() for x in xs])


@several.register_fake
def _(xs: list[torch.Tensor], k: int | None = None, name: str = "") -> tuple[list[torch.Tensor], torch.Tensor]:
    return [torch.empty_like(x) for x in xs], xs[0].new_empty(len(xs))


@torch.library.custom_op("litz_test::chosen", mutates_args=())
def chosen(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@chosen.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


STRIDES: list[tuple[int, ...]] = []
"""What the ops below were called with."""


def _define(name: str, *tags: torch.Tag) -> Any:
    """An op that notes the strides of what it is called with."""
    lib = torch.library.Library("litz_test", "FRAGMENT")
    lib.define(f"{name}(Tensor x) -> Tensor", tags=tags)

    def run(x: torch.Tensor) -> torch.Tensor:
        STRIDES.append(x.stride())
        return x.clone(memory_format=torch.contiguous_format)

    lib.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"litz_test::{name}", lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device), lib=lib
    )
    return lib


LIBRARIES = [
    _define("exact", torch.Tag.needs_exact_strides),
    _define("fixed", torch.Tag.needs_fixed_stride_order),
    _define("dense", torch.Tag.needs_contiguous_strides),
    _define("flexible", torch.Tag.flexible_layout),
    _define("untagged"),
]


@device_param
def test_custom_op_forward_and_backward(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return scale(x.sin(), 2.5).cos()

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x = t(4, 5, device=device).requires_grad_()
        out = fn(x)
        out.sum().backward()
        return [out.detach(), x.grad]

    same(run(litz(f, fullgraph=True)), run(f))


@device_param
def test_custom_ops_that_write(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * 2
        increment_(z, y)
        increment_(z[1:], y)
        increment_(x, y + 1)
        increment_(x.t()[1], y[:1])
        count = swap_and_count_(x, z)
        return z + x, z.sin(), count + 1

    check(f, t(4, 5, device=device), t(5, device=device), fullgraph=True)
    check(f, t(5, 4, device=device).t(), t(5, device=device), fullgraph=True)


@device_param
def test_custom_ops_with_lists_and_data_dependent_sizes(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        (a, b), sums = several([x + 1, y.t()], 3, "name")
        found = chosen(x)
        return a * 2, b.sin(), sums + 1, found * 2, found.sum(), several([y])

    check(f, t(4, 5, device=device), t(3, 6, device=device), fullgraph=True)


@device_param
@pytest.mark.parametrize("name", ["exact", "fixed", "dense", "flexible", "untagged"])
def test_custom_ops_get_the_strides_they_ask_for(name: str, device: str) -> None:
    """As in eager, of inputs, of views and of what the graph computes; `dense` wants contiguous ones."""
    op = getattr(torch.ops.litz_test, name)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x * 2).transpose(0, 2)
        return (
            op(x.permute(2, 0, 1)),
            op(y),
            op(y[:, ::2]),
            op((x + 1).contiguous(memory_format=torch.contiguous_format)),
        )

    x = t(4, 6, 5, device=device)
    STRIDES.clear()
    expected = f(x)
    wanted = list(STRIDES)
    STRIDES.clear()
    actual = litz(f, fullgraph=True)(x)
    same(actual, expected)
    if name == "dense":
        assert [a.contiguous().stride() for a in expected] == STRIDES
    elif name == "exact":
        assert wanted == STRIDES
    elif name != "flexible":
        order = lambda stride: sorted(range(len(stride)), key=lambda n: -stride[n])
        assert [order(s) for s in STRIDES] == [order(s) for s in wanted]


HIDDEN = torch.library.Library("litz_hidden", "FRAGMENT")
for _name, _rule in {"turned": lambda x: x.t(), "same": lambda x: x}.items():
    HIDDEN.define(f"{_name}(Tensor x) -> Tensor")
    HIDDEN.impl(_name, _rule, "CompositeExplicitAutograd")
HIDDEN.define("halves(Tensor x) -> (Tensor, Tensor)")
HIDDEN.impl("halves", lambda x: (y := x * 2, y[:])[:2], "CompositeExplicitAutograd")


@pytest.mark.filterwarnings("ignore:.*custom operator")
def test_a_view_that_the_schema_hides() -> None:
    """The memory of the argument is used again while the result is read."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = torch.ops.litz_hidden.turned(x.sin() @ w)
        same = torch.ops.litz_hidden.same((x.cos() @ w).sigmoid() @ w)
        left, right = torch.ops.litz_hidden.halves(x @ w)
        again = (x * 2) @ w
        return turned + 1, (same + again) @ w, turned.sum() + same.sum(), left.exp() @ w + right

    x, w = torch.randn(32, 32), torch.randn(32, 32)
    compiled = litz(f)
    for _ in range(2):
        for ours, exact in zip(compiled(x, w), f(x.double(), w.double()), strict=True):
            torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=1e-3)
