"""Functional collectives in compiled graphs. The cases are those of the seed document test_inductor_collectives.

Here are those that need several ranks, in two processes over gloo; what one rank can tell is in
test_inductor_collectives_alone. What the original reads off generated text is read off the schedule, as data.
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
from torch.fx.experimental.proxy_tensor import make_fx

from litz.ir import Collective
from litz.pipeline import compile_backend
from litz.runtime import cuda_graphs
from support.ranks import Ranks
from support.seed_collectives import litz, same

pytestmark = pytest.mark.xdist_group("ranks of collectives")

WORLD = 2
TRS = {"tag": "", "ranks": [0, 1], "group_size": WORLD}


def compiled_by_litz(func: Callable[..., Any], example_inputs: Any) -> Callable[..., Any]:
    """`func` through make_fx, without dynamo."""
    graph = make_fx(func)(*example_inputs)
    return compile_backend(graph, list(example_inputs), options={"debug": True})


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
