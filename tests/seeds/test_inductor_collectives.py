"""Functional collectives in compiled graphs. The cases are those of the seed document test_inductor_collectives.

Here are those that need several ranks: two processes, or as many as LITZ_TEST_RANKS says, over gloo, and over NCCL
where each has a GPU. What one rank can tell is in test_inductor_collectives_alone; of that, values that only two
ranks tell apart are checked here. What the original reads off generated text is read off the lines that ran.
"""

from __future__ import annotations

import faulthandler
import functools
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as _functional_collectives
from torch.fx.experimental.proxy_tensor import make_fx

from litz.pipeline import compile_backend
from litz_cudagraphs import recordings
from support import seed_collectives
from support.executed import executed, kinds, steps
from support.ranks import TRS, WORLD, Ranks, device
from support.seed_collectives import litz, ranked, same

pytestmark = pytest.mark.xdist_group("ranks")


def compiled_by_litz(func: Callable[..., Any], example_inputs: Any) -> Callable[..., Any]:
    """`func` through make_fx, without dynamo."""
    graph = make_fx(func)(*example_inputs)
    return compile_backend(graph, list(example_inputs), options={"debug": True})


def multi_proc(function: Callable[[int], None]) -> Callable[[Ranks], None]:
    """A test that runs `function(rank)` on all ranks."""
    body = f"_body_{function.__name__}"
    globals()[body] = lambda rank, _: function(rank)

    def test(group: Ranks) -> None:
        group.run(__file__, body)

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


def own(rank: int, *size: int) -> torch.Tensor:
    """A tensor of this rank's, unlike the others' in every place: four by four unless `size` says otherwise."""
    return ranked(rank, *size, device=device())


@multi_proc
def test_allreduce_inductor(rank: int) -> None:
    def matmul_cat_col(a, b, c, d, e, f, *, tag, ranks, group_size):
        z = torch.cat((torch.matmul(a, b), torch.matmul(c, d)))
        ar = torch.ops.c10d_functional.all_reduce(z, "sum", tag, ranks, group_size)
        g = torch.matmul(e, f)
        ar = torch.ops.c10d_functional.wait_tensor(ar)
        return (torch.add(ar, g.repeat(2, 1)),)

    func = functools.partial(matmul_cat_col, **TRS)
    inputs = tuple(own(rank, 4, 4) + number for number in range(6))
    assert same(func(*inputs), compiled_by_litz(func, inputs)(*inputs), tol=0.001)


def _eager_func(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    dist.all_reduce(y, op=dist.ReduceOp.SUM)
    x = torch.nn.functional.silu(x)
    return x * y


def _func(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    returned = dist.all_reduce(y, op=dist.ReduceOp.SUM)
    y = y if returned is None else returned  # compiled, older versions of torch give the result back
    x = torch.nn.functional.silu(x)
    return x * y


@multi_proc
def test_allreduce_inductor_cudagraph_trees_without_graphs(rank: int) -> None:
    """The graph itself: on the CPU there are no CUDA graphs."""
    compiled = litz(_func, fullgraph=True, dynamic=None)
    for nelem in [1024, 2048, 4096]:
        x = torch.randn(nelem, device=device(), dtype=torch.bfloat16)
        golden_out = _eager_func(x)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), golden_out)


@pytest.mark.gpu2
@pytest.mark.skipif(torch.cuda.device_count() < WORLD, reason=f"CUDA graphs of NCCL need {WORLD} GPUs")
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

    compiled = torch.compile(_func, backend="litz", fullgraph=True, options={"cuda_graphs": True}, dynamic=None)
    for nelem in [1024, 2048, 4096]:
        x = torch.randn(nelem, device="cuda", dtype=torch.bfloat16)
        golden = _eager_func(x)
        torch.cuda.synchronize()
        reached(f"{nelem} in eager")
        for what in ("compiled, warmed up", "recorded, replayed", "replayed"):
            torch.testing.assert_close(compiled(x), golden)
            reached(f"{nelem} {what}")
    assert recordings.count() == 3, "one of each size"
    # NCCL does not end a communicator while a CUDA graph has its collectives, and `compiled` still has them.
    torch._dynamo.reset()
    assert recordings.count() == 0
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
    four, two = [own(rank) + n for n in range(4)], [own(rank) - n for n in range(2)]
    eager_out = _awaited(start(*four), *two)
    compiled = compiled_by_litz(_awaited, [start(*four), *two])
    assert same(eager_out, compiled(start(*four), *two), tol=0.001)


@multi_proc
def test_inductor_allreduce_eager_wait(rank: int) -> None:
    start = functools.partial(_started, **TRS)
    four, two = [own(rank) + n for n in range(4)], [own(rank) - n for n in range(2)]
    eager_out = _awaited(start(*four), *two)
    compiled = compiled_by_litz(start, tuple(four))  # returns a tensor, not a tuple
    assert same(eager_out, _awaited(compiled(*four), *two), tol=0.001)


@multi_proc
def test_allreduce_input_buffer_reuse(rank: int) -> None:
    def func(a, *, tag, ranks, group_size):
        ar = _functional_collectives.all_reduce(a, "sum", ranks, tag)
        c = torch.relu(a)
        d = torch.matmul(c, c)
        return (d + ar,)

    inputs = own(rank)
    assert same(litz(func)(inputs, **TRS), func(inputs, **TRS))
    assert same(inputs, own(rank))


@multi_proc
def test_permute_tensor(rank: int) -> None:
    def func(tensor, src_dst_pairs, *, tag, ranks, group_size):
        return _functional_collectives.permute_tensor(tensor, src_dst_pairs, ranks, tag)

    inputs = (torch.arange(2, dtype=torch.float32, device=device()) + 2 * rank, [(i + 1) % WORLD for i in range(WORLD)])
    out, correct = litz(func)(*inputs, **TRS), func(*inputs, **TRS)
    expected = torch.arange(2, dtype=torch.float32, device=device()) + 2 * ((rank - 1 + WORLD) % WORLD)
    assert same(out, correct) and same(out, expected, tol=0) and same(correct, expected, tol=0)


class _Gathered(torch.nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)  # of equal values nobody sees which came from whom
        self.emb = torch.nn.Embedding(4, 4)

    def forward(self, x, world_size, tag, ranks, group_size):
        y = self.emb(x)
        res = _functional_collectives.all_gather_tensor(y, 0, ranks, tag)
        return torch.cat(torch.chunk(res, world_size, dim=0), dim=y.dim() - 1)


@multi_proc
def test_allgather_output_buffer_reuse(rank: int) -> None:
    model = _Gathered(rank).to(device())
    inp = torch.tensor([[2, 1, 3, 0]], dtype=torch.long, device=device())
    correct = model(inp, WORLD, **TRS)
    assert same(litz(model)(inp, WORLD, **TRS), correct)
    torch.manual_seed(0)
    first = torch.nn.Embedding(4, 4).to(device())(inp)
    assert same(correct[..., :4], first) and not torch.equal(correct[..., 4:8], first), "rank 0's part comes first"


class _Transposed(torch.nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.emb = torch.nn.Embedding(4, 4)

    def forward(self, x, world_size, tag, ranks, group_size):
        y = self.emb(x)
        last_dim = y.dim() - 1
        y = y.transpose_(0, last_dim).contiguous()
        _functional_collectives.all_gather_tensor(y, 0, ranks, tag)
        return y.transpose_(0, last_dim).contiguous()


@multi_proc
def test_allgather_contiguous_input(rank: int) -> None:
    model = _Transposed(rank).to(device())
    inp = torch.tensor([[2, 1, 3, 0]], dtype=torch.long, device=device())
    compiled = litz(model)
    lines, out = _ran(lambda: compiled(inp, WORLD, **TRS))
    assert same(out, model(inp, WORLD, **TRS))
    # Nobody looks at what is gathered, and it is gathered, of rows that lie one after the other.
    ran = kinds(lines)
    assert ran.index("all_gather_into_tensor") < ran.index("wait_tensor")


@multi_proc
def test_allgather_into_tensor_inductor(rank: int) -> None:
    def example(a, b, *, tag, ranks, group_size):
        c = torch.matmul(a, b)
        ag = torch.ops.c10d_functional.all_gather_into_tensor(c, tag, ranks, group_size)
        return (torch.ops.c10d_functional.wait_tensor(ag),)

    func, inputs = functools.partial(example, **TRS), (own(rank), own(rank) + 1)
    assert same(func(*inputs), compiled_by_litz(func, inputs)(*inputs), tol=0.001)


@multi_proc
def test_reduce_scatter_tensor_inductor(rank: int) -> None:
    def example(a, b, *, tag, ranks, group_size):
        c = torch.matmul(a, b)
        rs = torch.ops.c10d_functional.reduce_scatter_tensor(c, "sum", tag, ranks, group_size)
        return (torch.ops.c10d_functional.wait_tensor(rs),)

    func, inputs = functools.partial(example, **TRS), (own(rank), own(rank) + 1)
    assert same(func(*inputs), compiled_by_litz(func, inputs)(*inputs), tol=0.001)


def _tolist_with_constrain_as_size(tensor):
    lst = tensor.tolist()
    for elem in lst:
        torch._check_is_size(elem)
    return lst


def _ran(compiled: Callable[[], Any]) -> tuple[list[str], Any]:
    """The lines of the second call, and its result."""
    compiled()
    out: list[Any] = []
    return executed(lambda: out.append(compiled())), out[0]


def _all_to_all(lines: list[str]) -> tuple[str, list[str], list[str]]:
    """Of the one all_to_all_single that ran: what it sends, and the sizes received and sent as they are written."""
    ((_, _, arguments),) = (step for step in steps(lines) if step[0] == "all_to_all_single")
    found = re.fullmatch(r"(arg\d+_\d+), \((.+),\), \((.+),\), '.*'", arguments) or re.fullmatch(
        r"(arg\d+_\d+), \((.+)\), \((.+)\), '.*'", arguments
    )
    assert found is not None, f"an input of the graph is sent as it is, by lists of sizes: {arguments}"
    return found[1], found[2].split(", "), found[3].split(", ")


@multi_proc
def test_all_to_all_single_inductor(rank: int) -> None:
    def example(inp, input_split_sizes_tensor, output_split_sizes_tensor, *, tag, ranks, group_size):
        input_split_sizes = _tolist_with_constrain_as_size(input_split_sizes_tensor)
        output_split_sizes = _tolist_with_constrain_as_size(output_split_sizes_tensor)
        a2a = torch.ops.c10d_functional.all_to_all_single(
            inp, output_split_sizes, input_split_sizes, tag, ranks, group_size
        )
        a2a = torch.ops.c10d_functional.wait_tensor(a2a)
        out = a2a / a2a.sum(dim=0)
        return out

    def inputs(sent: Callable[[int, int], int]) -> tuple[torch.Tensor, ...]:
        """sent(i, j): how many rows i sends to j; each row is another."""
        sizes = [[sent(rank, i) for i in range(WORLD)], [sent(i, rank) for i in range(WORLD)]]
        return own(rank, sum(sizes[0]), 5) + 100, *(torch.tensor(each, dtype=torch.int64) for each in sizes)

    with torch._dynamo.config.patch(
        dynamic_shapes=True, capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        compiled = litz(example, fullgraph=True, dynamic=True)
        # What a rank sends to i is what i receives from it.
        given = inputs(lambda i, j: (i + 1) * (j + 1))
        lines, out = _ran(lambda: compiled(*given, **TRS))
        _, received, sent = _all_to_all(lines)
        assert all(re.fullmatch(r"u\d+", size) for size in (*received, *sent))
        assert len(received) == len(sent) == WORLD and len({*received, *sent}) == 2 * WORLD, "none for two sizes"
        # A size is an element that was read, of the tensor with the sizes sent first.
        read = [line.partition(" = ")[0] for line in lines if re.match(r"u\d+ = ", line)]
        assert read == [*sent, *received]
        assert same(out, example(*given, **TRS), tol=0.001)
        # Other sizes, what is sent unlike what is received.
        given = inputs(lambda i, j: 1 + (2 + 3 * i + 4 * j + 3 * i * j) % 5)
        assert same(compiled(*given, **TRS), example(*given, **TRS), tol=0.001)


@multi_proc
def test_all_to_all_single_inductor_split_sizes_none(rank: int) -> None:
    def example(inp, *, tag, ranks, group_size):
        a2a = torch.ops.c10d_functional.all_to_all_single(inp, None, None, tag, ranks, group_size)
        a2a = torch.ops.c10d_functional.wait_tensor(a2a)
        out = a2a / a2a.sum(dim=0)
        return out

    inputs = (own(rank, WORLD, WORLD) + 100,)
    compiled = litz(example, fullgraph=True, dynamic=True)
    lines, out = _ran(lambda: compiled(*inputs, **TRS))
    _, received, sent = _all_to_all(lines)
    assert received == sent and len(sent) == WORLD and len({*sent}) == 1, "an equal share of each"
    assert re.fullmatch(rf"\(?s\d+ ?// ?{WORLD}\)?", sent[0]), sent
    assert same(out, example(*inputs, **TRS), tol=0.001)


# --------------------------------------------------------- what the tests of one rank cannot tell, as values of several


def _of_all(rank: int, function: Callable[..., Any]) -> None:
    """`function` of inputs that differ by rank: eager's results, bits and all, in memory of their own; inputs stay."""
    inputs = own(rank)
    expected = function(inputs, **TRS)
    compiled = litz(function)
    for _ in range(3):
        found = compiled(inputs, **TRS)
        assert same(tuple(found), tuple(expected), tol=0)
        assert same(inputs, own(rank), tol=0)
    memory = [item.untyped_storage().data_ptr() for item in (inputs, *found)]
    assert len({*memory}) == len(memory)


@multi_proc
def test_inductor_single_op_of_two(rank: int) -> None:
    _of_all(rank, lambda inp, **trs: [seed_collectives.single_op(inp, **trs)])


@multi_proc
def test_inductor_steal_buffer_of_two(rank: int) -> None:
    _of_all(rank, seed_collectives.steal_buffer)


@multi_proc
def test_inductor_doesnt_mutate_shared_of_two(rank: int) -> None:
    _of_all(rank, seed_collectives.doesnt_mutate_shared)
    _of_all(rank, seed_collectives.shared_with_a_later_call)


@multi_proc
def test_inductor_all_gather_coalesced_of_two(rank: int) -> None:
    _of_all(rank, seed_collectives.all_gather_coalesced)


@multi_proc
def test_inductor_reduce_scatter_coalesced_of_two(rank: int) -> None:
    _of_all(rank, seed_collectives.reduce_scatter_coalesced)


@multi_proc
def test_sent_while_computing_of_two(rank: int) -> None:
    _of_all(rank, seed_collectives.sent_while_computing)


@multi_proc
def test_written_after_it_is_sent_of_two(rank: int) -> None:
    """The other ranks get what the input was, however large it is and however soon it is written."""
    for passes in ([], ["sink_waits"], ["overlap"]):
        torch._dynamo.reset()
        function = litz(
            seed_collectives.written_after_it_is_sent, options={"debug": True, "collectives.passes": passes}
        )
        mine, theirs = own(rank, 256, 256), own(rank, 256, 256)
        for _ in range(2):
            assert same(function(mine, **TRS), seed_collectives.written_after_it_is_sent(theirs, **TRS), tol=0)
            assert same(mine, theirs, tol=0)


@multi_proc
def test_dynamo_rewrite_dist_allreduce_reduce_op_of_two(rank: int) -> None:
    """Each op by its result, which is the same for all of them in a group of one."""
    given_by = [2.0 + each for each in range(WORLD)]
    total = sum(given_by)
    results = {"SUM": total, "PRODUCT": math.prod(given_by), "MIN": 2.0, "MAX": given_by[-1], "AVG": total / WORLD}
    for name, expected in results.items():
        if name == "AVG" and dist.get_backend() == "gloo":
            continue  # gloo has no average
        torch._dynamo.reset()
        given = torch.full((2,), 2.0 + rank, device=device())
        litz(dist.all_reduce, fullgraph=True)(given, getattr(dist.ReduceOp, name), dist.GroupMember.WORLD)
        assert same(given, torch.full((2,), expected, device=device()), tol=0), name
