"""Functional collectives in compiled graphs, as far as one rank can tell: the cases of the seed document
test_inductor_collectives that need no second one, in a group of one: gloo on the CPU, NCCL where there is a GPU.

What the original reads off generated text is read off the lines that ran, and off the text for a GPU that need not be
there. Values that only two ranks tell apart are compared in test_inductor_collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as _functional_collectives
from torch.distributed.distributed_c10d import GroupMember
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map

from litz.ir import Collective
from litz.pipeline import compile_backend, make_compiler
from litz.report import collect
from litz_passes.schedule import reduce_in_place
from support import seed_collectives
from support.collective_memory import (
    ALONE,
    LARGE,
    Memory,
    check_both,
    lines_for_gpu,
    lines_of,
    lines_that_ran,
    memory_of,
)
from support.executed import executed, steps
from support.retarget import cuda_schedules
from support.seed_collectives import litz, ranked, same

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="NCCL needs a GPU")]


@pytest.fixture(params=["gloo", pytest.param("nccl", marks=ON_GPU)])
def alone(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[str]:
    """A group of one rank; the device for its tensors."""
    torch._dynamo.reset()
    dist.init_process_group(request.param, store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield "cuda" if request.param == "nccl" else "cpu"
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


def test_inductor_single_op(alone: str) -> None:
    def check(memory: Memory, inp: str) -> None:
        # Nothing is copied before it is returned: the op makes its own result, and that is what comes back.
        assert [kind for kind, _, _ in memory.steps] == ["all_reduce", "wait_tensor"]
        given, made = memory.only("all_reduce")
        assert given == (inp,) and made != inp, "an input is not reduced in place"
        assert memory.returned == (made,)

    check_both(check, seed_collectives.single_op, alone)


def test_inductor_steal_buffer(alone: str) -> None:
    """An intermediate that is not used again is reduced in place."""

    def check(memory: Memory, inp: str) -> None:
        (kind, (first, x, *_), _), *rest = memory.steps
        assert kind.startswith("add") and first == inp
        assert memory.only("all_reduce_") == ((x,), x)
        assert [name for name, _, _ in rest[:2]] == ["all_reduce_", "wait_tensor"]
        reduced, other = memory.returned
        assert reduced == x and other != x, "`other` does not get the memory of what is reduced"
        assert not any(name == "all_reduce" for name, _, _ in memory.steps)

    check_both(check, seed_collectives.steal_buffer, alone)


def _not_mutated(memory: Memory, x: str) -> None:
    """From where communication starts to write x, nothing else is given it."""
    number = next(n for n, (kind, _, _) in enumerate(memory.steps) if kind.startswith("all_reduce"))
    kind, (sent,), _ = memory.steps[number]
    assert sent == x
    if kind == "all_reduce_":
        assert not any(x in given for name, given, _ in memory.steps[number + 1 :] if name != "wait_tensor")


def test_inductor_doesnt_mutate_shared(alone: str) -> None:
    """An intermediate that is used again is not changed."""

    def check(memory: Memory, inp: str) -> None:
        # y is computed beside x, so that x is not used again, and is reduced in place.
        kind, (first, x, y, *_), _ = memory.steps[0]
        assert kind.startswith("add + add_1") and first == inp
        assert memory.only("all_reduce_") == ((x,), x)
        _not_mutated(memory, x)
        assert memory.returned[:2] == (x, y) and memory.returned[2] not in (x, y)
        assert [name for name, _, _ in memory.steps[1:3]] == ["all_reduce_", "wait_tensor"]

    check_both(check, seed_collectives.doesnt_mutate_shared, alone)


def _shared_with_a_later_call(memory: Memory, inp: str) -> None:
    x = memory.steps[0][1][1]
    given, made = memory.only("all_reduce")
    assert given == (x,) and made not in (x, inp), "out of place"
    assert memory.only("mm")[0][:2] == (x, x)
    _not_mutated(memory, x)
    assert memory.returned[0] == made and len({*memory.returned, x}) == 4


def test_inductor_doesnt_mutate_shared_by_a_later_call(alone: str) -> None:
    check_both(_shared_with_a_later_call, seed_collectives.shared_with_a_later_call, alone)


def test_a_shared_buffer_that_is_mutated_is_noticed(alone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails where reductions in place do not look at who reads their argument."""
    monkeypatch.setattr(reduce_in_place, "_may_be_written", lambda *_: True)
    memory = memory_of(lines_for_gpu(seed_collectives.shared_with_a_later_call, 4))
    with pytest.raises(AssertionError):
        _not_mutated(memory, memory.steps[0][1][1])
    with pytest.raises((AssertionError, ValueError)):
        _shared_with_a_later_call(memory, "arg0_1")


LATE = {"collectives.passes": ["sink_waits"]}
"""Waits stand right before what needs them: communication is under way for as long as it can be."""


def test_memory_of_a_running_collective_is_not_reused(alone: str) -> None:
    def check(memory: Memory, inp: str) -> None:
        names = [kind for kind, _, _ in memory.steps]
        start, wait = names.index("all_gather_into_tensor"), names.index("wait_tensor")
        (sent,), made = memory.steps[start][1:]
        under_way = memory.steps[start + 1 : wait]
        assert [kind for kind, _, _ in under_way] == ["mm", "mm", "mm"]
        for _, given, result in under_way:
            assert not {sent, made} & {*given, result}, "the other ranks still read it, and still write this"

    check_both(check, seed_collectives.sent_while_computing, alone, options=LATE)


def test_a_wait_stays_behind_what_the_source_has_before_it(alone: str) -> None:
    """Less memory is no reason to wait before the computation that hides the communication, where no pass moves it."""
    lines = lines_that_ran(seed_collectives.sent_while_computing, ranked(0, 64, 64, device=alone))
    ran = ["add", "all_gather_into_tensor", "mm", "mm", "mm", "wait_tensor"]
    assert [kind for kind, _, _ in steps(lines)] == ran


def test_memory_of_a_collective_that_nobody_awaits_is_not_reused(alone: str) -> None:
    def check(memory: Memory, inp: str) -> None:
        start = [kind for kind, _, _ in memory.steps].index("all_gather_into_tensor")
        (sent,), made = memory.steps[start][1:]
        assert [kind for kind, _, _ in memory.steps[start + 1 :]] == ["mm", "mm", "mm"]
        for _, given, result in memory.steps[start + 1 :]:
            assert not {sent, made} & {*given, result}, "who knows when it is done?"

    check(memory_of(lines_for_gpu(seed_collectives.never_awaited, 4)), "")
    torch._dynamo.reset()
    given, out = ranked(0, 4, 4, device=alone), []
    compiled = litz(seed_collectives.never_awaited)
    seed_collectives.wait_tensor(compiled(given, **ALONE)[0])
    lines = executed(lambda: out.append(compiled(given, **ALONE)))
    check(memory_of(lines), "")
    gathered, product = out[0]
    assert same(seed_collectives.wait_tensor(gathered), given + 1, tol=0)
    assert same(product, given @ given @ given @ given)


def test_equal_collectives_both_run(alone: str) -> None:
    """Other ranks may see two in what is one here."""

    def check(memory: Memory, inp: str) -> None:
        assert [kind for kind, _, _ in memory.steps] == ["all_gather_into_tensor"] * 2 + ["wait_tensor"] * 2
        assert len({*memory.returned}) == 2

    check_both(check, seed_collectives.sent_twice, alone)


def test_an_unused_collective_runs(alone: str) -> None:
    """Other ranks wait for it."""

    def check(memory: Memory, inp: str) -> None:
        assert [kind.removesuffix("_") for kind, _, _ in memory.steps if not kind.startswith("add")] == [
            *("all_gather_into_tensor", "wait_tensor", "all_reduce", "wait_tensor")
        ]

    check_both(check, seed_collectives.never_used, alone)


@pytest.mark.parametrize("passes", [(), ("sink_waits",), ("sink_waits", "raise_comms"), ("overlap",)], ids=str)
def test_a_write_comes_after_the_wait_for_what_reads(alone: str, passes: tuple[str, ...]) -> None:
    """What is sent is read until the wait, so that nobody writes it before."""
    func, options = seed_collectives.written_after_it_is_sent, {"debug": True, "collectives.passes": list(passes)}
    mine, theirs = ranked(0, 4, 4, device=alone), ranked(0, 4, 4, device=alone)
    compiled = litz(func, options=options)
    for _ in range(2):
        assert same(compiled(mine, **ALONE), func(theirs, **ALONE), tol=0)
        assert same(mine, theirs, tol=0)
    ran = executed(lambda: compiled(mine, **ALONE))
    # A torch without CUDA cannot trace a copy into a fake CUDA tensor.
    run = lambda backend: torch.compile(func, backend=backend)(torch.empty(4, 4), **ALONE)
    torch._dynamo.reset()
    (schedule,) = cuda_schedules(run, make_compiler(None, options))
    for lines in (ran, lines_of(schedule)):
        done = [kind for kind, _, _ in steps(lines)]
        assert done.index("all_gather_into_tensor") < done.index("wait_tensor") < done.index("mul + copy_")


@pytest.mark.parametrize("name", ["all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"])
def test_what_is_sent_is_contiguous(alone: str, name: str) -> None:
    """Communication sends memory as it lies: a transposed input is copied first."""

    def func(inp, *, tag, ranks, group_size):
        op, sent = getattr(torch.ops.c10d_functional, name), inp.t()
        if name == "all_to_all_single":
            started = op(sent, [inp.shape[1]], [inp.shape[1]], tag, ranks, group_size)
        else:
            started = op(sent, *(["sum"] if "reduce" in name else []), tag, ranks, group_size)
        return torch.ops.c10d_functional.wait_tensor(started)

    given = ranked(0, 3, 5, device=alone)
    with collect() as reports:
        assert same(litz(func)(given, **ALONE), given.t(), tol=0)
    (sent,) = (step for step in reports[0].plan.steps if isinstance(step, Collective))
    assert all(ref.layout.is_contiguous() and ref.layout.size == (5, 3) for ref in sent.refs)


def test_dynamo_trace_allreduce(alone: str) -> None:
    def func(inp):
        return _functional_collectives.all_reduce(inp, "sum", "0")

    _traced(func, torch.ones(4, 4, device=alone), ops=2)


def test_dynamo_trace_all_gather_tensor(alone: str) -> None:
    def func(inp):
        return _functional_collectives.all_gather_tensor(inp, 0, "0")

    _traced(func, torch.ones(4, 4, device=alone), ops=2)


def _traced(func: Callable[..., Any], inputs: Any, ops: int, **kwargs: Any) -> None:
    """One frame of so many ops, with eager's result."""
    counter = CompileCounter()
    out = torch.compile(func, backend=counter)(inputs, **kwargs)
    assert (counter.frame_count, counter.op_count) == (1, ops)
    # A function without a wait returns what is still on its way, compiled or not.
    actual, expected = (tree_map(_functional_collectives.wait_tensor, found) for found in (out, func(inputs, **kwargs)))
    assert same(actual, expected)


def test_dynamo_trace_all_gather_tensor_pg(alone: str) -> None:
    def func(inp, *, pg):
        return _functional_collectives.all_gather_tensor(inp, 0, pg)

    _traced(func, torch.ones(4, 4, device=alone), ops=2, pg=GroupMember.WORLD)


def _rewritten(func: Callable[..., Any], device: str, ops: int | None = 3, listed: bool = False) -> None:
    """One frame, with what eager writes into `out`."""
    inputs = torch.ones(4, 4, device=device)
    outputs: Any = torch.empty(4, 4, device=device)
    correct: Any = torch.empty(4, 4, device=device)
    outputs, correct = ([outputs], [correct]) if listed else (outputs, correct)
    counter = CompileCounter()
    torch.compile(func, backend=counter, fullgraph=True)(inputs, outputs, pg=GroupMember.WORLD)
    func(inputs, correct, pg=GroupMember.WORLD)
    assert counter.frame_count == 1
    assert ops is None or counter.op_count == ops  # the collective, the wait, the copy
    assert same(outputs, correct)


def test_dynamo_rewrite_dist_all_gather(alone: str) -> None:
    def func(inp, out, *, pg):
        torch.distributed.all_gather_into_tensor(out, inp, pg)

    _rewritten(func, alone)


def test_dynamo_rewrite_dist_all_gather_list(alone: str) -> None:
    def func(inp, out, *, pg):
        torch.distributed.all_gather(out, inp, pg)

    _rewritten(func, alone, ops=None, listed=True)


def test_dynamo_rewrite_dist_all_gather_args_match(alone: str) -> None:
    def func(inp, out, *, pg):
        torch.distributed.all_gather_into_tensor(output_tensor=out, input_tensor=inp, group=pg, async_op=False)

    _rewritten(func, alone)


def test_dynamo_rewrite_dist_reduce_scatter(alone: str) -> None:
    def func(inp, out, *, pg):
        torch.distributed.reduce_scatter_tensor(out, inp, group=pg)

    _rewritten(func, alone)


@pytest.mark.parametrize("pg_mode", ["positional", "positional_none", "kwargs", "kwargs_none", "unspecified"])
def test_dynamo_rewrite_dist_allreduce(alone: str, pg_mode: str) -> None:
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
    inputs_compiled, inputs_eager = torch.ones(2, device=alone), torch.ones(2, device=alone)
    torch.compile(func, backend=counter, fullgraph=True)(inputs_compiled, *args, **kwargs)
    func(inputs_eager, *args, **kwargs)
    assert (counter.frame_count, counter.op_count) == (1, 3)  # all_reduce, wait, copy_
    assert same(inputs_compiled, inputs_eager)


def test_dynamo_rewrite_dist_all_to_all_single(alone: str) -> None:
    def func(output, input, pg):
        torch.distributed.all_to_all_single(output, input, group=pg)

    counter = CompileCounter()
    output_compiled, output_eager = torch.empty(2, device=alone), torch.empty(2, device=alone)
    input_compiled, input_eager = torch.ones(2, device=alone), torch.ones(2, device=alone)
    torch.compile(func, backend=counter, fullgraph=True)(output_compiled, input_compiled, GroupMember.WORLD)
    func(output_eager, input_eager, GroupMember.WORLD)
    assert counter.frame_count == 1
    assert same(output_compiled, output_eager)


@pytest.mark.parametrize("reduce_op", ["SUM", "AVG", "PRODUCT", "MIN", "MAX"])
def test_dynamo_rewrite_dist_allreduce_reduce_op(alone: str, reduce_op: str) -> None:
    from torch.distributed._functional_collectives import REDUCE_OP_TO_STR

    op = getattr(dist.ReduceOp, reduce_op)
    found: list[Any] = []

    def verify_rewrite(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        wanted = (torch.ops.c10d_functional.all_reduce, torch.ops._c10d_functional.all_reduce)
        found.extend(node for node in gm.graph.nodes if node.target in wanted)
        return compile_backend(gm, inputs, options={"debug": True})

    if reduce_op == "AVG" and dist.get_backend() == "gloo":  # which has no average: a group that sends nothing has
        dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    inputs = torch.ones(2, device=alone)
    compiled = torch.compile(torch.distributed.all_reduce, backend=verify_rewrite, fullgraph=True)
    compiled(inputs, op, GroupMember.WORLD)
    assert len(found) == 1
    assert REDUCE_OP_TO_STR[op] == found[0].args[1]
    again = torch.compile(torch.distributed.all_reduce, backend="litz", fullgraph=True)
    lines = executed(lambda: again(inputs, op, GroupMember.WORLD))
    ((_, _, arguments),) = (step for step in steps(lines) if step[0].startswith("all_reduce"))
    assert f"'{REDUCE_OP_TO_STR[op]}'" in arguments, "the op that ran"
    assert same(inputs, torch.ones(2, device=alone))


@pytest.mark.parametrize("source", ["GroupMember.WORLD", "group.WORLD", "_get_default_group"])
def test_dynamo_get_world_group(alone: str, source: str) -> None:
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

    given = torch.ones(2, device=alone)
    torch.compile(func, backend=verify, fullgraph=True)(given)
    assert len(found) == 1
    assert same(given, torch.ones(2, device=alone))


def test_dynamo_support_collective_op_with_async_op_False(alone: str) -> None:
    def func(inp, out, *, pg):
        # Said out loud, it must not break the graph.
        torch.distributed.reduce_scatter_tensor(out, inp, group=pg, async_op=False)

    _rewritten(func, alone)


def test_dynamo_graphbreaks_unsupported_async_op(alone: str) -> None:
    def func(inp, out, *, pg):
        work = torch.distributed.reduce_scatter_tensor(out, inp, group=pg, async_op=True)
        work.wait()

    inputs = torch.ones(4, 4, device=alone)
    outputs, correct = torch.empty_like(inputs), torch.empty_like(inputs)
    counter = CompileCounter()
    torch.compile(func, backend=counter)(inputs, outputs, pg=GroupMember.WORLD)
    func(inputs, correct, pg=GroupMember.WORLD)
    assert (counter.frame_count, counter.op_count) == (0, 0)
    assert same(outputs, correct)


def test_dynamo_pg_var(alone: str) -> None:
    def func(inp, *, pg):
        return inp + (pg.rank() + 1 % pg.size())

    counter = CompileCounter()
    inputs = torch.ones(4, 4, device=alone)
    outputs = torch.compile(func, backend=counter, fullgraph=True)(inputs, pg=GroupMember.WORLD)
    assert (counter.frame_count, counter.op_count) == (1, 1)
    assert same(outputs, func(inputs, pg=GroupMember.WORLD))


def test_dynamo_trace_reduce_scatter_tensor(alone: str) -> None:
    def func(inp):
        return _functional_collectives.reduce_scatter_tensor(inp, "sum", 0, "0")

    _traced(func, torch.ones(4, 4, device=alone), ops=2)


def test_dynamo_trace_allgather_coalesced(alone: str) -> None:
    """Three ops: the call, and an item of its list twice."""

    def func(inp, *, tag, ranks, group_size):
        return torch.ops.c10d_functional.all_gather_into_tensor_coalesced(inp, tag, ranks, group_size)

    _traced(
        func, [torch.ones(4, 4, device=alone), torch.ones(6, 6, device=alone)], ops=3, **ALONE
    )  # the call, and an item of its list twice


def test_backwards(alone: str) -> None:
    """As in eager: torch 2.13 differentiates an all_reduce, older versions say that they do not."""

    def func(inp):
        return _functional_collectives.all_reduce(inp, "sum", "0")

    def gradient(function: Callable[..., Any]) -> Any:
        given = torch.ones(4, 4, device=alone, requires_grad=True)
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


def test_meta(alone: str) -> None:
    x = torch.rand((2, 3, 4), device="meta")

    def func(x):
        return torch.ops.c10d_functional.all_reduce(x, "sum", **ALONE)

    def used(x):
        return torch.ops.c10d_functional.wait_tensor(func(x + 1)).sum(-1)

    assert func(x).size() == x.size()
    for function in (func, used):
        out, correct = litz(function)(x), function(x)
        assert out.device.type == "meta" and out.dtype == x.dtype
        assert (out.size(), out.stride()) == (correct.size(), correct.stride())


def _in_flight(memory: Memory, inp: str, kind: str) -> tuple[str, str, tuple[str, ...]]:
    """x and y of what `_coalesced` computes, and what the two waits give: x is sent and used again, so that it keeps
    its value, and nothing is given its memory before the waits."""
    name, (first, x, y, *_), _ = memory.steps[0]
    assert name.startswith("add + add_1") and first == inp
    assert memory.steps[1][:2] == (kind, (x, inp)), "what is sent is x and the input, neither copied"
    assert [name for name, _, _ in memory.steps[2:4]] == ["wait_tensor", "wait_tensor"]
    waited = tuple(made for name, _, made in memory.steps if name == "wait_tensor")
    assert len({x, y, inp, *waited}) == 5
    return x, y, waited


def _check_coalesced(func: Callable[..., Any], kind: str, alone: str) -> None:
    def small(memory: Memory, inp: str) -> None:
        # `other` takes no longer than its launch, so that it is in the kernel of x and y.
        _, y, waited = _in_flight(memory, inp, kind)
        other = memory.steps[0][1][3]
        assert memory.returned == (waited[0], y, other, waited[1])
        assert len(memory.steps) == 4

    def large(memory: Memory, inp: str) -> None:
        # `other` is computed when x is dead, in its memory.
        x, y, waited = _in_flight(memory, inp, kind)
        assert memory.steps[4:] == [(memory.steps[4][0], (x,), "")]
        assert memory.returned == (waited[0], y, x, waited[1])

    check_both(small, func, alone)
    check_both(large, func, alone, LARGE)


def test_inductor_all_gather_coalesced(alone: str) -> None:
    _check_coalesced(seed_collectives.all_gather_coalesced, "all_gather_into_tensor_coalesced", alone)


def test_inductor_reduce_scatter_coalesced(alone: str) -> None:
    _check_coalesced(seed_collectives.reduce_scatter_coalesced, "reduce_scatter_tensor_coalesced", alone)
