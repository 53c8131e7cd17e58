"""Tensors that are not what their strides say, wherever one comes in: right, or refused by name, and nobody dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from litz.errors import ForeignResultError, MissingMemoryError


def t(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


Z = torch.view_as_complex(t(4, 5, 2))


def negative() -> torch.Tensor:
    """With the negative bit, strides (10, 2) and an offset of 1."""
    return Z.clone().conj().imag


def dense_negative() -> torch.Tensor:
    return t(4, 5)._neg_view()


def conjugate() -> torch.Tensor:
    return Z.clone().conj()


def zero() -> torch.Tensor:
    return torch._efficientzerotensor((4, 5))


def freed(offset: int = 0) -> torch.Tensor:
    whole = t(1000 + 20)
    part = whole[offset : offset + 20].view(4, 5)
    whole.untyped_storage().resize_(0)
    return part


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found.shape == expected.shape
        torch.testing.assert_close(found.resolve_neg().resolve_conj(), expected.resolve_neg().resolve_conj())


def as_eager(f: Callable[..., Any], *makes: Callable[[], torch.Tensor], **options: Any) -> None:
    torch._dynamo.reset()
    same(torch.compile(f, backend="litz", **options)(*(make() for make in makes)), f(*(make() for make in makes)))


def many_uses(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """By kernels, by the library, through views, as it is."""
    return a * 2 + 1, a.t() @ a, torch.sort(a[1:])[0], a.t(), a[1:, ::2].sum(0), a


@pytest.mark.each_value
@pytest.mark.parametrize("make", [negative, dense_negative])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_negative_bit(make: Callable[[], torch.Tensor], dynamic: bool) -> None:
    as_eager(many_uses, make, dynamic=dynamic)


def test_bits_that_a_graph_makes() -> None:
    def f(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = z.conj()
        return y.imag * 2, y.real + y.imag, y.imag, y, (z * 2).conj().imag, torch.sort(y.imag)[0]

    as_eager(f, lambda: Z)
    as_eager(f, conjugate)


@pytest.mark.parametrize("make", [negative, conjugate])
def test_tensors_with_a_bit_are_written(make: Callable[[], torch.Tensor]) -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        a.mul_(2).add_(1)
        return a + 1

    torch._dynamo.reset()
    ours, theirs = make(), make()
    same(torch.compile(f, backend="litz")(ours), f(theirs))
    same(ours, theirs)


def test_torchs_zero_tensor() -> None:
    as_eager(lambda a, b: (a + b, a * b + 1, (a + 1).sum(), a @ b.t()), zero, lambda: t(4, 5))


def test_after_an_ordinary_call_and_before_one() -> None:
    compiled = torch.compile(lambda a: a * 2 + 1, backend="litz")
    for make in (lambda: t(4, 5), negative, zero, dense_negative, lambda: t(4, 5)):
        same(compiled(make()), make() * 2 + 1)


def test_parameters_and_buffers() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(negative())
            self.scale = torch.nn.Buffer(dense_negative())

        def forward(self, x: list[torch.Tensor]) -> torch.Tensor:
            return torch.nn.functional.linear(x[0], self.weight) + (x[0] * self.scale).sum()

    model = Model()
    for options in ({}, {"freezing": True}):
        torch._dynamo.reset()
        with torch.no_grad():
            same(torch.compile(model, backend="litz", options=options)([negative()]), model([negative()]))


def gradient(f: Callable[..., torch.Tensor], given: torch.Tensor | None, *others: torch.Tensor) -> torch.Tensor:
    w = t(4, 5).requires_grad_()
    out = f(w, *others)
    out.backward(torch.ones_like(out) if given is None else given)
    assert w.grad is not None
    return w.grad


def test_gradients_that_are_handed_to_backward() -> None:
    def f(w: torch.Tensor) -> torch.Tensor:
        return (w * w).sin()

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="litz")
    for make in (lambda: t(4, 5), negative, dense_negative, zero, lambda: t(5, 4).t(), lambda: t(1).expand(4, 5)):
        same(gradient(compiled, make()), gradient(f, make()))
    with pytest.raises(MissingMemoryError, match="tangents_1"):
        gradient(compiled, freed())


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("conjugated", [False, True])
def test_gradients_of_complex_numbers(conjugated: bool, dynamic: bool) -> None:
    """The backward was traced with a gradient that is conjugated as the result is, and torch refused the other."""

    def f(w: torch.Tensor) -> torch.Tensor:
        z = torch.complex(w, 2 * w)
        return z.conj() if conjugated else z

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="litz", dynamic=dynamic)
    for make in (Z.clone, conjugate, lambda: Z.clone()._neg_view(), lambda: Z[:1, :1].conj().expand(4, 5)):
        same(gradient(compiled, make()), gradient(f, make()))


def test_a_copy_of_a_conjugated_tensor_is_conjugated() -> None:
    """A copy that litz made for the strides of a view was not, and `view_as_real` of its conjugate was refused."""

    def f(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        z = torch.complex(w, v).conj().view(-1, 1).conj()
        return torch.cat([z.abs(), z.angle()])

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="litz", dynamic=True)
    for size in ((4, 4), (6, 6)):
        w, v = t(*size).requires_grad_(), t(*size) + 1
        found, expected = (torch.autograd.grad(function(w, v).sum(), w)[0] for function in (compiled, f))
        torch.testing.assert_close(found, expected)


def product(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (w * v).sin()


@pytest.mark.parametrize("make", [negative, dense_negative, zero])
def test_saved_tensors(make: Callable[[], torch.Tensor]) -> None:
    same(gradient(torch.compile(product, backend="litz"), None, make()), gradient(product, None, make()))


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_saved_tensor_hooks_unpack(dynamic: bool) -> None:
    unpack: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "as it was": lambda x: x,
        "other strides": lambda x: x.t().contiguous().t(),
        "another type": lambda x: x.double(),
        "a bit": lambda x: (-x)._neg_view(),
    }
    torch._dynamo.reset()
    compiled = torch.compile(product, backend="litz", dynamic=dynamic)
    for name, change in unpack.items():
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, change):
            found, expected = (gradient(f, None, t(4, 5)) for f in (compiled, product))
        torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}")
    with torch.autograd.graph.save_on_cpu():
        same(gradient(compiled, None, t(5, 4).t()), gradient(product, None, t(5, 4).t()))
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x[:2]),
        pytest.raises(RuntimeError, match="unpacked sizes"),
    ):
        gradient(compiled, None, t(4, 5))


@pytest.mark.parametrize("offset", [0, 700])
def test_memory_that_was_freed(offset: int) -> None:
    def write(a: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * 2

    for f in (lambda a: a * 2 + 1, write):
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="litz")
        compiled(t(4, 5))
        with pytest.raises(MissingMemoryError, match=r"its storage was freed or resized(.|\n)*arg0_1, on cpu"):
            compiled(freed(offset))
        same(compiled(t(4, 5)), f(t(4, 5)))


def test_memory_that_is_freed_between_forward_and_backward() -> None:
    v = t(4, 5)
    out = torch.compile(product, backend="litz")(t(4, 5).requires_grad_(), v)
    v.untyped_storage().resize_(0)
    with pytest.raises(MissingMemoryError, match="primals_2"):
        out.sum().backward()


def test_empty_tensors_have_no_memory_and_need_none() -> None:
    compiled = torch.compile(lambda a: a * 2 + 1, backend="litz", dynamic=True)
    for rows in (4, 0, 3, 0):
        assert torch.equal(compiled(t(rows, 5)), t(rows, 5) * 2 + 1)


@pytest.fixture(scope="module")
def foreign() -> Iterator[list[Callable[[torch.Tensor], Any]]]:
    """An op whose kernel the test sets, and whose fake kernel says a tensor like the one it is given."""
    kernel: list[Callable[[torch.Tensor], Any]] = []
    library = torch.library.Library("litz_odd", "DEF")
    library.define("call(Tensor x) -> Tensor")
    library.impl("call", lambda x: kernel[0](x), "CPU")
    library.impl("call", torch.empty_like, "Meta")
    torch._dynamo.reset()
    yield kernel
    library._destroy()


def use(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.ops.litz_odd.call(x + 1)
    return y, y * 2


@pytest.mark.parametrize(
    "kernel",
    [
        lambda x: x.clone(),
        lambda x: (-x)._neg_view(),
        lambda x: torch._efficientzerotensor(x.shape),
        lambda x: x.t().contiguous().t(),
        lambda x: x[:1].clone().expand(4, 5),
    ],
    ids=["plain", "negative", "zero", "strides", "expanded"],
)
def test_what_a_custom_op_returns(foreign: list[Callable[[torch.Tensor], Any]], kernel: Callable[..., Any]) -> None:
    foreign[:] = [kernel]
    same(torch.compile(use, backend="litz")(t(4, 5)), use(t(4, 5)))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda x: x.half(), r"torch.float16 \[4, 5\] on cpu, where its fake kernel says torch.float32 \[4, 5\]"),
        (lambda x: x[:2].clone(), r"torch.float32 \[2, 5\]"),
        (lambda x: x.to("meta"), r"on meta, where"),
        (lambda x: x.to_sparse(), "a tensor of torch.sparse_coo"),
    ],
    ids=["dtype", "size", "device", "layout"],
)
def test_what_a_custom_op_may_not_return(
    foreign: list[Callable[[torch.Tensor], Any]], kernel: Callable[..., Any], message: str
) -> None:
    foreign[:] = [kernel]
    with pytest.raises(ForeignResultError, match=f"litz_odd.call.default returned (.*){message}"):
        torch.compile(use, backend="litz")(t(4, 5))
