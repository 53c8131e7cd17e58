"""Max and average pooling, fixed and adaptive, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.ir import Extern, Loop
from litz.ir.interpret import interpret
from litz.lower import lower
from operators.harness import check, program_of
from passes.test_saved_positions import eager, graphs_of
from support.own_plugins import operators

aten = torch.ops.aten

# kernel, stride, padding, dilation, ceil_mode
WINDOWS = [
    (2, 2, 0, 1, False),
    (3, 2, 1, 1, False),
    (3, 2, 1, 1, True),
    ((3, 2), (1, 3), (1, 0), 1, True),
    (3, 1, 1, 2, False),
    (2, 3, 1, 1, False),
]


@pytest.fixture(params=[frozenset({"cpu"}), frozenset()], ids=["held", "masked"])
def taps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taps in the padding as on a CPU, whose positions are held inside, and as on a GPU, under masks."""
    monkeypatch.setattr("litz_operators.max_pooling.BRANCHLESS", request.param)


def image(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(-9, 9, size).to(dtype)


@pytest.mark.each_value
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_max_pool2d(taps: None, window: tuple[Any, ...], dtype: torch.dtype, dynamic: bool) -> None:
    check(lambda x: aten.max_pool2d_with_indices(x, *map(pair, window[:4]), window[4]), image(2, 3, 9, 8, dtype=dtype),
          dynamic=dynamic)  # fmt: skip


def pair(value: Any) -> Any:
    return [value, value] if isinstance(value, int) else list(value)


def test_max_pool_layouts_and_odd_values(taps: None) -> None:
    op = aten.max_pool2d_with_indices
    check(lambda x: op(x, [3, 3], [2, 2], [1, 1]), image(2, 3, 8, 8).to(memory_format=torch.channels_last))
    check(lambda x: op(x, [2, 2]), image(3, 8, 8))
    check(lambda x: op(x, [3, 3], [2, 2], [1, 1], [2, 2]), torch.full((1, 1, 7, 7), float("-inf")))
    nan = image(1, 2, 8, 8)
    nan[0, 0, 2:4, 2:5] = float("nan")
    check(lambda x: op(x, [3, 3], [2, 2], [1, 1]), nan)
    check(lambda x: op(x, [3, 3], [2, 2]), image(1, 2, 8, 8).to(torch.int64))
    check(lambda x: op(x, [2, 2]), torch.empty(0, 3, 4, 4))


def test_max_pool_of_a_large_window() -> None:
    check(lambda x: aten.max_pool2d_with_indices(x, [6, 7], [2, 1], [3, 2]), torch.randn(2, 3, 12, 11))
    check(lambda x: aten.max_pool2d_with_indices(x, [6, 7], [2, 1], [3, 2])[0], torch.randn(2, 3, 12, 11), dynamic=True)


def test_max_pool3d(taps: None) -> None:
    check(lambda x: aten.max_pool3d_with_indices(x, [2, 2, 2], [2, 1, 2], [1, 0, 1]), image(2, 3, 5, 6, 7))
    check(lambda x: aten.max_pool3d_with_indices(x, [3, 3, 3], [2, 2, 2], [1, 1, 1]), torch.randn(1, 2, 5, 6, 7))


def test_unused_indices_are_not_made() -> None:
    program = program_of(lambda x: aten.max_pool2d_with_indices(x, [2, 2])[0], image(1, 1, 4, 4))
    (loop,) = program.operations
    assert isinstance(loop, Loop) and len(loop.stores) == 1


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_max_pool2d_backward(window: tuple[Any, ...], dynamic: bool) -> None:
    x = torch.randn(2, 3, 9, 8)
    arguments = [*map(pair, window[:4]), window[4]]
    out, places = aten.max_pool2d_with_indices(x, *arguments)

    def backward(g: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return aten.max_pool2d_with_indices_backward(g, x, *arguments, places)

    check(backward, torch.randn_like(out), x, places, dynamic=dynamic)
    check(backward, torch.randn_like(out).bfloat16(), x.bfloat16(), places, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("kernel", "stride", "dtype", "generated"),
    [(2, 2, torch.float32, True), (2, 3, torch.float64, True), (3, 2, torch.float32, False), (2, 2, torch.half, False)],
)
def test_a_cpus_backward_is_generated_where_vectors_search(
    kernel: int, stride: int, dtype: torch.dtype, generated: bool
) -> None:
    x = image(2, 3, 8, 9, dtype=dtype)
    graphs, gradient = graphs_of(lambda x: F.max_pool2d(x, kernel, stride), x)
    torch.testing.assert_close(gradient, eager(lambda x: F.max_pool2d(x, kernel, stride), x))
    calls = [str(op.target) for op in lower(graphs[1], operators().lowerings()).operations if isinstance(op, Extern)]
    assert any("max_pool" in call for call in calls) != generated


def test_positions_that_no_forward_found_are_not_the_librarys() -> None:
    """torch's kernel writes at any position, also outside of the tensor (`test_index_bounds.py`)."""
    x, arguments = image(2, 3, 8, 9), [[3, 3], [1, 1], [0, 0], [1, 1], False]
    out, places = aten.max_pool2d_with_indices(x, *arguments)
    check(lambda g, x, p: aten.max_pool2d_with_indices_backward(g, x, *arguments, p), torch.randn_like(out), x, places)


def test_max_pool_backward_large_and_3d() -> None:
    x = torch.randn(1, 2, 14, 14)
    out, places = aten.max_pool2d_with_indices(x, [7, 7], [1, 1])
    check(lambda g, x, p: aten.max_pool2d_with_indices_backward(g, x, [7, 7], [1, 1], [0, 0], [1, 1], False, p),
          torch.randn_like(out), x, places)  # fmt: skip
    x = torch.randn(1, 2, 6, 6, 5)
    out, places = aten.max_pool3d_with_indices(x, [3, 3, 3], [2, 2, 2], [1, 1, 1])
    check(lambda g, x, p: aten.max_pool3d_with_indices_backward(g, x, [3] * 3, [2] * 3, [1] * 3, [1] * 3, False, p),
          torch.randn_like(out), x, places)  # fmt: skip


# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGES = [
    (2, 2, 0, False, True, None),
    (3, 2, 1, False, True, None),
    (3, 2, 1, False, False, None),
    (3, 2, 1, True, True, None),
    (3, 2, 1, True, False, None),
    ((3, 2), (1, 3), (1, 0), True, False, 5),
    (2, 3, 1, False, False, None),
    (6, 5, 3, True, False, None),
]


@pytest.mark.each_value
@pytest.mark.parametrize("window", AVERAGES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_avg_pool2d(window: tuple[Any, ...], dynamic: bool) -> None:
    arguments = [*map(pair, window[:3]), *window[3:]]
    x = torch.randn(2, 3, 10, 9)
    out = aten.avg_pool2d(x, *arguments)
    check(lambda x: aten.avg_pool2d(x, *arguments), x, dynamic=dynamic)
    check(lambda g, x: aten.avg_pool2d_backward(g, x, *arguments), torch.randn_like(out), x, dynamic=dynamic)


def test_avg_pool_dtypes_layouts_and_dimensions() -> None:
    check(lambda x: F.avg_pool2d(x, 3, 2, 1), image(2, 3, 8, 8, dtype=torch.bfloat16), rtol=1e-2, atol=1e-2)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1), image(2, 3, 8, 8).to(memory_format=torch.channels_last))
    check(lambda x: F.avg_pool2d(x, 2), image(3, 8, 8))
    check(lambda x: F.avg_pool1d(x, 3, 2, 1), torch.randn(2, 3, 9))
    check(lambda x: F.avg_pool3d(x, (2, 3, 2), 2, 1), torch.randn(2, 3, 6, 7, 5))
    g = torch.randn_like(F.avg_pool3d(torch.randn(2, 3, 6, 7, 5), 3, 2, 1, True, False))
    check(lambda g, x: aten.avg_pool3d_backward(g, x, [3] * 3, [2] * 3, [1] * 3, True, False, None),
          g, torch.randn(2, 3, 6, 7, 5))  # fmt: skip
    g = torch.randn(1, 2, 6, 6)
    check(lambda g, x: aten.avg_pool2d_backward(g, x, [7, 7], [1, 1], [0, 0], False, True, None),
          g, torch.randn(1, 2, 12, 12))  # fmt: skip
    check(lambda x: F.avg_pool2d(x, 2), image(1, 2, 4, 4).to(torch.int64), native=False)


@pytest.mark.parametrize("out", [(1, 1), (3, 4), (5, 2), (7, 9), (12, 11)])
def test_adaptive_avg_pool2d(out: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 6, 8)
    check(lambda x: aten._adaptive_avg_pool2d(x, list(out)), x)
    check(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), torch.randn(2, 3, *out), x)


def test_adaptive_avg_pool3d() -> None:
    x = torch.randn(2, 3, 6, 8, 5)
    check(lambda x: aten._adaptive_avg_pool3d(x, [2, 3, 5]), x)
    check(lambda g, x: aten._adaptive_avg_pool3d_backward(g, x), torch.randn(2, 3, 2, 3, 5), x)
    check(lambda x: F.adaptive_avg_pool2d(x, (3, 5)), torch.randn(2, 3, 6, 8))


def test_adaptive_max_pool_stays_with_the_library() -> None:
    check(lambda x: F.adaptive_max_pool2d(x, 3), torch.randn(1, 2, 7, 7), native=False)


# A window longer than the input: kernel, stride, padding, ceil_mode, for an input of 5 by 7.
LONGER = [
    ((5, 40), (1, 1), (0, 20), False),
    ((9, 11), (2, 3), (4, 5), True),
    ((6, 7), (1, 1), (3, 0), False),
    ((300, 300), (1, 2), (150, 148), False),
]


@pytest.mark.parametrize("window", LONGER, ids=str)
def test_windows_longer_than_the_input(taps: None, window: tuple[Any, ...]) -> None:
    kernel, stride, padding, ceil_mode = window
    x = torch.randn(2, 3, 5, 7)
    for inside in (True, False):
        check(lambda x, i=inside: F.avg_pool2d(x, kernel, stride, padding, ceil_mode, i), x)
    check(lambda x: aten.max_pool2d_with_indices(x, kernel, stride, padding, 1, ceil_mode), x)
    out, places = aten.max_pool2d_with_indices(x, kernel, stride, padding, 1, ceil_mode)
    grad = torch.randn_like(out)
    rest = (list(kernel), list(stride), list(padding))
    check(lambda g, x: aten.avg_pool2d_backward(g, x, *rest, ceil_mode, False, None), grad, x)
    check(lambda g, x, p: aten.max_pool2d_with_indices_backward(g, x, *rest, [1, 1], ceil_mode, p), grad, x, places)


def test_the_pool_of_a_whole_image_reads_no_more_than_the_image() -> None:
    """EfficientNet of transformers ends in a pool of 1280 by 1280 over 7 by 7, with ceil_mode."""
    program = program_of(lambda x: F.avg_pool2d(x, 1280, ceil_mode=True), torch.randn(2, 3, 7, 7))
    (loop,) = program.operations
    assert isinstance(loop, Loop)
    assert [int(range_.size) for range_ in loop.reduction_ranges] == [7, 7]


ADAPTIVE = [
    (F.adaptive_avg_pool1d, 1),
    (F.adaptive_avg_pool2d, 2),
    (F.adaptive_avg_pool3d, 3),
    (F.adaptive_max_pool1d, 1),
    (F.adaptive_max_pool2d, 2),
    (F.adaptive_max_pool3d, 3),
]


@pytest.mark.parametrize(("pool", "ndim"), ADAPTIVE, ids=lambda value: getattr(value, "__name__", None))
def test_adaptive_pooling_of_nothing_and_to_nothing(pool: Callable[..., torch.Tensor], ndim: int) -> None:
    """As eager has it, whether that is a tensor without elements or an error."""
    full = torch.rand(2, 3, *range(5, 5 + ndim))
    cases = [(full, (0,) * ndim), (full, (0, *[2] * (ndim - 1))), (full, (*[2] * (ndim - 1), 0))]
    for dim in range(full.ndim):
        cases.append((full.narrow(dim, 0, 0).contiguous(), (2,) * ndim))
    for x, size in cases:
        outcome = raises_alike(lambda x, size=size: pool(x, size), x)
        assert outcome is not None or 0 in x.shape[1:]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize(("pool", "ndim"), ADAPTIVE, ids=lambda value: getattr(value, "__name__", None))
def test_adaptive_pooling_of_a_type_that_eager_refuses(
    pool: Callable[..., torch.Tensor], ndim: int, dtype: torch.dtype
) -> None:
    raises_alike(lambda x: pool(x, (2,) * ndim), torch.ones(2, 3, *range(5, 5 + ndim)).to(dtype))


def raises_alike(function: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor | None:
    """The result, equal to eager's; None where eager raises an error, and the program or the tracer the same."""
    try:
        expected = function(x)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)) as caught:
            interpret(program_of(function, x), [x])
        assert str(caught.value).split(",")[0] == str(error).split(",")[0]
        return None
    (actual,) = interpret(program_of(function, x), [x])
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()
    return expected
