"""Writes to inputs and to views of them, in the order of eager; what shares memory with what."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.compare import check, close, device_param, litz, t

INF, NAN = math.inf, math.nan


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
    total = x.mean()
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


@pytest.mark.ci_cases("shift_in_place-cpu", "transpose_all_into_itself-cpu")
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
def test_outputs_that_are_views_of_one_tensor_as_another_type(device: str) -> None:
    """s81i:12978: AOTAutograd makes each of them from what was written, and each lies in the same memory."""

    def fresh(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(x)
        bits = x.to(torch.float16).view(torch.int16)
        bits[-2::2].index_add_(0, torch.zeros(1, dtype=torch.int64, device=x.device), bits[:1] * 2)
        return bits[-2::2], bits

    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        bits = y.view(torch.int32)
        bits.add_(1)
        return bits.view(torch.float32), y, bits[1:], x * 2

    for fn in (fresh, both):
        x = t(6, 4, device=device)
        ours, theirs = torch.compile(fn, backend="litz")(x.clone()), fn(x.clone())
        close(ours, theirs, theirs)
        places = [[one.untyped_storage().data_ptr() for one in values] for values in (ours, theirs)]
        alike = [[place == other for place in found for other in found] for found in places]
        assert alike[0] == alike[1]


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


@device_param
def test_views_of_a_leaf_are_written_without_gradients(device: str) -> None:
    """Autograd lets nobody look at such a view after the leaf was written through another."""

    def fn(leaf: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            leaf[1:].mul_(0.5)
            leaf.view(-1)[0] = 9
        return (leaf @ x).sum()

    x, found, wanted = t(3, device=device), t(4, 3, device=device), t(4, 3, device=device)
    for leaf, call in ((found, torch.compile(fn, backend="litz")), (wanted, fn)):
        call(leaf.requires_grad_(), x).backward()
    assert torch.equal(found, wanted) and torch.equal(found.grad, wanted.grad)  # type: ignore[arg-type]


SAVED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a transposed operand": lambda x, w: x @ w,
    "operands of a batch": lambda x, w: torch.bmm(x.expand(2, 3, 3), w.expand(2, 3, 3)),
    "more dimensions": lambda x, w: torch.nn.functional.linear(x.view(1, 3, 3), w),
    "a row": lambda x, w: x[1] * w,
    "a window": lambda x, w: x.as_strided((2, 3), (3, 1), 3) * w[:2],
    "the whole": lambda x, w: x * w,
}


@pytest.mark.parametrize("name", SAVED)
def test_what_a_backward_reads_must_not_be_written_before(name: str) -> None:
    """What is saved is a view of an input: it has the input's version, which autograd compares."""
    for function in (SAVED[name], litz(SAVED[name])):
        x, w = torch.rand(3, 3), torch.rand(3, 3, requires_grad=True)
        function(x, w).sum().backward()
        loss = function(x, w).sum()
        x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
