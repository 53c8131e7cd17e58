"""Functional collectives in compiled graphs. The cases are those of the seed document test_inductor_collectives.

What needs several ranks runs in two processes over gloo; what one rank can tell runs here, in a group of one. What
the original reads off generated text is read off the schedule, as data, and off the wrapper's text. Where the original
needs a GPU's memory, the schedule is made of fake CUDA tensors.
"""

from __future__ import annotations

import faulthandler
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as _functional_collectives
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.distributed_c10d import GroupMember
from torch.fx.experimental.proxy_tensor import make_fx

from litz.codegen.wrapper import generate_wrapper
from litz.ir import Collective, Wait
from litz.pipeline import compile_backend, generate, make_compiler, schedule_only
from litz.runtime import cuda_graphs
from litz.schedule import Schedule, check_schedule
from litz.schedule.schedule import Kernel
from support.ranks import Ranks

pytestmark = pytest.mark.xdist_group("ranks of collectives")

WORLD = 2
TRS = {"tag": "", "ranks": [0, 1], "group_size": WORLD}
ALONE = {"tag": "", "ranks": [0], "group_size": 1}
MODE = FakeTensorMode(allow_non_fake_inputs=True)


def same(a: Any, b: Any, tol: float = 1e-5) -> bool:
    torch.testing.assert_close(a, b, atol=tol, rtol=tol)
    return True


def compiled_by_litz(func: Callable[..., Any], example_inputs: Any) -> Callable[..., Any]:
    """`func` through make_fx, without dynamo."""
    graph = make_fx(func)(*example_inputs)
    return compile_backend(graph, list(example_inputs), options={"debug": True})


litz = functools.partial(torch.compile, backend="litz", options={"debug": True})


# ------------------------------------------------------------------------------------------------- two ranks, over gloo


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD) as found:
        yield found


def multi_proc(function: Callable[[int], None]) -> Callable[[Ranks], None]:
    """A test that runs `function(rank)` on both ranks."""
    body = f"_body_{function.__name__}"
    globals()[body] = lambda rank, _: function(rank)

    def test(ranks: Ranks) -> None:
        ranks.run(__file__, body)

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


@multi_proc
def test_allreduce_inductor(rank: int) -> None:
    def matmul_cat_col(a, b, c, d, e, f, *, tag, ranks, group_size):
        z = torch.cat((torch.matmul(a, b), torch.matmul(c, d)))
        ar = torch.ops.c10d_functional.all_reduce(z, "sum", tag, ranks, group_size)
        g = torch.matmul(e, f)
        ar = torch.ops.c10d_functional.wait_tensor(ar)
        return (torch.add(ar, g.repeat(2, 1)),)

    func = functools.partial(matmul_cat_col, **TRS)
    torch.manual_seed(0)
    inputs = (torch.randn(4, 4) if rank == 0 else torch.zeros(4, 4),) * 6
    assert same(func(*inputs), tuple(compiled_by_litz(func, inputs)(*inputs)), tol=0.001)


@pytest.mark.gpu2
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="CUDA graphs of NCCL need two GPUs")
def test_allreduce_inductor_cudagraph_trees() -> None:
    torch.multiprocessing.spawn(_cudagraphs, args=(tempfile.mktemp(),), nprocs=WORLD)


def _cudagraphs(rank: int, place: str) -> None:
    faulthandler.dump_traceback_later(60, exit=True)  # a hang is a failure that says where
    begin = time.perf_counter()

    def reached(what: str) -> None:  # pytest -s shows it at once
        print(f"rank {rank}, {time.perf_counter() - begin:.1f} s: {what}", file=sys.stderr, flush=True)

    reached("imported")
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    store = dist.FileStore(place, WORLD)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=WORLD, device_id=device)
    reached("in the group")

    def eager_func(x):
        y = x * x
        dist.all_reduce(y, op=dist.ReduceOp.SUM)
        return torch.nn.functional.silu(x) * y

    compiled = torch.compile(eager_func, backend="litz", fullgraph=True, options={"cuda_graphs": True})
    for nelem in [1024, 2048, 4096]:
        x = torch.randn(nelem, device="cuda", dtype=torch.bfloat16)
        golden = eager_func(x)
        torch.cuda.synchronize()
        reached(f"{nelem} in eager")
        for what in ("compiled, warmed up", "recorded, replayed", "replayed"):
            torch.testing.assert_close(compiled(x), golden)
            reached(f"{nelem} {what}")
    assert cuda_graphs.recordings() == 3, "one of each size"
    # NCCL does not end a communicator while a CUDA graph has its collectives, and `compiled` still has them.
    torch._dynamo.reset()
    assert cuda_graphs.recordings() == 0
    reached("reset")
    dist.destroy_process_group()
    reached("out of the group")
    faulthandler.cancel_dump_traceback_later()


def test_c10d_functional_tagged_pt2_compliant() -> None:
    assert torch.Tag.pt2_compliant_tag in torch.ops._c10d_functional.all_reduce.default.tags
    assert torch.Tag.pt2_compliant_tag in torch.ops.c10d_functional.all_reduce.default.tags


def _started(a, b, c, d, *, tag, ranks, group_size):
    z = torch.cat((torch.matmul(a, b), torch.matmul(c, d)))
    return torch.ops.c10d_functional.all_reduce(z, "sum", tag, ranks, group_size)


def _awaited(ar, e, f):
    g = torch.matmul(e, f)
    ar = torch.ops.c10d_functional.wait_tensor(ar)
    return (torch.add(ar, g.repeat(2, 1)),)


@multi_proc
def test_eager_allreduce_inductor_wait(rank: int) -> None:
    start = functools.partial(_started, **TRS)
    four, two = (torch.ones(4, 4) + rank,) * 4, (torch.ones(4, 4) + rank,) * 2
    eager_out = _awaited(start(*four), *two)
    compiled = compiled_by_litz(_awaited, [start(*four), *two])
    assert same(eager_out, tuple(compiled(start(*four), *two)), tol=0.001)


@multi_proc
def test_inductor_allreduce_eager_wait(rank: int) -> None:
    start = functools.partial(_started, **TRS)
    four, two = (torch.ones(4, 4) + rank,) * 4, (torch.ones(4, 4) + rank,) * 2
    eager_out = _awaited(start(*four), *two)
    compiled = compiled_by_litz(lambda *args: (start(*args),), four)
    assert same(eager_out, _awaited(compiled(*four)[0], *two), tol=0.001)


@multi_proc
def test_allreduce_input_buffer_reuse(rank: int) -> None:
    def func(a, *, tag, ranks, group_size):
        ar = _functional_collectives.all_reduce(a, "sum", ranks, tag)
        c = torch.relu(a)
        d = torch.matmul(c, c)
        return (d + ar,)

    inputs = torch.ones(4, 4) + rank
    assert same(litz(func)(inputs, **TRS), func(inputs, **TRS))
    assert same(inputs, torch.ones(4, 4) + rank)


@multi_proc
def test_permute_tensor(rank: int) -> None:
    def func(tensor, src_dst_pairs, *, tag, ranks, group_size):
        return _functional_collectives.permute_tensor(tensor, src_dst_pairs, ranks, tag)

    inputs = (torch.arange(2, dtype=torch.float32) + 2 * rank, [1, 0])
    out, correct = litz(func)(*inputs, **TRS), func(*inputs, **TRS)
    expected = torch.arange(2, dtype=torch.float32) + 2 * ((rank - 1 + WORLD) % WORLD)
    assert same(out, correct) and same(out, expected)


class _Gathered(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.emb = torch.nn.Embedding(4, 4)

    def forward(self, x, world_size, tag, ranks, group_size):
        y = self.emb(x)
        res = _functional_collectives.all_gather_tensor(y, 0, ranks, tag)
        return torch.cat(torch.chunk(res, world_size, dim=0), dim=y.dim() - 1)


@multi_proc
def test_allgather_output_buffer_reuse(rank: int) -> None:
    model = _Gathered()
    inp = torch.tensor([[2, 1, 3, 0]], dtype=torch.long)
    assert same(litz(model)(inp, WORLD, **TRS), model(inp, WORLD, **TRS))


class _Transposed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.emb = torch.nn.Embedding(4, 4)

    def forward(self, x, world_size, tag, ranks, group_size):
        y = self.emb(x)
        last_dim = y.dim() - 1
        y = y.transpose_(0, last_dim).contiguous()
        _functional_collectives.all_gather_tensor(y, 0, ranks, tag)
        return y.transpose_(0, last_dim).contiguous()


@multi_proc
def test_allgather_contiguous_input(rank: int) -> None:
    model = _Transposed()
    inp = torch.tensor([[2, 1, 3, 0]], dtype=torch.long)
    assert same(litz(model)(inp, WORLD, **TRS), model(inp, WORLD, **TRS))


@multi_proc
def test_allgather_into_tensor_inductor(rank: int) -> None:
    def example(a, b, *, tag, ranks, group_size):
        c = torch.matmul(a, b)
        ag = torch.ops.c10d_functional.all_gather_into_tensor(c, tag, ranks, group_size)
        return (torch.ops.c10d_functional.wait_tensor(ag),)

    func, inputs = functools.partial(example, **TRS), (torch.ones(4, 4) + rank,) * 2
    assert same(func(*inputs), tuple(compiled_by_litz(func, inputs)(*inputs)), tol=0.001)


@multi_proc
def test_reduce_scatter_tensor_inductor(rank: int) -> None:
    def example(a, b, *, tag, ranks, group_size):
        c = torch.matmul(a, b)
        rs = torch.ops.c10d_functional.reduce_scatter_tensor(c, "sum", tag, ranks, group_size)
        return (torch.ops.c10d_functional.wait_tensor(rs),)

    func, inputs = functools.partial(example, **TRS), (torch.ones(4, 4) + rank,) * 2
    assert same(func(*inputs), tuple(compiled_by_litz(func, inputs)(*inputs)), tol=0.001)


def _tolist_with_constrain_as_size(tensor):
    found = tensor.tolist()
    for item in found:
        torch._check(item >= 0)
    return found


@multi_proc
def test_all_to_all_single_inductor(rank: int) -> None:
    from litz.report import collect

    def example(inp, input_split_sizes_tensor, output_split_sizes_tensor, *, tag, ranks, group_size):
        input_split_sizes = _tolist_with_constrain_as_size(input_split_sizes_tensor)
        output_split_sizes = _tolist_with_constrain_as_size(output_split_sizes_tensor)
        a2a = torch.ops.c10d_functional.all_to_all_single(
            inp, output_split_sizes, input_split_sizes, tag, ranks, group_size
        )
        a2a = torch.ops.c10d_functional.wait_tensor(a2a)
        return a2a / a2a.sum(dim=0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        row = WORLD * (rank + 1) * (WORLD + 1) // 2
        # What a rank sends to i is what i receives from it.
        inputs = (
            torch.ones(row, 5) * (rank + 1),
            torch.tensor([(i + 1) * (rank + 1) for i in range(WORLD)], dtype=torch.int64),
            torch.tensor([(i + 1) * (rank + 1) for i in range(WORLD)], dtype=torch.int64),
        )
        with collect() as reports:
            out = litz(example, fullgraph=True, dynamic=True)(*inputs, **TRS)
        (call,) = (s for s in reports[0].schedule.steps if isinstance(s, Collective))
        assert call.target_name == "_c10d_functional.all_to_all_single.default"
        for splits in call.args[1:3]:
            assert len(splits) == WORLD and all(str(size).startswith("u") for size in splits)
        assert same(out, example(*inputs, **TRS), tol=0.001)


@multi_proc
def test_all_to_all_single_inductor_split_sizes_none(rank: int) -> None:
    from litz.report import collect

    def example(inp, *, tag, ranks, group_size):
        a2a = torch.ops.c10d_functional.all_to_all_single(inp, None, None, tag, ranks, group_size)
        a2a = torch.ops.c10d_functional.wait_tensor(a2a)
        return a2a / a2a.sum(dim=0)

    inputs = (torch.ones(WORLD, WORLD) * (rank + 1),)
    with collect() as reports:
        out = litz(example, fullgraph=True, dynamic=True)(*inputs, **TRS)
    (call,) = (s for s in reports[0].schedule.steps if isinstance(s, Collective))
    assert [len(splits) for splits in call.args[1:3]] == [WORLD, WORLD]
    assert same(out, example(*inputs, **TRS), tol=0.001)


# ------------------------------------------------------------------------------------------ one rank, in this process


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
    assert same(out, func(inputs, **kwargs))


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
