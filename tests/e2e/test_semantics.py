"""What eager promises beyond plain values: writes seen elsewhere, aliases, NaN rules, integers, random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from support.compare import DEVICES, check, close

device_param = pytest.mark.parametrize("device", DEVICES)
INF, NAN = math.inf, math.nan


def t(*size: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(size) + len(size))
    return torch.randn(size, device=device).to(dtype)


# ------------------------------------------------------------------------------------------- writes to what is given


def add_to_input(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def write_a_view(x: torch.Tensor) -> torch.Tensor:
    x[1:3].mul_(3)
    x.t()[2] = 7
    return x.sum(0)


def write_overlapping_views(x: torch.Tensor) -> torch.Tensor:
    a, b = x[:-2], x[2:]
    a.add_(b * 1)
    b.sub_(a * 2)
    return a + b


def transpose_into_itself(x: torch.Tensor) -> None:
    x[:, :4].copy_(x[:4].t().clone())
    x[:, 4:] = x[4:, :].t().clone()


def transpose_a_square_into_itself(x: torch.Tensor) -> None:
    x[:4, :4].copy_(x[:4, :4].t() * 1.0)


def transpose_all_into_itself(x: torch.Tensor) -> torch.Tensor:
    x.copy_(x.t().clone())
    y = x.sin()
    x.copy_(y.t() + x)
    return y


def shift_in_place(x: torch.Tensor) -> None:
    x[1:] = x[:-1] * 1.0
    x[:, 1:] = x[:, :-1] + 1


def reverse_in_place(x: torch.Tensor) -> torch.Tensor:
    x.copy_(x.flip(0))
    x.copy_(x.roll(3, 1))
    return x.cumsum(0)


def read_old_and_new(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    old = x.sin()
    total = x.sum()
    x.mul_(total)
    return old, x.sin(), x.amax(1)


def write_twice(x: torch.Tensor) -> torch.Tensor:
    x.fill_(2)
    y = x + 1
    x.zero_()
    x.add_(y)
    return y


def softmax_into_input(x: torch.Tensor) -> None:
    x.copy_(torch.softmax(x, -1))


def matmul_into_input(x: torch.Tensor) -> torch.Tensor:
    y = x @ x
    x.copy_(y + x)
    return y @ x


def write_by_index(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([0, 3, 3, 5], device=x.device)
    x[rows] = 1.5
    x.index_add_(0, rows, x[:4].clone())
    x.masked_fill_(x > 2, -1)
    x.scatter_(1, rows[None, :], 9.0)
    return x[rows].sum(0)


def write_strided(x: torch.Tensor) -> torch.Tensor:
    windows = x.as_strided((4, 3), (8, 2), 1)
    windows.mul_(2)
    diagonal = x.as_strided((8,), (9,), 0)
    diagonal.fill_(1)
    return x.as_strided((7, 7), (9, 1), 1) + windows.sum()


def write_diagonal(x: torch.Tensor) -> torch.Tensor:
    x.diagonal().add_(5)
    torch.diagonal(x, 1).copy_(x[0, 1:])
    x.view(2, 4, 8)[1, :, ::2] = 0
    return x.unfold(0, 3, 2).sum(-1)


def write_columns_from_rows(x: torch.Tensor) -> None:
    x[:, 0] = x[0] * 1.0
    x[0] = x[:, 1] * 1.0
    x[:, ::2] = x[:, 1::2]
    x[::2, :] = x[1::2, :].flip(1)


MUTATIONS = [
    add_to_input,
    write_a_view,
    write_overlapping_views,
    transpose_into_itself,
    transpose_a_square_into_itself,
    transpose_all_into_itself,
    shift_in_place,
    reverse_in_place,
    read_old_and_new,
    write_twice,
    softmax_into_input,
    matmul_into_input,
    write_by_index,
    write_strided,
    write_diagonal,
    write_columns_from_rows,
]


@device_param
@pytest.mark.parametrize("fn", MUTATIONS)
def test_writes_to_an_input(fn: Callable[..., Any], device: str) -> None:
    check(fn, t(8, 8, device=device), options={"debug": True})


@device_param
@pytest.mark.parametrize("fn", [write_overlapping_views, shift_in_place, reverse_in_place, transpose_all_into_itself])
def test_writes_to_a_large_input(fn: Callable[..., Any], device: str) -> None:
    """Large enough for threads and blocks to run into each other, should a write not wait for the reads."""
    check(fn, t(600, 600, device=device), options={"debug": True})


@device_param
def test_writes_to_a_strided_input(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(x.sum(0))
        x[0] = 3
        return x.relu()

    for make in (torch.t, lambda x: x[1:, ::2], lambda x: x.flip(0)[2:4], lambda x: x[None].transpose(0, 2)):
        ours, theirs = t(8, 8, device=device), t(8, 8, device=device)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(f, backend="litz")(make(ours)), f(make(theirs)))
        torch.testing.assert_close(ours, theirs)


@device_param
def test_inputs_that_share_memory(device: str) -> None:
    """Two arguments are windows on one buffer; what is written through one is read through the other."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        c = a + b
        b.add_(c.sum())
        return c + b

    def windows(x: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        if kind == "same":
            return x, x
        if kind == "transposed":
            return x, x.t()
        if kind == "overlapping":
            return x[:6], x[2:]
        return x[:4].view(-1), x[4:].view(-1)

    for kind in ("same", "transposed", "overlapping", "apart"):
        torch._dynamo.reset()
        ours, theirs = t(8, 8, device=device), t(8, 8, device=device)
        actual = torch.compile(f, backend="litz")(*windows(ours, kind))
        torch.testing.assert_close(actual, f(*windows(theirs, kind)), msg=kind)
        torch.testing.assert_close(ours, theirs, msg=kind)


@device_param
def test_outputs_that_are_views_of_inputs(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(1)
        return x[1:], x.t(), y.view(-1), y, x.as_strided((3, 3), (2, 8), 1), x.detach(), (x + 1)[2:]

    torch._dynamo.reset()
    x, y = t(8, 8, device=device), t(4, 4, device=device)
    x2, y2 = x.clone(), y.clone()
    ours, theirs = torch.compile(f, backend="litz")(x, y), f(x2, y2)
    close(ours, theirs, theirs)
    assert ours[3] is y
    for got, want in zip(ours, theirs, strict=True):
        assert got.storage_offset() == want.storage_offset()
        assert [got.data_ptr() - b.data_ptr() == 0 for b in (x, y)] == [
            want.data_ptr() == b.data_ptr() for b in (x2, y2)
        ]
    ours[1].zero_()
    assert float(x.abs().sum()) == 0


@device_param
def test_resize(device: str) -> None:
    def shrink(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.resize_(4, 4)
        return y + 1

    def out_of(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(0, device=x.device)
        torch.add(x, 1, out=out)
        return out * 2

    check(shrink, t(8, 8, device=device))
    check(out_of, t(8, 8, device=device))


@device_param
def test_set_data_and_storages(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x.clone()
        z.data = y * 2
        z.data.add_(1)
        return z + x

    check(f, t(4, 4, device=device), t(4, 4, device=device))


# ------------------------------------------------------------------------------------------------------------ autograd


@device_param
def test_in_place_under_autograd(device: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        y = x * w
        y.relu_()
        y = y * 2
        y[1:].mul_(w[1:])
        y.t()[0].add_(3)
        buffer.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return (y * buffer).sum()

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x, w = (t(5, 6, device=device).add(k).requires_grad_() for k in range(2))
        buffer = torch.ones(6, device=device)
        loss = fn(x, w, buffer)
        loss.backward()
        return [loss.detach(), x.grad, w.grad, buffer]

    torch._dynamo.reset()
    for got, want in zip(run(torch.compile(f, backend="litz")), run(f), strict=True):
        torch.testing.assert_close(got, want)


@device_param
def test_in_place_on_a_graph_input_that_has_a_history(device: str) -> None:
    def f(y: torch.Tensor) -> torch.Tensor:
        y.mul_(2)
        y[0].sin_()
        return y.exp()

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x = t(4, 5, device=device).requires_grad_()
        y = x * 0.5
        out = fn(y)
        (out.sum() + y.sum()).backward()
        return [out.detach(), y.detach(), x.grad]

    torch._dynamo.reset()
    for got, want in zip(run(torch.compile(f, backend="litz")), run(f), strict=True):
        torch.testing.assert_close(got, want)


@device_param
def test_in_place_on_a_leaf_without_gradients(device: str) -> None:
    def step(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad * 0.1)
            parameter.grad.zero_()

    def run(fn: Callable[..., Any]) -> torch.Tensor:
        p = t(4, 5, device=device).requires_grad_()
        p.square().sum().backward()
        fn(p)
        assert p.requires_grad and p.is_leaf
        assert float(p.grad.abs().sum()) == 0
        return p.detach()

    torch._dynamo.reset()
    torch.testing.assert_close(run(torch.compile(step, backend="litz")), run(step))


@device_param
def test_no_grad_and_inference_mode(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        with torch.no_grad():
            z = y.sin()
        with torch.enable_grad():
            w = y.cos()
        return y, z, w, y.detach()

    x = t(4, 5, device=device).requires_grad_()
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="litz")
        with mode():
            ours, theirs = compiled(x), f(x)
        for got, want in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, want)
            assert got.requires_grad == want.requires_grad
            assert got.is_inference() == want.is_inference()


@device_param
def test_inference_tensors_may_be_written(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    torch._dynamo.reset()
    with torch.inference_mode():
        ours, theirs = t(4, device=device), t(4, device=device)
        torch.testing.assert_close(torch.compile(f, backend="litz")(ours), f(theirs))
        torch.testing.assert_close(ours, theirs)


@device_param
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_inside_and_outside(dtype: torch.dtype, device: str) -> None:
    layer = torch.nn.Linear(16, 8).to(device)

    def inside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(device, dtype=dtype):
            y = layer(x)
            with torch.autocast(device, enabled=False):
                z = y.float() @ layer.weight
            return y, z, F.softmax(y, -1), y + x[:, :8], F.layer_norm(y, (8,))

    x = t(4, 16, device=device)
    torch._dynamo.reset()
    ours, theirs = torch.compile(inside, backend="litz")(x), inside(x)
    for got, want in zip(ours, theirs, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.float(), want.float(), rtol=3e-2, atol=3e-2)
    ours[1].sum().backward()
    gradient, layer.weight.grad = layer.weight.grad, None
    theirs[1].sum().backward()
    assert gradient.dtype == layer.weight.grad.dtype
    torch.testing.assert_close(gradient, layer.weight.grad, rtol=3e-2, atol=3e-2)


# ------------------------------------------------------------------------------------------------------ random numbers

N = 20_000


def draw_rand(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(N, device=x.device)


def draw_rand_like(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x.expand(N, 1))


def draw_randn(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(N, device=x.device) * 2 + 1


def draw_normal(x: torch.Tensor) -> torch.Tensor:
    return torch.normal(x.new_full((N,), 1.0), 2.0)


def draw_normal_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(N).normal_(1.0, 2.0)


def draw_randint(x: torch.Tensor) -> torch.Tensor:
    return torch.randint(-3, 4, (N,), device=x.device)


def draw_bernoulli(x: torch.Tensor) -> torch.Tensor:
    return torch.bernoulli(x.new_full((N,), 0.25))


def draw_bernoulli_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(N).bernoulli_(0.25)


def draw_multinomial(x: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(torch.tensor([0.5, 0.25, 0.25], device=x.device), N, replacement=True)


def draw_exponential(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(N).exponential_(0.5)


def draw_uniform(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(N).uniform_(-2, 4)


def draw_dropout(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.new_ones(N), 0.25)


def draw_alpha_dropout(x: torch.Tensor) -> torch.Tensor:
    return F.alpha_dropout(x.new_ones(N), 0.25)


# (function, mean, variance, least value, greatest value)
DRAWS: list[tuple[Callable[..., Any], float, float, float, float]] = [
    (draw_rand, 1 / 2, 1 / 12, 0, 1),
    (draw_rand_like, 1 / 2, 1 / 12, 0, 1),
    (draw_randn, 1, 4, -INF, INF),
    (draw_normal, 1, 4, -INF, INF),
    (draw_normal_in_place, 1, 4, -INF, INF),
    (draw_randint, 0, 4, -3, 3),
    (draw_bernoulli, 1 / 4, 3 / 16, 0, 1),
    (draw_bernoulli_in_place, 1 / 4, 3 / 16, 0, 1),
    (draw_multinomial, 3 / 4, 11 / 16, 0, 2),
    (draw_exponential, 2, 4, 0, INF),
    (draw_uniform, 1, 3, -2, 4),
    (draw_dropout, 1, 1 / 3, 0, 4 / 3 + 1e-6),
]


@device_param
@pytest.mark.parametrize(("fn", "mean", "variance", "least", "most"), DRAWS)
def test_random_numbers(
    fn: Callable[..., Any], mean: float, variance: float, least: float, most: float, device: str
) -> None:
    torch._dynamo.reset()
    x = torch.zeros(1, device=device)
    compiled = torch.compile(fn, backend="litz")
    torch.manual_seed(11)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(11)
    assert torch.equal(compiled(x), first), "the same seed draws the same numbers"
    assert not torch.equal(first, second)
    expected = fn(x)
    assert (first.dtype, first.shape, first.stride()) == (expected.dtype, expected.shape, expected.stride())
    values = first.double()
    assert least <= float(values.min()) and float(values.max()) <= most
    error = math.sqrt(variance / N)
    assert abs(float(values.mean()) - mean) < 5 * error
    assert abs(float(values.var()) / variance - 1) < 0.12
    neighbours = torch.corrcoef(torch.stack([values.flatten()[:-1], values.flatten()[1:]]))[0, 1]
    assert abs(float(neighbours)) < 0.05


@device_param
def test_two_draws_in_one_graph_differ(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), torch.rand_like(x), F.dropout(x, 0.5), F.dropout(x, 0.5)

    torch._dynamo.reset()
    a, b, c, d = torch.compile(f, backend="litz")(torch.ones(100, device=device))
    assert not torch.equal(a, b) and not torch.equal(c, d)


@device_param
def test_random_numbers_and_eager_share_the_generator(device: str) -> None:
    """Compiled code moves the generator on, and a seed set in between counts."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.rand_like(x) + x, backend="litz")
    x = torch.zeros(100, device=device)
    torch.manual_seed(5)
    before = torch.rand(3, device=device)
    compiled(x)
    after = torch.rand(3, device=device)
    assert not torch.equal(before, after)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3, device=device), before)


@device_param
def test_permutations_and_sampling(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.randperm(50, device=x.device), torch.multinomial(x, 4)

    torch._dynamo.reset()
    order, chosen = torch.compile(f, backend="litz")(torch.tensor([0.1, 0.2, 0.0, 0.3, 0.4], device=device))
    assert sorted(order.tolist()) == list(range(50))
    assert sorted(chosen.tolist()) == [0, 1, 3, 4]


@device_param
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_dropout_is_the_same(device: str, reentrant: bool) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5) * 3

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=reentrant) * 2

    torch._dynamo.reset()
    x = torch.full((50, 40), 0.7, device=device, requires_grad=True)
    out = torch.compile(f, backend="litz")(x)
    out.sum().backward()
    mask = out.detach() / (out.detach().max())
    torch.testing.assert_close(x.grad, mask.round() * 12 * math.cos(0.7), rtol=1e-5, atol=1e-5)
    assert 0.4 < float(mask.mean()) < 0.6


@device_param
def test_a_recomputed_compiled_function_draws_the_same(device: str) -> None:
    """Eager's checkpoint around compiled code: the generator is set back before the forward runs again."""
    torch._dynamo.reset()
    block = torch.compile(lambda x: F.dropout(x.sin(), 0.5) * 3, backend="litz")
    x = torch.full((50, 40), 0.7, device=device, requires_grad=True)
    out = checkpoint(block, x, use_reentrant=False)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach() / math.tan(0.7), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------- NaN, infinity, signed zero

SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, -2.5, 0.5, 1.5]


def special(device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(SPECIAL, device=device, dtype=dtype)


def nan_pairs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = x[:, None], x[None, :]
    compared = (a < b, a <= b, a == b, a != b, a > b, a >= b)
    extremes = (torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), torch.fmin(a, b))
    return (*compared, *extremes, torch.where(a > b, a, b), torch.copysign(a, b), a - b, a * b, a / b)


def nan_points(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    clamped = (x.clamp(-1, 1), x.clamp(min=0.25), x.clamp(max=INF), torch.clamp(x, x.flip(0), x), x.clamp(2, 1))
    relu = (x.relu(), F.relu6(x), F.hardtanh(x), F.leaky_relu(x), F.gelu(x), F.softplus(x), x.sigmoid(), x.tanh())
    signs = (x.sign(), torch.signbit(x), x.abs(), x.neg(), x.isnan(), x.isinf(), x.isfinite(), torch.sgn(x))
    rounded = (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac())
    numbers = (x.nan_to_num(), x.nan_to_num(1.0, 2.0, -3.0), x.sqrt(), x.rsqrt(), x.log(), x.exp(), x.log1p())
    return (*clamped, *relu, *signs, *rounded, *numbers, x.bool(), x.reciprocal(), x.expm1(), x.erf(), x**2, x**0.5)


def nan_reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.stack([x, x.flip(0), x.nan_to_num(0.25, 5.0, -5.0) % 7, torch.full_like(x, -INF)])
    extremes = (y.amax(1), y.amin(1), y.argmax(1), y.argmin(1), *y.max(1), *y.min(1), y.max(), y.min(), y.argmax())
    sums = (y.sum(1), y.nansum(1), y.mean(1), y.prod(1), y.any(1), y.all(1), y.logsumexp(1), y.softmax(1))
    ordered = (
        *torch.sort(y, dim=1),
        *torch.sort(y, stable=True, dim=1, descending=True),
        torch.argsort(y, dim=1, stable=True),
        *y.topk(3, 1),
    )
    scans = (y.cumsum(1), y.clamp(-2, 2).cumprod(1), *y.cummax(1), *y.cummin(1))
    return (*extremes, *sums, *ordered, *scans, y.nanmedian(1).values, *y.aminmax(dim=1))


def signed_zeros(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x * 0.0
    made = (z, -z, z.abs(), z.round(), (z - 0.25).round(), (z - 0.25).ceil(), z.trunc(), z + 0.0, z - 0.0, z.sqrt())
    more = (torch.copysign(z, x), z.nan_to_num(), torch.where(x > 0, z, -z), z.float(), (-z).neg(), z.sin())
    return tuple(1 / m for m in (*made, *more)) + tuple(torch.signbit(m) for m in (*made, *more))


@device_param
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fn", [nan_pairs, nan_points])
def test_nan_and_infinity(fn: Callable[..., Any], dtype: torch.dtype, device: str) -> None:
    check(fn, special(device, dtype))


@device_param
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_infinity_reduced(dtype: torch.dtype, device: str) -> None:
    check(nan_reductions, special(device, dtype))


@device_param
def test_signed_zeros(device: str) -> None:
    check(signed_zeros, torch.tensor([1.0, -1.0, 2.0, -3.5], device=device))


@device_param
def test_ties(device: str) -> None:
    """The first of equal elements wins in argmax and argmin along a dimension, and stable sorts keep order."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.argmax(1), x.argmin(1), x.argmax(0), x.max(1).values, *torch.sort(x, stable=True, dim=1), x.argmax()

    x = torch.tensor([[1, 3, 3, 0, 0], [2, 2, 2, 2, 2], [0, -1, -1, 0, -1]], device=device)
    check(f, x)
    check(f, x.float())


# ------------------------------------------------------------------------------------------------------------ integers

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def integers(dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    info = torch.iinfo(dtype)
    values = [info.min, info.min + 1, -7, -3, -1, 0, 1, 2, 3, 7, info.max - 1, info.max]
    values = [v for v in values if info.min <= v <= info.max]
    return (torch.tensor(v, device=device, dtype=dtype) for v in (values, [v for v in values if v]))  # type: ignore


def integer_division(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = a[1:, None], b[1:-1][None, :]  # the least number by -1 has no quotient
    quotients = (a // b, torch.div(a, b, rounding_mode="trunc"), torch.div(a, b, rounding_mode="floor"))
    scalars = (a // 3, a % 3, torch.div(a, 3, rounding_mode="trunc"), torch.remainder(7, b), torch.fmod(a, 3))
    return (*quotients, a % b, torch.fmod(a, b), torch.remainder(a, b), *scalars, a / b)


def integer_overflow(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = a[:, None], b[None, :]
    same = (a + b, a - b, a * b, -a, a.abs(), a + 100, a * 3, a.square(), torch.maximum(a, b), a.clamp(1, 5), a.sign())
    sums = (
        a.sum(),
        a.sum(dtype=torch.int32),
        a.prod(0),
        a.cumsum(0),
        b.amax(1),
        b.argmin(1),
        a.any(),
        (b & 7).float().mean(),
    )
    return (*same, *sums, (a + b) * 2 - b, a.to(torch.int8), a.to(torch.uint8), a.to(torch.bool), a.to(torch.int64))


def integer_bits(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = a[:, None], b[None, :]
    shift = (b & 7) & (torch.iinfo(b.dtype).bits - 1)
    logic = (a & b, a | b, a ^ b, ~a, a & 3, a | 1, a ^ -1 if a.dtype != torch.uint8 else a ^ 255)
    return (*logic, a << shift, a >> shift, a >> 1, a << 2, a == b, a < b, a.bool() & b.bool(), ~(a > 2))


@device_param
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: torch.dtype, device: str) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*integer_division(a, b), *integer_overflow(a, b), *integer_bits(a, b))

    check(f, *integers(dtype, device))


@device_param
def test_unsigned_integers_of_more_than_a_byte(device: str) -> None:
    """Eager can do little with these."""

    def f(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            a.to(torch.int64) + 1,
            a.to(torch.float32),
            a.view(-1, 2).t().clone(),
            torch.cat([a, a])[1:],
            a.float().to(a.dtype),
        )

    for dtype in (torch.uint16, torch.uint32):
        top = torch.iinfo(dtype).max
        values = torch.tensor([0, 1, 7, top - 1, top, 1000], dtype=torch.int64, device=device).to(dtype)
        check(f, values)


@device_param
def test_type_promotion(device: str) -> None:
    dtypes = [
        torch.bool,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ]

    def f(tensors: list[torch.Tensor], scalars: list[torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for a in tensors:
            found += [a + 2, a * 2.5, a + True, a / 2, a == 2.5, torch.add(a, 1, alpha=1)]
            found += [a + b for b in tensors] + [a * s for s in scalars] + [torch.where(a > 0, a, 0.5)]
            found += [a.sum(), a.to(torch.float32).mean(), torch.cat([a, tensors[0]]), a.exp(), a.sum(0, keepdim=True)]
        return found

    tensors = [torch.tensor([0, 1, 3], device=device).to(d) for d in dtypes]
    scalars = [torch.tensor(3, device=device).to(d) for d in dtypes]
    check(f, tensors, scalars)


@device_param
def test_conversions_between_types(device: str) -> None:
    def f(x: torch.Tensor, k: torch.Tensor) -> list[torch.Tensor]:
        whole = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]
        real = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
        return [x.to(d) for d in whole] + [k.to(d) for d in real + whole] + [x.to(d).to(torch.float32) for d in real]

    x = torch.tensor([0.0, 0.5, -0.5, 1.5, -1.9, 100.7, 3.0], device=device)
    check(f, x, torch.tensor([0, 1, -1, 127, 128, 255, 70000, 2**31 + 5, -(2**40)], device=device))


@device_param
def test_reinterpreted_bits(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bits = x.view(torch.int32)
        return (
            bits & 0x7FFFFF,
            (bits ^ (1 << 31)).view(torch.float32),
            (x * 2).view(torch.int32) >> 3,
            x.view(torch.int16),
        )

    check(f, t(4, 6, device=device))


@device_param
def test_float64_keeps_its_digits(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * (1 + 1e-14) + 1e-13
        filled = torch.where(y > 1, torch.full_like(y, 0.1), y * 0.3) + y.new_full((), 1e-15)
        reduced = (torch.softmax(y, -1), F.layer_norm(y, (9,)), y.std(0), y.cumsum(1))
        return y, y.sin(), y.exp(), y.erf(), y**0.3, filled, *reduced

    check(f, t(7, 9, device=device).double().abs())


# -------------------------------------------------------------------------------------------------------- empty tensors


@device_param
def test_empty_tensors(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = (torch.cat([x, y]), torch.cat([x, x], 1), torch.stack([x, x]), y[:0] @ w, y @ w[:, :0])
        reduced = (
            x.sum(),
            x.sum(0),
            x.mean(0),
            x.prod(),
            x.any(),
            x.all(),
            x.amax(1),
            x.std(0),
            x.norm(),
            x.logsumexp(0),
        )
        moved = (
            x.t() + 1,
            x.reshape(0),
            x.expand(2, 0, 3),
            x.repeat(2, 2),
            F.pad(x, (1, 1)),
            x[:, :0].sum(1),
            x.flip(0),
        )
        scanned = (x.cumsum(0), x.cumsum(1), x.softmax(1), x.softmax(0), x.sort(0).values, y[:0].argmax(1), x.tril())
        zero_k = (y[:, :0] @ w[:0], F.linear(x, w.t()), x.new_zeros(0, 3).addmm(x[:, :0], w[:0, :3]))
        return (*joined, *reduced, *moved, *scanned, *zero_k)

    check(f, t(0, 3, device=device), t(4, 3, device=device), t(3, 5, device=device))


@device_param
def test_empty_tensors_under_autograd(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x * 2, (3,)).sum() + F.gelu(x).mean(1).sum() + x.softmax(1).sum()

    torch._dynamo.reset()
    x = torch.zeros(0, 3, device=device, requires_grad=True)
    out = torch.compile(f, backend="litz")(x)
    out.backward()
    assert float(out) == 0 and x.grad.shape == (0, 3)
