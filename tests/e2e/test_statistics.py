"""Means, variances and norms of numbers that are far from zero, many, or large for their type: as float64 has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from support.compare import device_param, litz

HALF = [torch.float16, torch.bfloat16]


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float(((got.double() - want).abs() / want.abs()).max())


@device_param
@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(5, 64), (40, 64), (700, 33), (90, 5), (64, 300), (3, 70_000), (70_000, 3)], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_variance_far_from_zero(device: str, shape: tuple[int, int], dim: int) -> None:
    """A mean that float32 rounds has few digits for what squared deviations are made of."""
    x = torch.randn(shape, device=device) + 1000

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*torch.var_mean(x, dim), x.std(dim))

    # On a GPU eager's mean is a float32, too.
    for value, eager, want in zip(litz(function)(x), function(x), function(x.double()), strict=True):
        assert error(value, want) < max(2e-6, 4 * error(eager, want))


def test_the_mean_of_a_row_around_zero() -> None:
    """In deviations: weights that a model standardizes meet inputs of one sign, whose products add up what it is off
    (test_nfnet of timm, 7.7e-6 of the result where eager is at 1.5e-6)."""
    xs = [torch.randn(64, terms, generator=torch.Generator().manual_seed(0)) for terms in (288, 1000, 4096, 70_000)]

    def f(*rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [torch.var_mean(x, 1) for x in rows]

    for x, (_, mean) in zip(xs, litz(f)(*xs), strict=True):
        assert (mean.double() - x.double().mean(1)).abs().max() < 6e-8, x.shape


@device_param
@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(40, 64), (700, 33), (3, 70_000), (70_000, 3)], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
def test_variance_of_numbers_out_of_range(device: str, shape: tuple[int, int], dim: int, value: float) -> None:
    """One infinite, or without a square, among ordinary ones: no other row or column knows of it."""
    x = torch.randn(shape, device=device)
    x[2, 1] = value
    var, mean = litz(lambda x: torch.var_mean(x, dim))(x)
    touched = 1 if dim == 0 else 2
    others = torch.arange(len(var), device=device) != touched
    exact = x.double().mean(dim).float()
    torch.testing.assert_close(mean[others], exact[others], rtol=1e-5, atol=1e-5)
    if value == 3e38:
        torch.testing.assert_close(mean[touched], exact[touched], rtol=1e-5, atol=0)
    else:  # of infinity, which eager's mean forgets, infinity or NaN
        assert not mean[touched].isfinite()
    assert not var[touched].isfinite()
    assert error(var[others], x.double().var(dim)[others]) < 2e-6


@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(8, 7), (8, 200), (8, 5000), (6, 5, 40)], ids=str)
@pytest.mark.parametrize("size", [1e-22, 1e18, 1e19, 1e25])
@pytest.mark.parametrize("dim", [-1, None])
def test_squares_beyond_the_range_of_the_type(shape: tuple[int, ...], size: float, dim: int | None) -> None:
    """On a CPU eager adds squares in double, and takes the root of a double."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.var(dim), x.std(dim), *torch.var_mean(x, dim), *torch.std_mean(x, dim)

    x = torch.randn(shape) * size
    for value, want in zip(litz(function)(x), function(x.double()), strict=True):
        torch.testing.assert_close(value, want.float(), rtol=2e-6, atol=size * 1e-6 if want.abs().max() < 1e30 else 0)


COLUMNS = {"few": (40, 33), "one part": (64, 300), "parts": (300, 33), "outer": (9, 5, 40), "unrolled": (7, 300)}


@pytest.mark.each_value
@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("size", [1e-22, 1e19, 8e37])
def test_columns_with_squares_beyond_the_range_of_the_type(name: str, size: float) -> None:
    """In one column of many, beside others whose squares the type holds."""
    shape = COLUMNS[name]
    x, dims = torch.randn(shape), tuple(range(len(shape) - 1))
    x[..., 3] = torch.linspace(-1, 1, x[..., 3].numel()).reshape(shape[:-1]) * size
    x[..., 4] = 0.1
    compiled = litz(lambda x: (x.var(dims), *torch.std_mean(x, dims)))
    _check_statistics(compiled(x), x, dims)
    _check_statistics(compiled(x.roll(1, -1)), x.roll(1, -1), dims)


@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(500, 3), (300, 8), (70, 16)], ids=str)
@pytest.mark.parametrize("size", [1e-22, 1e19, 1e37])
def test_short_rows_with_squares_beyond_the_range_of_the_type(shape: tuple[int, int], size: float) -> None:
    x = torch.linspace(-1, 1, shape[1]) + 0.1 * torch.randn(shape)
    x[5] *= size
    _check_statistics(litz(lambda x: (x.var(1), *torch.std_mean(x, 1)))(x), x, (1,))
    norm = lambda x: (x - x.mean(1, True)) / x.std(1, keepdim=True)
    torch.testing.assert_close(litz(norm)(x), norm(x.double()).float(), rtol=1e-5, atol=2e-6)


@pytest.mark.each_value
@pytest.mark.parametrize("rows", [40, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-22, 1e19, 1e37])
def test_columns_that_are_written_over_what_they_are_made_of(rows: int, dtype: torch.dtype, size: float) -> None:
    """What a product gave is written over, and what was lost is read from there again."""

    def function(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x @ y + b
        return z, *torch.std_mean(z.float(), 0), (z.float() * 2).std(0)

    x, y = torch.randn(rows, 1, dtype=dtype), torch.randn(1, 70, dtype=dtype)
    y[0, 3] *= size
    b = 0.1 * torch.rand(70, dtype=dtype) * y[0].abs()
    z, std, mean, twice = litz(function)(x, y, b)
    wide = z.double()
    torch.testing.assert_close(std, wide.std(0).float(), rtol=4e-6, atol=0)
    torch.testing.assert_close(twice, 2 * wide.std(0).float(), rtol=4e-6, atol=0)
    assert ((mean - wide.mean(0)).abs() <= 1e-6 * wide.abs().amax(0)).all()


@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(3, 70), (300, 33), (3, 9, 5), (90, 3), (8, 5000)], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("size", [1e-22, 1e-30, 1e-38])
def test_deviations_whose_squares_are_all_lost_around_the_first_value(
    shape: tuple[int, ...], dim: int, size: float
) -> None:
    """The mean is the first value, and no square is left to say that others differ from it."""
    x = torch.zeros(shape)
    x.select(dim, 1).fill_(size)
    x.select(dim, 2).fill_(-size)
    std, mean = litz(lambda x: torch.std_mean(x, dim))(x)
    torch.testing.assert_close(std, x.double().std(dim).float(), rtol=4e-6, atol=0)
    assert (mean.abs() <= 1e-6 * size).all()


def _check_statistics(got: tuple[torch.Tensor, ...], x: torch.Tensor, dims: tuple[int, ...]) -> None:
    """Variance, root and mean, within the type where the type holds them."""
    var, std, mean = got
    wide = x.double()
    torch.testing.assert_close(var, wide.var(dims).float(), rtol=4e-6, atol=0)
    torch.testing.assert_close(std, wide.std(dims).float(), rtol=4e-6, atol=0)
    assert ((mean - wide.mean(dims)).abs() <= 1e-6 * wide.abs().amax(dims)).all()


def test_norms_of_batches_with_squares_beyond_the_range_of_the_type() -> None:
    x = torch.randn(6, 8, 5, 7)
    x[:, 2] *= 3e18

    def norms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.batch_norm(x, None, None, training=True), F.instance_norm(x)

    for channels in (x, x.contiguous(memory_format=torch.channels_last)):
        for value, want in zip(litz(norms)(channels), norms(channels.double()), strict=True):
            torch.testing.assert_close(value, want.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.each_value
@device_param
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("images", [6, 60])
def test_norms_far_from_zero(device: str, last: bool, images: int) -> None:
    x = torch.randn(images, 8, 5, 7, device=device) + 1000
    x = x.contiguous(memory_format=torch.channels_last) if last else x

    def norms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, var = torch.zeros(8).to(x), torch.ones(8).to(x)
        out = F.batch_norm(x, mean, var, training=True, momentum=1.0)
        return out, F.group_norm(x, 4), F.layer_norm(x, (5, 7)), var

    *got, var = litz(norms)(x)
    *want, exact = norms(x.double())
    # Numbers near 1000 are rounded to 6e-5, and so is the mean that is subtracted from them.
    assert all((value - right).abs().max() < 2e-4 for value, right in zip(got, want, strict=True))
    # Where a GPU's threads meet, the mean of each is rounded to 24 bits: by as much, in deviations, as 1000 is rounded.
    assert error(var, exact) < (2e-6 if device == "cpu" or images == 6 else 1000 * 2**-24)


@device_param
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", [(200_000,), (100_000, 2)], ids=str)
def test_mean_of_many_halves(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Where a reduction is split, the sum was rounded before it was divided: 200,000 is no float16."""
    x = torch.ones(shape, dtype=dtype, device=device)
    x[::2] = 3
    losses: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        torch.mean,
        lambda x: F.l1_loss(x, x * 2),
        lambda x: x.var(0),
        lambda x: x.std(0),
    )
    xs = [x.clone() for _ in losses]
    found = litz(lambda *xs: [loss(x) for loss, x in zip(losses, xs, strict=True)])(*xs)
    for loss, value in zip(losses, found, strict=True):
        assert error(value, loss(x.double())) < 4e-3


@device_param
def test_deviation_whose_square_is_no_half(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.std(0), *torch.std_mean(x, 0), y.std(1), *torch.std_mean(y, 1)

    x, y = ((torch.randn(64, 40, device=device) * 2000).half() for _ in range(2))
    for value, want in zip(litz(f)(x, y), f(x.double(), y.double()), strict=True):
        assert (value.double() - want).abs().max() < 1e-3 * want.abs().max()


def test_a_correction_that_is_no_number() -> None:
    """Eager divides by 0, as for any correction beyond the number of terms."""
    nan = float("nan")

    def f(*xs: torch.Tensor) -> list[torch.Tensor]:
        dims = zip(xs, (0, 1, None), strict=True)
        return [v for x, dim in dims for v in (*torch.var_mean(x, dim, correction=nan), x.std(dim, correction=nan))]

    xs = [torch.randn(5, 6) for _ in range(3)]
    for x in xs:
        x[1] = 1.0
    torch.testing.assert_close(litz(f)(*xs), f(*xs), equal_nan=True)
