"""Inputs that are written where they lie, and those that are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.lowering.harness import program_of
from core.schedule.harness import CPU, GPU, OPTIONS, check, plan_of
from litz.ir import Attention, Extern, Layout, Loop, Program, TensorRef
from litz.schedule import prepare
from litz.schedule.write_in_place import renamed, write_in_place
from litz_plugins import Decision, PassContext

Tensor = torch.Tensor
ON_GPU = replace(GPU, asynchronous=True)


def cache() -> Tensor:
    return torch.randn(2, 3, 10, 4)


def new() -> Tensor:
    return torch.randn(2, 3, 1, 4)


def copied(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(2, position, new)
    return cache.sum(2)


def put(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
    cache[:, :, position] = new
    return cache * 2


def added(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
    cache.index_add_(2, position, new)
    return cache.amax(2)


def twice(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(2, position, new)
    cache.index_copy_(2, position + 1, new * 2)
    return cache + 1


def before(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
    old = cache.sum(2)
    cache.index_copy_(2, position, new)
    return old


def kept(cache: Tensor, position: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    old = cache.clone()
    cache.index_copy_(2, position, new)
    return old, cache.cos()


def multiplied(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
    """A library call reads what was written."""
    cache.index_copy_(2, position, new)
    return cache[0] @ new[0].transpose(1, 2)


def made_of_itself(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(2, position, cache[:, :, :1] + new)
    return cache.sum(2)


def shifted(cache: Tensor, position: Tensor, new: Tensor) -> None:
    """Every row is written from the one before."""
    cache.index_copy_(2, torch.arange(1, 10), cache[:, :, :-1])


def copies(program: Program, name: str) -> int:
    """How many loops write all of an input, or read all of it to write it somewhere."""
    loops = (op for op in program.operations if isinstance(op, Loop) and not op.is_reduction)
    return sum(
        loop.numel == program.buffers[name].layout.numel and name in (*loop.reads, *loop.writes) for loop in loops
    )


def program(fn: Callable[..., Any]) -> tuple[Program, list[Any]]:
    args = [cache(), torch.tensor([4]), new()]
    return program_of(fn, *args), args


@pytest.mark.parametrize("fn", [copied, put, added, before, kept, multiplied])
def test_the_input_is_written_where_it_lies(fn: Callable[..., Any]) -> None:
    before_passes, args = program(fn)
    name = next(before_passes.input_buffers)
    after = prepare(before_passes, OPTIONS, lambda device: ON_GPU)
    reads_all = {put: 1, kept: 2}.get(fn, 0)  # what the function itself does with all of it
    assert copies(before_passes, name) >= 2 and copies(after, name) == reads_all, after
    check(before_passes, args, ON_GPU, element_wise=True)


@pytest.mark.parametrize("fn", [made_of_itself, shifted, twice])
def test_old_values_count_where_they_should(fn: Callable[..., Any]) -> None:
    before_passes, args = program(fn)
    check(before_passes, args, ON_GPU, element_wise=True)


def test_old_values_that_are_read_later_are_kept() -> None:
    before_passes, args = program(kept)
    name = next(before_passes.input_buffers)
    (reader,) = (
        op for op in before_passes.operations if name in op.reads and op.writes[0] in before_passes.output_buffers
    )
    others = [op for op in before_passes.operations if op is not reader]
    late = replace(before_passes, operations=(*others[:-1], reader, others[-1]))
    assert name in others[-1].writes
    after = prepare(late, OPTIONS, lambda device: ON_GPU)
    assert copies(after, name) == copies(late, name)
    check(late, args, ON_GPU)


def test_a_result_is_not_the_input() -> None:
    def fn(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
        updated = cache.index_copy(2, position, new)
        cache.copy_(updated)
        return updated

    before_passes, args = program(fn)
    plan_of(before_passes, ON_GPU)
    check(before_passes, args, ON_GPU)


def test_an_error_leaves_the_input_as_it_was_where_one_survives_it() -> None:
    before_passes, _ = program(copied)
    name = next(before_passes.input_buffers)
    after = prepare(before_passes, OPTIONS, lambda device: CPU)
    assert copies(after, name) == copies(before_passes, name)

    torch._dynamo.reset()
    given = cache()
    wanted = given.clone()
    with pytest.raises((IndexError, RuntimeError)):
        torch.compile(copied, backend="litz")(given, torch.tensor([10]), new())
    assert torch.equal(given, wanted)


def test_it_is_put_on_record() -> None:
    before_passes, _ = program(copied)
    decisions: list[Decision] = []
    context = PassContext(OPTIONS, "program", "write_in_place", note=decisions.append, target_of=lambda device: ON_GPU)
    write_in_place(before_passes, context)
    assert [decision.chosen for decision in decisions] == ["written in place"]


def test_all_of_an_operation_is_renamed() -> None:
    ref = TensorRef("old", Layout.contiguous((2, 3)))
    call = Extern(
        "old", torch.device("cpu"), torch.ops.aten.mm.default, (ref, [ref, 3]), outputs=("out",), mutates=("old",)
    )
    found = renamed(call, "old", "new")
    assert found.reads == ("new",) and found.mutates == ("new",) and found.args[1][1] == 3
    assert found.name == "old", "what it is called is not what it works on"
    attention = Attention("a", torch.device("cuda"), torch.ops.aten.mm.default, (ref,), key=ref, query=ref, value=ref)
    assert renamed(attention, "old", "new").key.buffer == "new"
