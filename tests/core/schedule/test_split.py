"""Reductions in two steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from core.schedule.harness import CPU, GPU, check, plan_of
from core.schedule.programs import Writer, call
from litz.ir import Buffer, Layout, Program, Store, build
from litz.ir.index import Symbol, product, reduction_var
from litz.pipeline import schedule_only
from litz.schedule import Schedule
from support.retarget import cuda_schedules

EAGER_GPU = replace(GPU, launch_us=0.01)
"""One that splits small reductions too."""
KINDS = ["sum", "max", "min", "welford_mean", "welford_m2"]


def reduced(kind: str, rows: int, columns: int, *, over_rows: bool) -> Writer:
    w = Writer()
    w.input("x", rows, columns)
    if over_rows:
        w.reduce("y", kind, (columns,), (rows,), lambda j, r: w.load("x", r, j))
    else:
        w.reduce("y", kind, (), (rows, columns), lambda a, b: call("mul", w.load("x", a, b), 2.0))
    return w


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1200, 1201], ids=["divisible", "prime"])
@pytest.mark.parametrize("over_rows", [True, False], ids=["columns", "all"])
@pytest.mark.parametrize("target", [CPU, EAGER_GPU], ids=["cpu", "gpu"])
def test_split_reductions_give_the_same(kind, rows, over_rows, target):
    writer = reduced(kind, rows, 31, over_rows=over_rows)
    schedule = check(writer.program("y"), writer.args(), target)
    if target is EAGER_GPU:
        assert len(schedule.kernels) == 2
        assert schedule.kernels[0].loop.name == "op0_parts"


def test_an_argmax_is_never_split():
    writer = reduced("argmax", 6000, 31, over_rows=False)
    schedule = plan_of(writer.program("y"), GPU)
    assert len(schedule.kernels) == 1


def test_enough_outputs_are_not_split():
    writer = reduced("sum", 64, 100_000, over_rows=True)
    assert len(plan_of(writer.program("y"), GPU).kernels) == 1


def test_half_types_keep_their_partial_results_in_float32():
    w = Writer()
    w.input("x", 4000, 500, dtype=torch.bfloat16)
    w.reduce("y", "sum", (), (4000, 500), lambda a, b: w.load("x", a, b))
    schedule = check(w.program("y"), w.args(), GPU)
    assert {str(schedule.program.buffers[n].dtype) for n in schedule.kernels[0].writes} == {"torch.float32"}


def test_symbolic_sizes_are_split_with_a_mask():
    s = Symbol("s0", integer=True, positive=True)
    x = Buffer("x", torch.float32, torch.device("cpu"), Layout.contiguous((s,)), "input")
    w = Writer()
    w.buffers["x"] = x
    w.inputs.append("x")
    for kind in ("sum", "welford_m2", "max"):
        value = build.reduce(kind, build.load("x", (reduction_var(0),), torch.float32))
        w.buffers[kind] = Buffer(kind, torch.float32, x.device, Layout.contiguous(()))
        w.loop((), (s,), Store(kind, (), value))  # type: ignore[arg-type]
    base = w.program("sum", "welford_m2", "max")
    program = Program(base.name, base.inputs, base.buffers, base.operations, base.outputs, hints={s: 300_000})
    for size in (300_000, 299_999, 5, 1):
        schedule = check(program, [torch.randint(-3, 4, (size,)).float()], EAGER_GPU)  # whose sums are exact
        assert schedule.kernels[0].loop.name == "op0_parts"
        assert len(schedule.kernels[0].fused) == 3


def group_norm(channels: int, side: int, memory_format: torch.memory_format) -> Schedule:
    x = torch.randn(8, channels, side, side, dtype=torch.bfloat16).to(memory_format=memory_format)
    normed = lambda x: F.silu(F.group_norm(x, 32))
    torch._dynamo.reset()
    (schedule,) = cuda_schedules(lambda backend: torch.compile(normed, backend=backend, dynamic=False)(x))
    return schedule


def test_rows_of_short_runs_are_split_across_their_runs():
    """In channels last a group is 12 channels of each position: one kernel of all took 76 us on an H200, where the
    bytes take 12."""
    schedule = group_norm(384, 64, torch.channels_last)
    first, channels, second, applied = (kernel.loop for kernel in schedule.kernels)
    assert [int(r.size) for r in first.ranges] == [12, 2, 8, 32], "two pieces of the positions, for each channel"
    assert int(product(r.size for r in first.reduction_ranges)) == 64 * 64 / 2
    assert [int(product(r.size for r in each.reduction_ranges)) for each in (channels, second)] == [12, 2]
    assert int(second.numel) == 8 * 32 and not applied.reduction_ranges


@pytest.mark.parametrize("kind", KINDS)
def test_short_runs_beside_others_are_columns_first(kind: str) -> None:
    """Groups of 4 channels, channels last: 16 bytes of each position."""
    w = Writer()
    w.input("x", 40, 300, 64)
    w.reduce("y", kind, (40, 16), (4, 300), lambda n, g, c, p: w.load("x", n, p, 4 * g + c))
    columns, groups = (kernel.loop for kernel in check(w.program("y"), w.args(), EAGER_GPU).kernels)
    assert [int(r.size) for r in columns.ranges] == [4, 40, 16]
    assert [int(r.size) for r in columns.reduction_ranges] == [300]
    assert set(groups.writes) == {"y"}


@pytest.mark.parametrize("channels, step", [(8, 8), (4, 8)], ids=["sectors", "with gaps"])
def test_whole_sectors_and_runs_with_gaps_stay_rows(channels: int, step: int) -> None:
    w = Writer()
    w.input("x", 64, 300, 256)
    w.reduce("y", "sum", (64, 32), (channels, 300), lambda n, g, c, p: w.load("x", n, p, step * g + c))
    (kernel,) = plan_of(w.program("y"), GPU).kernels
    assert int(kernel.loop.reduction_numel) == channels * 300


def test_a_norm_of_short_runs_is_applied_by_a_kernel_of_its_own() -> None:
    """Its stores lie against the grain of what it reads. On an H200 one kernel of both took 505 us for 64 x 256 x 56 x
    56 in float32, where two take 166 (2026-11-29)."""
    torch._dynamo.reset()
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(16, 256, 56, 56, device="cuda").to(memory_format=torch.channels_last)
        scale = torch.empty(256, device="cuda")
        (schedule,) = schedule_only(lambda x, w: F.group_norm(x, 32, w, w).relu(), [x, scale], dynamic=False)
    *statistics, applied = (kernel.loop for kernel in schedule.kernels)
    assert statistics and not applied.reduction_ranges


@pytest.mark.parametrize(("channels", "memory_format"), [(384, torch.contiguous_format), (1024, torch.channels_last)])
def test_rows_of_whole_sectors_are_not(channels: int, memory_format: torch.memory_format):
    """The values of a group lie together, or in runs of 64 bytes."""
    assert len(group_norm(channels, 16, memory_format).kernels) == 1


def test_a_copy_across_the_grain_computes_no_statistics() -> None:
    """What a training step's forward saves lies channels first: a row that reads channels last and stores there loads
    a sector for each element."""
    torch._dynamo.reset()

    def forward(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        saved = x.clone(memory_format=torch.contiguous_format)
        return saved, *torch.ops.aten.native_group_norm(saved, w, w, 64, 256, 56 * 56, 32, 1e-5)

    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(64, 256, 56, 56, device="cuda").to(memory_format=torch.channels_last)
        (schedule,) = schedule_only(forward, [x, torch.empty(256, device="cuda")], dynamic=False)
    copied, *statistics = (kernel.loop for kernel in schedule.kernels)
    assert not copied.reduction_ranges and statistics
