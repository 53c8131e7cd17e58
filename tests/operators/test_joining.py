"""cat, pads, roll: against eager, through the interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from core.schedule.harness import plan_of
from litz.ir import Loop
from operators.harness import check

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def make(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.arange(torch.Size(size).numel()).reshape(size) % 97 - 40
    return values > 3 if dtype == torch.bool else values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_cat(dtype: torch.dtype, dim: int, dynamic: bool) -> None:
    parts = [make(3, 4, 5, dtype=dtype), make(3, 4, 5, dtype=dtype).flip(0), make(3, 4, 5, dtype=dtype)]
    check(lambda *x: torch.cat(x, dim), *parts, dynamic=dynamic)


def test_cat_of_views_and_dtypes() -> None:
    a, b, c = make(4, 3).t(), make(1, 4).expand(3, 4), make(3, 2, dtype=torch.int64)
    check(lambda a, b, c: torch.cat([a, b, c], 1), a, b, c)


def test_cat_reads_each_piece_only_where_it_lies() -> None:
    program = check(lambda a, b: torch.cat([a, b]), make(3), make(5))
    (loop,) = program.operations
    assert isinstance(loop, Loop) and all(load.mask is not None for load in loop.loads)


def test_cat_with_empty_pieces() -> None:
    check(lambda a, b, c: torch.cat([a, b, c], 1), make(2, 3), torch.empty(0), make(2, 0))
    check(lambda a, b: torch.cat([a, b]), torch.empty(0), torch.empty(0))


def test_cat_of_a_constant() -> None:
    check(lambda a: torch.cat([a, torch.full((2, 3), 7.0), torch.zeros(1, 3)]), make(2, 3))


def test_cat_of_many_is_written_piece_by_piece() -> None:
    parts = [make(2, n + 1) for n in range(12)]
    program = check(lambda *x: torch.cat([piece.sin() for piece in x], 1), *parts)
    assert len(program.operations) == 24


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64])
@pytest.mark.parametrize(("dim", "dynamic"), [(0, False), (1, False), (-1, True)])
def test_cat_of_many_that_lie_in_memory_is_one_call(dtype: torch.dtype, dim: int, dynamic: bool) -> None:
    """Views among them, other types, an empty one, one that is read backwards; a few are computed on the way."""
    shapes = [
        (3, n % 4 + 2, 5) if dim == 1 else (n % 4 + 2, 3, 5) if dim == 0 else (2, 3, n % 4 + 2) for n in range(20)
    ]
    parts = [make(*shape).to(dtype) for shape in shapes]
    parts[3] = make(*reversed(shapes[3])).permute(2, 1, 0).to(torch.float32)
    parts[5] = make(*shapes[5]).flip(0)

    def f(*x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.empty(0), *x[:7], x[7] + 1, x[8].flip(0), *x[9:]], dim) * 2

    program = check(f, *parts, dynamic=dynamic, native=False)
    assert [operation.target_name for operation in program.externs] == ["aten.cat.default"]
    assert len(program.operations) <= 4


def test_cat_of_many_large_computed_pieces_is_written_in_place() -> None:
    parts = [make(64, 700) for _ in range(12)]
    program = check(lambda *x: torch.cat([*(piece.sin() for piece in x[:10]), *x[10:]], 1), *parts)
    assert not program.externs


def test_cat_of_many_small_computed_pieces_of_one_size() -> None:
    """Written to buffers of their own, their loops become few kernels."""
    program = check(lambda x: torch.cat([row.sin() for row in x.unbind(0)]), make(40, 6), native=False)
    assert len(program.externs) == 1
    assert len(plan_of(program).kernels) <= 2


def test_stack() -> None:
    check(lambda a, b: torch.stack([a, b], 1), make(3, 4), make(3, 4))
    check(lambda a, b: torch.stack([a, b]), make(), make())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pad", [(1, 2), (0, 0, 2, 1), (-1, 2, 1, -1), (3, 0, 0, 0, 0, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_constant_pad(dtype: torch.dtype, pad: tuple[int, ...], dynamic: bool) -> None:
    check(lambda x: F.pad(x, pad, value=1), make(2, 3, 4, dtype=dtype), dynamic=dynamic)


def test_constant_pad_of_what_is_computed_or_empty() -> None:
    check(lambda x: F.pad(torch.ones(3), (1, 1)) + x, make(5))
    check(lambda x: F.pad(x, (1, 1), value=2.0), torch.empty(2, 0))
    check(lambda x: F.pad(x, (0, 1)), make(3, 4).t())


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("pad", [(1, 2), (0, 0), (2, 0)])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_pad_modes(mode: str, pad: tuple[int, ...], dimensions: int) -> None:
    x = torch.randn(2, *(4, 5, 6)[:dimensions]).unsqueeze(0)
    # A circular pad is traced as writes into an empty tensor: whether those stay library calls is not the point here.
    check(lambda x: F.pad(x, pad * dimensions, mode=mode), x, native=mode != "circular")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shifts, dims", [((1,), (0,)), ((-2, 9), (1, 2)), ((3,), (-1,))])
def test_roll(shifts: tuple[int, ...], dims: tuple[int, ...], dynamic: bool) -> None:
    check(lambda x: x.roll(shifts, dims) + 1, make(3, 4, 5), dynamic=dynamic)
    check(lambda x: x.roll(shifts, dims), make(5, 4, 3).permute(2, 1, 0))


@pytest.mark.ci_cases(
    *("shifts0-dims0-4-False", "shifts1-dims1-1-True", "shifts2-dims2-4-True", "shifts3-dims3-4-True"),
    "shifts3-dims3-1-False",
)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("channels", [4, 1])
@pytest.mark.parametrize("shifts, dims", [((1, -2), (2, 3)), ((1,), (1,)), ((1, 4), (2, 1)), ((8,), (-1,))])
def test_roll_keeps_the_memory_format(
    shifts: tuple[int, ...], dims: tuple[int, ...], channels: int, dynamic: bool
) -> None:
    """Rolled all the way around a dimension, which is of the sizes of a call, eager's result is contiguous."""
    images = [make(2, channels, *size).clone(memory_format=torch.channels_last) for size in ((7, 5), (9, 8))]
    functions = (lambda x: x.roll(shifts, dims), lambda x: x.roll(shifts, dims).add(1))
    for function in functions[: 1 if channels == 1 else 2]:  # add's own stride along one channel is another matter
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="litz", dynamic=dynamic)
        for x in images:
            found, wanted = compiled(x), function(x)
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted)


def test_roll_all_the_way_around_is_a_copy() -> None:
    for function in (lambda x: x.roll(5, 0), lambda x: x.roll((2, -2), (0, 0))):
        program = check(function, make(5))
        assert not program.output_buffers & set(program.input_buffers)


def test_roll_of_nothing_and_of_a_written_input() -> None:
    check(lambda x: x.roll(1, 0), torch.empty(0, 3))
    check(lambda x: x.copy_(x.roll(1, 0) * 2), make(5))


def test_repeat_and_tile() -> None:
    check(lambda x: x.repeat(2, 1, 3), make(2, 3))
    check(lambda x: x.repeat_interleave(2, 1), make(2, 3))
    check(lambda x: x.tril() + x.triu(1), make(4, 4))
