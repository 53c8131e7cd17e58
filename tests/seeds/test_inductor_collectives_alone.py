"""Functional collectives in compiled graphs, as far as one rank can tell: the cases of the seed document
test_inductor_collectives that need no second one, in a group of one.

What the original reads off generated text is read off the schedule, as data, and off the wrapper's text. Where the
original needs a GPU's memory, the schedule is made of fake CUDA tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as _functional_collectives
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.distributed_c10d import GroupMember
from torch.utils._pytree import tree_map

from litz.codegen.wrapper import generate_wrapper
from litz.ir import Collective, Wait
from litz.pipeline import compile_backend, generate, make_compiler, schedule_only
from litz.schedule import Schedule, check_schedule
from litz.schedule.schedule import Kernel
from support.seed_collectives import litz, same

ALONE = {"tag": "", "ranks": [0], "group_size": 1}
MODE = FakeTensorMode(allow_non_fake_inputs=True)


@pytest.fixture
def alone(tmp_path: Any) -> Iterator[None]:
    """A group of one rank over gloo."""
    torch._dynamo.reset()
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch._dynamo.reset()


class CompileCounter:
    """A backend that counts frames and ops, and compiles with litz."""

    def __init__(self) -> None:
        self.frame_count = self.op_count = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += sum(node.op.startswith("call") for node in gm.graph.nodes)
        return compile_backend(gm, example_inputs, options={"debug": True})


def made(func: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Schedule, str]:
    """The schedule for CUDA and the wrapper's text, of fake tensors like the inputs, in a group of one."""
    with MODE:
        fakes = [torch.empty(tensor.shape, device="cuda") for tensor in inputs]
    (schedule,) = schedule_only(functools.partial(func, **ALONE), fakes, {"debug": True})
    check_schedule(schedule)
    return schedule, generate_wrapper(schedule, generate(schedule, make_compiler())).text


def in_order(text: str, *parts: str) -> None:
    """Each part comes after the one before."""
    place = 0
    for part in parts:
        found = text.find(part, place)
        assert found >= 0, f"{part!r} is not in the rest of\n{text}"
        place = found + len(part)


@pytest.mark.usefixtures("alone")
def test_inductor_single_op() -> None:
    def func(inp, *, tag, ranks, group_size):
        ar = torch.ops.c10d_functional.all_reduce(inp, "sum", tag, ranks, group_size)
        return torch.ops.c10d_functional.wait_tensor(ar)

    inputs = torch.ones(4, 4)
    schedule, text = made(func, inputs)
    # Nothing is copied before it is returned: the op makes its own result, and that is what comes back.
    assert [type(step) for step in schedule.steps] == [Collective, Wait]
    start, wait = schedule.steps
    assert start.target_name == "_c10d_functional.all_reduce.default", "an input is not reduced in place"
    assert [output.buffer for output in schedule.program.outputs] == list(wait.outputs)
    in_order(text, "_c10d_functional_all_reduce_default(", "_c10d_functional_wait_tensor_default(", "return (")
    assert same(litz(func)(inputs, **ALONE), func(inputs, **ALONE))
    assert same(inputs, torch.ones(4, 4))


@pytest.mark.usefixtures("alone")
def test_inductor_steal_buffer() -> None:
    """An intermediate that is not used again is reduced in place."""

    def func(inp, *, tag, ranks, group_size):
        x = inp + 1
        ar = torch.ops.c10d_functional.all_reduce(x, "sum", tag, ranks, group_size)
        ar = torch.ops.c10d_functional.wait_tensor(ar)
        other = torch.ones_like(inp) + 22
        return ar, other

    inputs = torch.ones(4, 4)
    schedule, text = made(func, inputs)
    (start,) = (step for step in schedule.steps if isinstance(step, Collective))
    assert start.target_name == "_c10d_functional.all_reduce_.default"
    assert start.mutates == start.reads
    # `other` does not get the memory of what is reduced.
    assert not schedule.memory.reuse and schedule.memory.total_bytes == 2 * 64
    in_order(text, "_empty_cuda", "all_reduce__default(", "_wait_tensor_default(", "return (")
    assert same(litz(func)(inputs, **ALONE), func(inputs, **ALONE))


@pytest.mark.usefixtures("alone")
def test_inductor_doesnt_mutate_shared() -> None:
    """An intermediate that is used again is not changed."""

    def func(inp, *, tag, ranks, group_size):
        x = inp + 1
        ar = torch.ops.c10d_functional.all_reduce(x, "sum", tag, ranks, group_size)
        y = x + 2
        ar = torch.ops.c10d_functional.wait_tensor(ar)
        other = torch.ones_like(inp) + 22
        return ar, y, other

    inputs = torch.ones(4, 4)
    schedule, text = made(func, inputs)
    (number,) = (n for n, step in enumerate(schedule.steps) if isinstance(step, Collective))
    start = schedule.steps[number]
    assert isinstance(start, Collective)
    after = [step for step in schedule.steps[number + 1 :] if isinstance(step, Kernel)]
    if start.mutates:  # then y was computed from inp, not from what is reduced
        assert all(start.mutates[0] not in step.reads for step in after)
    in_order(text, "_empty_cuda", "all_reduce", "_wait_tensor_default(", "return (")
    assert same(litz(func)(inputs, **ALONE), func(inputs, **ALONE))


@pytest.mark.usefixtures("alone")
def test_dynamo_trace_allreduce() -> None:
    def func(inp):
        return _functional_collectives.all_reduce(inp, "sum", "0")

    _traced(func, torch.ones(4, 4), ops=2)


@pytest.mark.usefixtures("alone")
def test_dynamo_trace_all_gather_tensor() -> None:
    def func(inp):
        return _functional_collectives.all_gather_tensor(inp, 0, "0")

    _traced(func, torch.ones(4, 4), ops=2)


def _traced(func: Callable[..., Any], inputs: Any, ops: int, **kwargs: Any) -> None:
    """One frame of so many ops, with eager's result."""
    counter = CompileCounter()
    out = torch.compile(func, backend=counter)(inputs, **kwargs)
    assert (counter.frame_count, counter.op_count) == (1, ops)
    # A function without a wait returns what is still on its way, compiled or not.
    actual, expected = (tree_map(_functional_collectives.wait_tensor, found) for found in (out, func(inputs, **kwargs)))
    assert same(actual, expected)


@pytest.mark.usefixtures("alone")
def test_dynamo_trace_all_gather_tensor_pg() -> None:
    def func(inp, *, pg):
        return _functional_collectives.all_gather_tensor(inp, 0, pg)

    _traced(func, torch.ones(4, 4), ops=2, pg=GroupMember.WORLD)


def _rewritten(func: Callable[..., Any], ops: int | None = 3, listed: bool = False) -> None:
    """One frame, with what eager writes into `out`."""
    inputs = torch.ones(4, 4)
    outputs: Any = torch.empty(4, 4)
    correct: Any = torch.empty(4, 4)
    outputs, correct = ([outputs], [correct]) if listed else (outputs, correct)
    counter = CompileCounter()
    torch.compile(func, backend=counter, fullgraph=True)(inputs, outputs, pg=GroupMember.WORLD)
    func(inputs, correct, pg=GroupMember.WORLD)
    assert counter.frame_count == 1
    assert ops is None or counter.op_count == ops  # the collective, the wait, the copy
    assert same(outputs, correct)


@pytest.mark.usefixtures("alone")
def test_dynamo_rewrite_dist_all_gather() -> None:
    def func(inp, out, *, pg):
        torch.distributed.all_gather_into_tensor(out, inp, pg)

    _rewritten(func)


@pytest.mark.usefixtures("alone")
def test_dynamo_rewrite_dist_all_gather_list() -> None:
    def func(inp, out, *, pg):
        torch.distributed.all_gather(out, inp, pg)

    _rewritten(func, ops=None, listed=True)


@pytest.mark.usefixtures("alone")
def test_dynamo_rewrite_dist_all_gather_args_match() -> None:
    def func(inp, out, *, pg):
        torch.distributed.all_gather_into_tensor(output_tensor=out, input_tensor=inp, group=pg, async_op=False)

    _rewritten(func)


@pytest.mark.usefixtures("alone")
def test_dynamo_rewrite_dist_reduce_scatter() -> None:
    def func(inp, out, *, pg):
        torch.distributed.reduce_scatter_tensor(out, inp, group=pg)

    _rewritten(func)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("pg_mode", ["positional", "positional_none", "kwargs", "kwargs_none", "unspecified"])
def test_dynamo_rewrite_dist_allreduce(pg_mode: str) -> None:
    def func(tensor, *args, **kwargs):
        torch.distributed.all_reduce(tensor, *args, **kwargs)

    args, kwargs = {
        "positional": ((dist.ReduceOp.MAX, GroupMember.WORLD), {}),
        "positional_none": ((dist.ReduceOp.MAX, None), {}),
        "kwargs": ((), {"group": GroupMember.WORLD}),
        "kwargs_none": ((), {"group": None}),
        "unspecified": ((), {}),
    }[pg_mode]
    counter = CompileCounter()
    inputs_compiled, inputs_eager = torch.ones(2), torch.ones(2)
    torch.compile(func, backend=counter, fullgraph=True)(inputs_compiled, *args, **kwargs)
    func(inputs_eager, *args, **kwargs)
    assert (counter.frame_count, counter.op_count) == (1, 3)  # all_reduce, wait, copy_
    assert same(inputs_compiled, inputs_eager)


@pytest.mark.usefixtures("alone")
def test_dynamo_rewrite_dist_all_to_all_single() -> None:
    def func(output, input, pg):
        torch.distributed.all_to_all_single(output, input, group=pg)

    counter = CompileCounter()
    output_compiled, output_eager = torch.empty(2), torch.empty(2)
    torch.compile(func, backend=counter, fullgraph=True)(output_compiled, torch.ones(2), GroupMember.WORLD)
    func(output_eager, torch.ones(2), GroupMember.WORLD)
    assert counter.frame_count == 1
    assert same(output_compiled, output_eager)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("reduce_op", ["SUM", "AVG", "PRODUCT", "MIN", "MAX"])
def test_dynamo_rewrite_dist_allreduce_reduce_op(reduce_op: str) -> None:
    from torch.distributed._functional_collectives import REDUCE_OP_TO_STR

    op = getattr(dist.ReduceOp, reduce_op)
    found: list[Any] = []

    def verify_rewrite(gm, _):
        wanted = (torch.ops.c10d_functional.all_reduce, torch.ops._c10d_functional.all_reduce)
        found.extend(node for node in gm.graph.nodes if node.target in wanted)
        return gm

    if reduce_op == "AVG":  # gloo has no average: it is traced, and not run
        with MODE:
            torch.compile(torch.distributed.all_reduce, backend=verify_rewrite, fullgraph=True)(
                torch.ones(2), op, GroupMember.WORLD
            )
    else:
        torch.compile(torch.distributed.all_reduce, backend=verify_rewrite, fullgraph=True)(
            torch.ones(2), op, GroupMember.WORLD
        )
    assert len(found) == 1
    assert REDUCE_OP_TO_STR[op] == found[0].args[1]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("source", ["GroupMember.WORLD", "group.WORLD", "_get_default_group"])
def test_dynamo_get_world_group(source: str) -> None:
    def func(tensor):
        if source == "GroupMember.WORLD":
            group = torch.distributed.GroupMember.WORLD
        elif source == "group.WORLD":
            group = torch.distributed.group.WORLD
        else:
            group = torch.distributed.distributed_c10d._get_default_group()
        torch.distributed.all_reduce(tensor, group=group)

    found: list[Any] = []

    def verify(gm, inputs):
        wanted = (torch.ops.c10d_functional.all_reduce, torch.ops._c10d_functional.all_reduce)
        found.extend(node for node in gm.graph.nodes if node.target in wanted)
        return compile_backend(gm, inputs, options={"debug": True})

    given = torch.ones(2)
    torch.compile(func, backend=verify, fullgraph=True)(given)
    assert len(found) == 1
    assert same(given, torch.ones(2))


@pytest.mark.usefixtures("alone")
def test_dynamo_support_collective_op_with_async_op_False() -> None:
    def func(inp, out, *, pg):
        # Said out loud, it must not break the graph.
        torch.distributed.reduce_scatter_tensor(out, inp, group=pg, async_op=False)

    _rewritten(func)


@pytest.mark.usefixtures("alone")
def test_dynamo_graphbreaks_unsupported_async_op() -> None:
    def func(inp, out, *, pg):
        work = torch.distributed.reduce_scatter_tensor(out, inp, group=pg, async_op=True)
        work.wait()

    inputs, outputs, correct = torch.ones(4, 4), torch.empty(4, 4), torch.empty(4, 4)
    counter = CompileCounter()
    torch.compile(func, backend=counter)(inputs, outputs, pg=GroupMember.WORLD)
    func(inputs, correct, pg=GroupMember.WORLD)
    assert (counter.frame_count, counter.op_count) == (0, 0)
    assert same(outputs, correct)


@pytest.mark.usefixtures("alone")
def test_dynamo_pg_var() -> None:
    def func(inp, *, pg):
        return inp + (pg.rank() + 1 % pg.size())

    counter = CompileCounter()
    outputs = torch.compile(func, backend=counter, fullgraph=True)(torch.ones(4, 4), pg=GroupMember.WORLD)
    assert (counter.frame_count, counter.op_count) == (1, 1)
    assert same(outputs, func(torch.ones(4, 4), pg=GroupMember.WORLD))


@pytest.mark.usefixtures("alone")
def test_dynamo_trace_reduce_scatter_tensor() -> None:
    def func(inp):
        return _functional_collectives.reduce_scatter_tensor(inp, "sum", 0, "0")

    _traced(func, torch.ones(4, 4), ops=2)


@pytest.mark.usefixtures("alone")
def test_dynamo_trace_allgather_coalesced() -> None:
    def func(inp, *, tag, ranks, group_size):
        return torch.ops.c10d_functional.all_gather_into_tensor_coalesced(inp, tag, ranks, group_size)

    _traced(func, [torch.ones(4, 4), torch.ones(6, 6)], ops=3, **ALONE)  # the call, and an item of its list twice


@pytest.mark.usefixtures("alone")
def test_backwards() -> None:
    """As in eager: torch 2.13 differentiates an all_reduce, older versions say that they do not."""

    def func(inp):
        return _functional_collectives.all_reduce(inp, "sum", "0")

    def gradient(function: Callable[..., Any]) -> Any:
        given = torch.ones(4, 4, requires_grad=True)
        out = function(given)
        try:
            out.sum().backward()
        except RuntimeError as error:
            return str(error)
        return out.detach().clone(), given.grad

    eager, compiled = gradient(func), gradient(litz(func))
    if isinstance(eager, str):
        assert "does not require grad" in eager and compiled == eager
    else:
        assert same(tuple(compiled), tuple(eager))


@pytest.mark.usefixtures("alone")
def test_meta() -> None:
    x = torch.rand((2, 3, 4), device="meta")
    out = torch.ops.c10d_functional.all_reduce(x, "sum", **ALONE)
    assert x.size() == out.size()


def _coalesced(start: Callable[..., Any]) -> None:
    """x is sent and used again: it keeps its value, and nothing takes its memory before the wait."""

    def func(inp, *, tag, ranks, group_size):
        x = inp + 1
        tensor_list = start([x, inp], tag, ranks, group_size)
        y = x + 2
        ar0 = torch.ops.c10d_functional.wait_tensor(tensor_list[0])
        ar1 = torch.ops.c10d_functional.wait_tensor(tensor_list[1])
        other = torch.ones_like(inp) + 22
        return ar0, y, other, ar1

    inputs = torch.ones(4, 4)
    schedule, text = made(func, inputs)
    (number,) = (n for n, step in enumerate(schedule.steps) if isinstance(step, Collective))
    waits = [n for n, step in enumerate(schedule.steps) if isinstance(step, Wait)]
    call = schedule.steps[number]
    assert len(waits) == 2 and isinstance(call, Collective) and not call.mutates
    between = {name for step in schedule.steps[number + 1 : waits[0]] for name in step.writes}
    assert not between & {*call.reads, *call.writes}
    taken = {new for new, old in schedule.memory.reuse.items() if old in (*call.reads, *call.writes)}
    early = {name for names in schedule.memory.allocate[: waits[0] + 1] for name in names}
    assert not taken & early, "memory that is in flight"
    in_order(text, "_coalesced_default(", "[0]", "[1]", "wait_tensor_default(", "wait_tensor_default(", "return (")
    assert same(tuple(litz(func)(inputs, **ALONE)), tuple(func(inputs, **ALONE)))


@pytest.mark.usefixtures("alone")
def test_inductor_all_gather_coalesced() -> None:
    _coalesced(torch.ops.c10d_functional.all_gather_into_tensor_coalesced)


@pytest.mark.usefixtures("alone")
def test_inductor_reduce_scatter_coalesced() -> None:
    def start(tensors, tag, ranks, group_size):
        return torch.ops.c10d_functional.reduce_scatter_tensor_coalesced(tensors, "sum", tag, ranks, group_size)

    _coalesced(start)
