"""View ops: index arithmetic without operations, affine wherever eager has a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from operators.harness import check, program_of

aten = torch.ops.aten
Function = Callable[[torch.Tensor], Any]

VIEWS: dict[str, Function] = {
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "reshape joins": lambda x: x.reshape(4, -1),
    "reshape flat": lambda x: x.reshape(-1),
    "reshape splits": lambda x: x.reshape(4, 3, 2, 2, x.shape[2] // 2),
    "reshape regroups": lambda x: x.contiguous().view(6, -1),
    "reshape of transpose": lambda x: aten._unsafe_view(x.transpose(1, 2).contiguous(), [x.shape[0], -1]),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(1, (3, 2)),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1),
    "broadcast_to": lambda x: x[:, :1].broadcast_to(x.shape),
    "squeeze": lambda x: x[:1].squeeze(0),
    "squeeze dims": lambda x: x[:1, :1].squeeze((0, 1)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "select": lambda x: x[:, 2],
    "select from the end": lambda x: x[:, -2],
    "slice": lambda x: x[1:3, :, 2:],
    "slice with steps": lambda x: x[::2, 1::3],
    "slice beyond the end": lambda x: x[2:100, :, -100:],
    "slice from the end": lambda x: x[-2:, :-1],
    "empty slice": lambda x: x[3:1],
    "split": lambda x: x.split(2),
    "split with sizes": lambda x: x.split([1, 3, 2], 1),
    "chunk": lambda x: x.chunk(3, 1),
    "unbind": lambda x: x.unbind(1),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "diagonal": lambda x: x.diagonal(1, 0, 1),
    "diagonal below": lambda x: x.diagonal(-1, 1, 2),
    "movedim": lambda x: x.movedim(0, -1),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "chain": lambda x: x.transpose(0, 1)[1:, 2:].unsqueeze(0).expand(2, -1, -1, -1)[1],
}

COPIES: dict[str, Function] = {
    "flip": lambda x: x.flip(0, 2),
    "flip all": lambda x: x.flip(0, 1, 2),
    "reshape copies": lambda x: x.transpose(0, 1).reshape(-1),
    "clone": lambda x: x.transpose(0, 2).clone(),
    "clone contiguous": lambda x: x.transpose(0, 2).contiguous(),
    "clone expanded": lambda x: x.unsqueeze(0).expand(3, -1, -1, -1).clone(),
    "permute_copy": lambda x: aten.permute_copy(x, [2, 0, 1]),
    "view_copy": lambda x: aten.view_copy(x, [4, -1]),
    "roll by slices": lambda x: x[1:].flip(0) + x[:-1],
}

SHAPES = {
    "contiguous": lambda: torch.randn(4, 6, 8),
    "transposed": lambda: torch.randn(8, 6, 4).transpose(0, 2),
    "sliced": lambda: torch.randn(5, 7, 17)[1:, 1:, ::2][:, :, :8],
}


def needs_contiguous(name: str) -> bool:
    return name in ("reshape joins", "reshape flat", "flatten", "reshape splits", "view_copy")


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("layout", SHAPES)
def test_views_make_no_operation(name: str, layout: str) -> None:
    program = check(VIEWS[name], SHAPES[layout]())
    copies = (needs_contiguous(name) and layout != "contiguous") or "reshape" in name
    assert copies or not program.operations, str(program)


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("layout", SHAPES)
def test_copies_lie_as_in_eager(name: str, layout: str) -> None:
    if needs_contiguous(name) and layout != "contiguous":
        pytest.skip("eager refuses this view")
    check(COPIES[name], SHAPES[layout]())


@pytest.mark.parametrize("name", [*VIEWS, *COPIES])
def test_symbolic_sizes(name: str) -> None:
    check({**VIEWS, **COPIES}[name], torch.randn(4, 6, 8), dynamic=True)


@pytest.mark.parametrize("size", [(0, 3), (2, 0, 4), ()])
def test_empty_and_zero_dimensional(size: tuple[int, ...]) -> None:
    x = torch.ones(size)
    check(lambda x: (x.reshape(-1), x.unsqueeze(0), x.expand(2, *x.shape), x.flip(0) if x.dim() else x), x)


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [((2, 3), (3, 1), 0), ((2, 2), (1, 2), 5), ((3, 4), (2, 1), 3), ((2, 3), (0, 1), 1), ((0, 3), (3, 1), 0)],
)
def test_as_strided(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
    check(lambda x: torch.as_strided(x, size, stride, offset) + 0, torch.randn(4, 6))
    check(lambda x: torch.as_strided(x.sin(), size, stride, offset), torch.randn(4, 6))


def test_as_strided_of_an_offset_input() -> None:
    base = torch.randn(40)
    check(lambda x: torch.as_strided(x, (2, 3), (4, 1), 9) * 2, base[5:29].view(4, 6))


def test_reshape_of_reshape_is_affine() -> None:
    program = program_of(lambda x: x.reshape(6, 4).reshape(2, 3, 4).reshape(24).reshape(4, 6) + 1, torch.randn(4, 6))
    assert "load arg0_1[i0, i1]" in str(program)


def test_complex_views_are_not_computed() -> None:
    check(lambda x: (x.transpose(0, 1), x[1:]), torch.randn(3, 4, dtype=torch.complex64))


def test_complex_arithmetic_is_an_extern() -> None:
    check(lambda x: (x.t() * 2, torch.view_as_real(x)), torch.randn(3, 4, dtype=torch.complex64), native=False)


def test_reshape_of_what_loops_cannot_read() -> None:
    program = program_of(lambda x: aten.clone(x.t()).reshape(12), torch.ones(3, 4).to(torch.complex64))
    assert program.externs and not program.loops


SYMBOLIC = {
    "joined by twos": lambda x: x.reshape(x.size(0) * x.size(1), x.size(2) * x.size(3)),
    "joined by sizes that a guard makes equal": lambda x: x.reshape(x.size(2) * x.size(3), x.size(0) * x.size(1)),
    "split of unknown divisors": lambda x: x.view(-1, 2, x.size(0)).transpose(0, 1),
    "joined again": lambda x: x.view(-1, 2, x.size(0)).transpose(0, 1).reshape(2, -1),
    "of a slice": lambda x: x[1:, :, 1:].reshape(-1, x.size(3)).t(),
    "of a permutation": lambda x: x.permute(2, 3, 0, 1).view(x.size(1) * x.size(0), -1),
    "with a view of it": lambda x: x.view(-1, x.size(0), x.size(3))[1:, :, 1].unsqueeze(1).expand(-1, 3, -1),
    "flipped": lambda x: x.view(-1, x.size(0), x.size(3)).flip(1),
}


@pytest.mark.each_value
@pytest.mark.parametrize("name", SYMBOLIC)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32], ids=str)
def test_reshape_of_symbolic_sizes_as_an_argument_of_the_library(name: str, dtype: torch.dtype) -> None:
    """Quotients and remainders of symbolic sizes do not show that they are strides."""
    x = torch.randn(2, 6, 3, 4, dtype=dtype)
    check(lambda x: torch.logcumsumexp(SYMBOLIC[name](x), 0), x, dynamic=True, native=False)
