"""Dynamic shapes: one compile for many sizes, sizes that only a run finds out, and sizes used as values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from litz import report as reports
from support.compare import DEVICES, close, device_param, t


def run_all(
    fn: Callable[..., Any], calls: Iterable[tuple[Any, ...]], compiles: int = 1, backward: bool = False, **options: Any
) -> None:
    """`fn` compiled once with dynamic=True, or `compiles` times, equals eager on every one of `calls`."""
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", **{"dynamic": True, "fullgraph": True, **options})
    with reports.collect() as collected:
        for args in calls:
            ours, theirs, exact = (_copies(args, backward, double) for double in (False, False, True))
            actual, expected, judge = compiled(*ours), fn(*theirs), fn(*exact)
            close(actual, expected, judge, tolerance=4.0)
            if backward:
                for result in (actual, expected, judge):
                    sum((leaf * 0.5).sin().sum() for leaf in tree_leaves(result) if leaf.requires_grad).backward()
                gradients = [[a.grad for a in tree_leaves(x) if _float(a)] for x in (ours, theirs, exact)]
                close(*gradients, tolerance=8.0)  # type: ignore[misc]
    graphs = len(collected)
    assert graphs == compiles * (2 if backward else 1), f"{graphs} graphs were compiled"


def _float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _copies(args: tuple[Any, ...], backward: bool, double: bool) -> tuple[Any, ...]:
    def fresh(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
        copy = copy.double() if double and _float(copy) else copy
        return copy.requires_grad_(backward and _float(copy))

    return tuple(fresh(value) for value in args)


SIZES = [(4, 6), (7, 16), (33, 5), (64, 130)]
"""Rows and columns of the calls: small, not multiples of a vector, and more than one block."""


# ------------------------------------------------------------------------------------------- one compile, many sizes


def points(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin() * 2 + x.mean(), x.relu()


def reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(0), x.mean(1), x.amax((0, 1)), x.var(0), x.logsumexp(1), x.norm(), x.argmax(1), x.prod(1)


def softmax(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.softmax(1), x.log_softmax(0)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],)) + x


def cat_and_split(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.cat([x, x * 2, x[1:]], 0)
    first, rest = y.split([x.shape[0], y.shape[0] - x.shape[0]])
    return y, first + 1, rest * 3, torch.stack([x, x]).sum(0), *x.chunk(2, 1)


def reshape(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, columns = x.shape
    return (
        x.reshape(-1) + 1,
        x.t().contiguous().view(rows, columns) * 2,
        x.view(1, rows, 1, columns).expand(3, -1, 2, -1).sum(2),
    )


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        x[1:, ::2] + 1,
        x.flip(0) * x,
        x.roll(1, 1).sin(),
        F.pad(x, (1, 2, 0, 3), value=0.5),
        x.tril(),
        x[-1] * x[:, :1],
    )


def scans(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.cumsum(0), x.cumsum(1), x.flatten().cumsum(0)


def sizes_as_values(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, columns = x.shape
    return x * rows, x / columns**0.5, x + rows // 2 + columns % 3, torch.full((rows, 2), columns, device=x.device)


def matmuls(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x @ x.t() + 1, F.linear(x.t(), x.t()), torch.bmm(x[None], x.t()[None]).relu()


def indexing(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    order = torch.arange(x.shape[0], device=x.device).flip(0)
    return x[order] * 2, x.gather(0, order[:, None].expand_as(x)), x.index_select(0, order).sum(1), x[:, -2]


def attention(x: torch.Tensor) -> torch.Tensor:
    q = x[None, None]
    return F.scaled_dot_product_attention(q, q, q) + 1


@pytest.mark.ci_cases("views-cpu", "scans-cpu", "cat_and_split-cpu", "indexing-cpu", "softmax-cpu")
@device_param
@pytest.mark.parametrize("fn", [points, softmax, layer_norm, reshape, views, scans, matmuls, cat_and_split, indexing])
def test_one_compile_serves_all_sizes_forward_and_backward(fn: Callable[..., Any], device: str) -> None:
    run_all(fn, [(t(*size, device=device),) for size in SIZES], backward=True)


@device_param
@pytest.mark.parametrize("fn", [reductions, sizes_as_values, attention])
def test_one_compile_serves_all_sizes(fn: Callable[..., Any], device: str) -> None:
    # On CUDA torch chooses an attention kernel by whether the last size is a multiple of 8, and guards on that.
    sizes = [(4, 8), (7, 16), (33, 32), (64, 64)] if fn is attention else SIZES
    run_all(fn, [(t(*size, device=device),) for size in sizes])


@device_param
def test_creation(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, columns = x.shape
        position = torch.arange(rows, device=x.device)
        ones = torch.ones(columns, rows, device=x.device)
        eye = torch.eye(rows, device=x.device)
        return position[:, None] + x, ones, x.new_zeros(rows + columns), eye

    run_all(f, [(t(*size, device=device),) for size in SIZES])


@device_param
def test_large_reductions_are_split_for_any_size(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.amax(0), (x * 2).mean(1), x.var()

    # Terms of one sign: eager's error of a sum that cancels is small by chance.
    sizes = ((3, 70_000), (3000, 40), (5, 5), (2, 200_001))
    run_all(f, [(t(*size, device=device) + 4,) for size in sizes])


@pytest.mark.nightly
@device_param
def test_pooling_and_convolution(device: str) -> None:
    layer = torch.nn.Conv2d(3, 4, 3, padding=1).to(device)

    def f(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, weight, padding=1).relu()
        return (
            F.max_pool2d(y, 2),
            F.avg_pool2d(y, 3, 2, 1),
            F.adaptive_avg_pool2d(y, 1),
            F.interpolate(y, scale_factor=2.0),
        )

    weight = layer.weight.detach()
    run_all(
        f, [(t(n, 3, h, w, device=device), weight) for n, h, w in ((2, 8, 9), (3, 16, 13), (5, 32, 33))], backward=True
    )


def embedding(index: torch.Tensor, table: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.embedding(index, table) * 2, F.embedding(index, x[0, 0]).sum(1)


@device_param
def test_embedding(device: str) -> None:
    calls = [
        (torch.arange(n, device=device) % 7, t(k, 6, device=device), t(2, 3, k, n + 1, device=device))
        for n, k in ((4, 9), (11, 30), (50, 7))
    ]
    run_all(embedding, calls, backward=True)


@device_param
def test_broadcasting_of_symbols(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[:, None] * y[None, :], torch.outer(x, y).sum(1), (x[:, None] + y).softmax(0)

    run_all(f, [(t(n, device=device), t(m, device=device)) for n, m in ((4, 6), (9, 3), (20, 100))])


@device_param
def test_symbolic_strides(device: str) -> None:
    """Views into larger tensors: strides that are sizes of something that the graph does not see."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.sum(0), x.t().contiguous(), x - x.amax(1, True)

    calls = [(t(n, m, device=device)[: n - 1, 1::2],) for n, m in ((6, 12), (9, 30), (40, 21))]
    calls += [(t(n, 5, device=device).t()[:, 2:],) for n in (9, 12)]
    for position, args in enumerate(calls):
        torch._dynamo.reset() if position == 0 else None
        ours = torch.compile(f, backend="litz", dynamic=True)(*args)
        close(ours, f(*args), f(*(x.double() for x in args)), tolerance=4.0)


@device_param
def test_zero_and_one_specialise(device: str) -> None:
    """As dynamo does it: 0 and 1 are compiled for, all else is one graph."""
    calls = [(t(n, 6, device=device),) for n in (5, 9, 1, 0, 2, 30)]
    run_all(lambda x: (x.sin() + x.sum(0), x @ x.t()), calls, compiles=3)


@device_param
def test_automatic_dynamic(device: str) -> None:
    """Sizes are static until one changes."""
    calls = [(t(n, 6, device=device),) for n in (5, 9, 2, 30)]
    run_all(lambda x: x.softmax(0) + x.shape[0], calls, compiles=2, dynamic=None)


@device_param
def test_mark_dynamic(device: str) -> None:
    compiled = torch.compile(lambda x: x.softmax(1) * x.shape[0], backend="litz")
    with reports.collect() as collected:
        for n in (3, 8, 21):
            x = t(n, 5, device=device)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
            close(compiled(x), x.softmax(1) * n, x.double().softmax(1) * n)
    assert len(collected) == 1


@device_param
def test_sizes_as_arguments(device: str) -> None:
    def f(x: torch.Tensor, k: int, scale: float) -> tuple[torch.Tensor, ...]:
        return x[:k] * scale, x.roll(k, 0) + k, x.repeat(k, 1).sum(0), x.unfold(0, 3, 2)

    for _ in range(1):
        run_all(f, [(t(20, 4, device=device), k, k / 3) for k in (2, 5, 19)])


@device_param
def test_in_place_with_dynamic_shapes(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[1:].add_(x[:-1] * 1.0)
        x.t()[0] = x.shape[0]
        return x.sum(1)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="litz", dynamic=True)
    for n, m in SIZES:
        ours, theirs = t(n, m, device=device), t(n, m, device=device)
        torch.testing.assert_close(compiled(ours), f(theirs))
        torch.testing.assert_close(ours, theirs)


@device_param
def test_dropout_with_dynamic_shapes(device: str) -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5) + torch.rand_like(x) * 0, backend="litz", dynamic=True)
    for n in (100, 333):
        x = torch.ones(n, 20, device=device, requires_grad=True)
        out = compiled(x)
        out.sum().backward()
        assert torch.equal(out.detach(), x.grad)
        assert 0.4 < float((out == 0).float().mean()) < 0.6


# ------------------------------------------------------------------------------------------------------ unbacked sizes


def unbacked(fn: Callable[..., Any], calls: Iterable[tuple[Any, ...]], compiles: int = 1) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        run_all(fn, calls, compiles)


@device_param
def test_item_as_a_value(device: str) -> None:
    def f(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = k.item()
        return x + n, x * (n * 2 + 1), torch.full((3,), n, device=x.device)

    unbacked(f, [(t(5, device=device), torch.tensor(k, device=device)) for k in (0, 1, 7, -3)])
    unbacked(f, [(t(5, device=device), torch.tensor(k, device=device)) for k in (0.0, 1.5, -2.25)])


@device_param
def test_item_as_a_size(device: str) -> None:
    def f(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = k.item()
        torch._check(n >= 0)
        torch._check(n <= x.shape[0])
        head = x[:n] * 2
        return head, head.sum(0), x.new_ones(n, 2) + n, torch.arange(n, device=x.device) * 3

    unbacked(f, [(t(9, 4, device=device), torch.tensor(k, device=device)) for k in (4, 9, 3, 7)])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_slice_that_begins_at_data(dynamic: bool) -> None:
    """s56g:210: where the rest is read begins and ends at the same number, so the last element is within the tensor."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x[int(x.abs().sum().item() % x.size(0)) :] * 2

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(f, backend="litz", dynamic=dynamic)
        for values in ([14, 7, 2], [5, -5, 2], [1, 0, 0], [0, 0, 0]):
            assert torch.equal(compiled(torch.tensor(values)), f(torch.tensor(values)))


@device_param
def test_a_softmax_of_as_many_numbers_as_data_say(device: str) -> None:
    """s80i:10401: of none too, for which torch's rule before 2.13 asserts that there are some."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.repeat_interleave(x.abs().to(torch.int64) % 3), 0)

    unbacked(f, [(torch.tensor(values, device=device),) for values in ([1.5, 2.5, 4.0], [0.5, 0.25, 3.0])])


@device_param
def test_tolist_as_split_sizes(device: str) -> None:
    def f(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = lengths.tolist()
        torch._check(a >= 0)
        torch._check(b >= 0)
        torch._check(a + b == x.shape[0])
        first, second = x.split([a, b])
        return first * 2, second.sum(0)

    unbacked(f, [(t(9, 4, device=device), torch.tensor(k, device=device)) for k in ([4, 5], [8, 1], [2, 7])])


@device_param
def test_nonzero_and_masked_select(device: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        where = x.nonzero()
        chosen = x[x > 0]
        return (
            where * 2,
            chosen.exp(),
            chosen.sum(),
            torch.masked_select(x, x < 0) + 1,
            where.shape[0] + x,
            chosen.cumsum(0),
        )

    unbacked(f, [(t(n, 5, device=device),) for n in (4, 9, 30)])


@device_param
def test_unique_and_repeat_interleave(device: str) -> None:
    def f(x: torch.Tensor, repeats: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, inverse = torch.unique(x, return_inverse=True)
        return values * 2, inverse + 1, torch.repeat_interleave(x, repeats) * 3

    calls = [(torch.arange(n, device=device) % 4, torch.arange(n, device=device) % 3) for n in (5, 12, 40)]
    unbacked(f, calls)


@device_param
def test_unbacked_sizes_through_a_matmul_and_a_softmax(device: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows = x[x[:, 0] > 0]
        return (rows @ w).softmax(1) * 2

    unbacked(f, [(t(n, 5, device=device), t(5, 3, device=device)) for n in (8, 20, 70)])


@device_param
def test_every_other_element_of_an_unbacked_size_is_written(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        counts = torch.unique(x, return_counts=True)[1]
        counts[::2] = 0
        counts[1::3].add_(5)  # torch 2.11 refuses +=, which copies the slice onto itself
        return counts

    unbacked(f, [(torch.arange(n, device=device) % k,) for n, k in ((5, 1), (12, 4), (40, 7))])


@device_param
def test_a_check_that_does_not_hold(device: str) -> None:
    def f(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        n = k.item()
        torch._check(n < 5, lambda: "n must be less than 5")
        return x * n

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(f, backend="litz", fullgraph=True)
        x = t(3, device=device)
        torch.testing.assert_close(compiled(x, torch.tensor(4, device=device)), x * 4)
        with pytest.raises(RuntimeError):
            compiled(x, torch.tensor(7, device=device))


@device_param
def test_functions_of_a_read_number_that_torch_has_no_tensor_op_for(device: str) -> None:
    """torch's pass that makes tensors of such numbers ended in an AttributeError about `python_mod`, also where the
    graph goes to Inductor."""

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.sum().item()
        return (n % 4) - y, y * (n % 2.5) + n, (y.sin() + 1) / (-n % 3)

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(f, backend="litz", fullgraph=True)
        for n in (4, 5):
            x, y = torch.arange(float(n), device=device).double() + 0.25, t(3, device=device)
            torch.testing.assert_close(compiled(x, y), f(x, y))


@device_param
def test_an_index_out_of_range(device: str) -> None:
    """Eager raises on the CPU; compiled code may not read or write what is not its own."""
    if device == "cuda":
        pytest.skip("a device-side assert ends the process's CUDA context")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, i: x[i] * 2, backend="litz", dynamic=True)
    x = t(6, 4, device=device)
    torch.testing.assert_close(compiled(x, torch.tensor([5, -6, 0])), x[[5, 0, 0]] * 2)
    for wrong in (6, -7, 10**12):
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([0, wrong]))


# ------------------------------------------------------------------------------------------------------ very large ones


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_more_than_2_to_the_31_elements() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.amax(1), x.flatten()[1:] * 2, x.argmin(), x[-1] * x[:, -2:-1].amax()

    rows, columns = 2**16 + 3, 2**15 + 1
    x = torch.ones(rows, columns, dtype=torch.int8, device="cuda")
    x[-1, -3:] = 5
    x[rows - 2, 7] = -9
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: (*f(x), x.sum()), backend="litz", dynamic=dynamic)
        *ours, total = compiled(x)
        assert int(total) == rows * columns + 3 * 4 - 10  # eager takes eight bytes per element for this
        for got, want in zip(ours, f(x), strict=True):
            assert torch.equal(got, want)
        del ours, got, want


# ----------------------------------------------------------------------------------------------- GPU code without a GPU


@pytest.mark.ci_cases("views", "reductions")
@pytest.mark.parametrize("fn", [views, scans, cat_and_split, indexing, reductions, sizes_as_values, embedding])
def test_triton_kernels_of_any_size_compile(fn: Callable[..., Any]) -> None:
    pytest.importorskip("triton")
    from litz.pipeline import generate, make_compiler, plan_schedule
    from support.retarget import cuda_schedules
    from support.triton_compiled import compile_only

    args = [t(7, 16, device="cpu")]
    if fn is embedding:
        args = [torch.arange(5), t(9, 6, device="cpu"), t(2, 3, 9, 6, device="cpu")]

    def run(backend: Callable[..., Any]) -> None:
        torch.compile(fn, backend=backend, dynamic=True)(*_copies(tuple(args), backward=False, double=False))

    torch._dynamo.reset()
    (schedule,) = cuda_schedules(run)
    compiler = make_compiler()
    sources = {source.text: source for source in generate(plan_schedule(schedule, compiler), compiler).values()}
    assert sources
    for source in sources.values():
        assert compile_only(source)["cubin"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_view_of_a_written_input_begins_where_each_call_has_it(device: str) -> None:
    """Nothing guards where in its storage an input begins, and what a graph returns must not say it."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2)
        return x.expand((1, x.size(0))), x.sum()

    compiled = torch.compile(f, backend="litz", dynamic=True)
    for offset, length in ((1, 5), (3, 5), (0, 6), (5, 8)):
        ours, eagers = (torch.arange(20.0, device=device).as_strided((length,), (1,), offset) for _ in range(2))
        (view, total), (eager_view, eager_total) = compiled(ours), f(eagers)
        torch.testing.assert_close(view, eager_view)
        torch.testing.assert_close(total, eager_total)
        assert view.data_ptr() == ours.data_ptr() and torch.equal(ours, eagers)


def test_python_scalars_of_sizes_are_what_python_computes() -> None:
    """In kernels, as arguments of calls, and returned."""

    def scalars(n: int) -> list[Any]:
        half, third = n / 2, n / 3
        found = [round(half), round(third, 2), round(third, 0), round(third * 100, -1), round(-third, 1)]
        found += [int(third), math.floor(-third), math.ceil(third), math.trunc(-third), math.sqrt(n) % 1.5]
        found += [n // -3, n % -3, -n // 3, -n % 3, (-n / 3) % 2, (n * 1.7) // 2, 2**n, n**0.5, math.pow(n, 1.5)]
        found += [n & 3, n | 8, n ^ 5, (-n) >> 1, 1 << n, n << 2, min(half, 3.1), max(n, 4), math.fmod(-n, 3)]
        return [*found, math.log2(n), math.sin(n), float(n), 1 if n > 5 else 0]

    def use(x: torch.Tensor) -> tuple[Any, ...]:
        found = scalars(x.size(0))
        return torch.stack([x.sum() * 0 + value for value in found]), x.new_zeros(found[0] + 1), found[1], found[10]

    torch._dynamo.reset()
    compiled = torch.compile(use, backend="litz", dynamic=True, fullgraph=True)
    for n in (7, 5, 12):
        x = torch.ones(n, dtype=torch.float64)
        ours, theirs = compiled(x), use(x)
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-14, atol=0)
        assert ours[1].shape == theirs[1].shape
        assert ours[2:] == theirs[2:] and list(map(type, ours[2:])) == [float, int]
