"""Inputs that are written where they lie, and those that are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.schedule.harness import CPU, GPU, OPTIONS, check, passed, plan_of
from litz.ir import Extern, Layout, Loop, Program, TensorRef
from litz_contractions.attention.operation import Attention
from litz_passes.program.write_in_place import renamed, write_in_place
from litz_plugins import Decision, PassContext
from litz_testing.parse.programs import parse_program
from operators.harness import program_of
from support.own_plugins import prepare

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


KEPT = """\
program kept
  input cache: f32 [10, 4] cpu
  input position: i64 [1] cpu
  input new: f32 [1, 4] cpu
  loop op0 [i0<10, i1<4] cpu
    v0: f32 = load cache[i0, i1]
    store copy[i0, i1] = v0  # f32 [10, 4]
  loop op1 [i0<1, i1<4] cpu
    v0: i64 = load position[i0]
    v1: i64 = bounded v0 < 10
    v2: f32 = load new[i0, i1]
    store copy[v1, i1] = v2
  loop op2 [i0<10] cpu
    v0: f32 = load cache[i0, 0]
    store first[i0] = v0  # f32 [10]
  loop op3 [i0<10, i1<4] cpu
    v0: f32 = load copy[i0, i1]
    store cache[i0, i1] = v0
  return first[10]
"""
WRITTEN = """\
program kept
  input cache: f32 [10, 4] cpu
  input position: i64 [1] cpu
  input new: f32 [1, 4] cpu
  loop op1 [i0<1, i1<4] cpu
    v0: i64 = load position[i0]
    v1: i64 = bounded v0 < 10
    v2: f32 = load new[i0, i1]
    store cache[v1, i1] = v2
  loop op2 [i0<10] cpu
    v0: f32 = load cache[i0, 0]
    store first[i0] = v0  # f32 [10]
  return first[10]
"""


def test_old_values_that_are_read_later_are_kept() -> None:
    """The first column of what was there, or of what is there now."""
    given = [torch.randn(10, 4), torch.tensor([4]), torch.randn(1, 4)]
    assert parse_program(passed("write_in_place", KEPT, ON_GPU)) == parse_program(KEPT)
    new = KEPT.replace("load cache[i0, 0]", "load copy[i0, 0]")
    assert passed("write_in_place", new, ON_GPU) == WRITTEN
    for text in (KEPT, new):
        check(parse_program(text), given, ON_GPU, element_wise=True)


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
