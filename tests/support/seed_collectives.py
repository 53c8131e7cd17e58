"""What both halves of the seed document test_inductor_collectives compare and compile with, and its functions that one
rank looks at and two ranks run."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed._functional_collectives  # defines the ops


def ranked(rank: int, *size: int, device: Any = "cpu") -> torch.Tensor:
    """Whole numbers, of each rank others, and hardly two alike side by side: what is swapped, doubled or left out is
    seen, and sums have one value in whatever order."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randint(-30, 31, size or (4, 4), generator=generator).float().to(device)


def same(a: Any, b: Any, tol: float = 1e-5) -> bool:
    torch.testing.assert_close(a, b, atol=tol, rtol=tol)
    return True


litz = functools.partial(torch.compile, backend="litz", options={"debug": True})

wait_tensor = torch.ops.c10d_functional.wait_tensor


def single_op(inp, *, tag, ranks, group_size):
    ar = torch.ops.c10d_functional.all_reduce(inp, "sum", tag, ranks, group_size)
    return wait_tensor(ar)


def steal_buffer(inp, *, tag, ranks, group_size):
    x = inp + 1
    ar = torch.ops.c10d_functional.all_reduce(x, "sum", tag, ranks, group_size)
    ar = wait_tensor(ar)
    # ensure other is not incorrectly aliasing ar's buffer
    other = torch.ones_like(inp) + 22
    return ar, other


def doesnt_mutate_shared(inp, *, tag, ranks, group_size):
    x = inp + 1
    ar = torch.ops.c10d_functional.all_reduce(x, "sum", tag, ranks, group_size)
    y = x + 2
    ar = wait_tensor(ar)
    other = torch.ones_like(inp) + 22
    return ar, y, other


def shared_with_a_later_call(inp, *, tag, ranks, group_size):
    """As `doesnt_mutate_shared`, where x is read by a library call that no kernel takes in."""
    x = inp + 1
    ar = torch.ops.c10d_functional.all_reduce(x, "sum", tag, ranks, group_size)
    y = torch.mm(x, x)
    ar = wait_tensor(ar)
    other = torch.ones_like(inp) + 22
    return ar, y, other


def sent_while_computing(inp, *, tag, ranks, group_size):
    """x is dead when it is sent, and lies as each of the products does: its memory is theirs only after the wait."""
    x = inp + 1
    gathered = torch.ops.c10d_functional.all_gather_into_tensor(x, tag, ranks, group_size)
    y = torch.mm(inp, inp)
    y = torch.mm(y, inp)
    y = torch.mm(y, inp)
    gathered = wait_tensor(gathered)
    return gathered, y


def never_awaited(inp, *, tag, ranks, group_size):
    """As `sent_while_computing`, where nobody here waits: the caller gets what is still on its way."""
    x = inp + 1
    gathered = torch.ops.c10d_functional.all_gather_into_tensor(x, tag, ranks, group_size)
    y = torch.mm(inp, inp)
    y = torch.mm(y, inp)
    return gathered, torch.mm(y, inp)


def sent_twice(inp, *, tag, ranks, group_size):
    """Two equal calls are two."""
    op = torch.ops.c10d_functional.all_gather_into_tensor
    first, second = op(inp, tag, ranks, group_size), op(inp, tag, ranks, group_size)
    return wait_tensor(first), wait_tensor(second)


def never_used(inp, *, tag, ranks, group_size):
    """Nobody looks at what is gathered, nor at what is reduced: other ranks wait for both all the same."""
    x = inp + 1
    wait_tensor(torch.ops.c10d_functional.all_gather_into_tensor(x, tag, ranks, group_size))
    wait_tensor(torch.ops.c10d_functional.all_reduce(x, "sum", tag, ranks, group_size))
    return inp + 2


def written_after_it_is_sent(inp, *, tag, ranks, group_size):
    """The input is sent, and written when it is: the write comes after the wait."""
    gathered = torch.ops.c10d_functional.all_gather_into_tensor(inp, tag, ranks, group_size)
    y = torch.mm(inp, inp)
    gathered = wait_tensor(gathered)
    inp.mul_(2)
    return gathered, y


def _coalesced(start, inp):
    x = inp + 1
    tensor_list = start([x, inp])
    y = x + 2
    ar0 = wait_tensor(tensor_list[0])
    ar1 = wait_tensor(tensor_list[1])
    other = torch.ones_like(inp) + 22
    return ar0, y, other, ar1


def all_gather_coalesced(inp, *, tag, ranks, group_size):
    op = torch.ops.c10d_functional.all_gather_into_tensor_coalesced
    return _coalesced(lambda tensors: op(tensors, tag, ranks, group_size), inp)


def reduce_scatter_coalesced(inp, *, tag, ranks, group_size):
    op = torch.ops.c10d_functional.reduce_scatter_tensor_coalesced
    return _coalesced(lambda tensors: op(tensors, "sum", tag, ranks, group_size), inp)
