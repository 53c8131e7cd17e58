"""Estimated run times of compiled graphs: zero for what does nothing, more than zero for work.

The cases are those of the seed document test_snode_runtime. Each is compiled by litz, runs, and is compared with eager.
Where there is a GPU all of it is there; elsewhere the estimates and the generated code are those for an H100 of the
graphs captured on the CPU, and what runs is a compile for the CPU. Collectives run on a fake process group of 8 ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the ops below
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves, tree_map

from litz.codegen.wrapper import generate_wrapper
from litz.execution import ExecutionPlan
from litz.ir import Collective, Wait
from litz.pipeline import compile_backend, generate, make_compiler, plan_schedule
from litz.report import collect
from litz_collectives.model import collective_cost
from litz_collectives.nccl import Message
from litz_collectives.plugin import operation_cost, profile_of
from litz_collectives.traffic import message_of
from support.retarget import cuda_schedules

c10d = torch.ops.c10d_functional
_c10d = torch.ops._c10d_functional

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
pytestmark = [pytest.mark.gpu] if HAS_GPU else []

H100_FLOPS_A_US = 67e6
"""FLOPs of float32 that an H100 does at most in a microsecond, without TF32."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No test reuses what another compiled; convolutions are as exact as products."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


def compiled_schedules(f: Callable[..., Any], args: Sequence[Any], values: bool = True) -> list[ExecutionPlan]:
    """The plans for CUDA of all graphs in `f(*args)`, which was compiled, run and compared with eager.

    values: compare those too, not the shapes and dtypes alone.
    """
    expected = tree_leaves(f(*args))
    with collect() as reports:
        found = tree_leaves(torch.compile(f, backend="litz", options={"debug": True})(*args))
    assert [(item.shape, item.dtype) for item in found] == [(item.shape, item.dtype) for item in expected]
    if values:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if HAS_GPU:
        return [report.plan for report in reports]
    plans = plans_for_cuda(f, args)
    assert len(plans) == len(reports), "a graph for the CPU is one for the GPU"
    for plan in plans:
        compile(generate_wrapper(plan, generate(plan, make_compiler(None, {"debug": True}))).text, "wrapper", "exec")
    return plans


def plans_for_cuda(f: Callable[..., Any], args: Sequence[Any]) -> list[ExecutionPlan]:
    """The plans of all graphs in `f(*args)` for a GPU that need not be there; nothing runs."""
    torch._dynamo.reset()
    compiler = make_compiler(None, {"debug": True})
    schedules = cuda_schedules(lambda backend: torch.compile(f, backend=backend)(*args), compiler)
    return [plan_schedule(schedule, compiler) for schedule in schedules]


def calculate_runtime(f: Callable[..., Any], *args: torch.Tensor) -> float:
    """Estimated microseconds of everything that `f(*args)` compiles to."""
    schedules = compiled_schedules(f, args)
    return sum((schedule.estimates[step.name].us for schedule in schedules for step in schedule.steps), 0.0)


def T(*size: int, dtype: torch.dtype = torch.float32, device: str = DEVICE) -> torch.Tensor:
    """A tensor of random numbers, on the GPU if there is one."""
    return torch.randn(size, dtype=dtype, device=device)


def assert_zero(x: float) -> None:
    assert isinstance(x, float)
    assert x == 0.0


def assert_not_zero(x: float) -> None:
    assert isinstance(x, float)
    assert x > 0.0
    assert x < 1e6, "a second, for a few kilobytes"


def assert_no_work(f: Callable[..., Any], *args: torch.Tensor) -> None:
    """Dynamo gives a backend no graph without ops, so `f` takes no time; a graph without ops, which litz is handed
    all the same, takes none either: it runs nothing."""
    with collect() as reports:
        assert_zero(calculate_runtime(f, *args))
        assert not reports, "there is no graph"
        graph = make_fx(f)(*args)
        assert not [node for node in graph.graph.nodes if node.op.startswith("call")]
        assert torch.equal(compile_backend(graph, list(args), options={"debug": True})(*args), args[0])
    (report,) = reports
    assert not report.plan.steps
    assert_zero(sum((estimate.us for estimate in report.plan.estimates.values()), 0.0))


class TestUnsupported:
    def test_no_op(self) -> None:
        def f(a: torch.Tensor) -> torch.Tensor:
            return a

        assert_no_work(f, T(10, 10))

    def test_no_cuda(self) -> None:
        def f(a: torch.Tensor) -> torch.Tensor:
            return a

        assert_no_work(f, T(10, 10, device="cpu"))


class TestComputeBounded:
    def test_conv1d(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv1d(x, y)

        assert_not_zero(calculate_runtime(f, T(33, 16, 30), T(20, 16, 5)))

    def test_conv2d(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv2d(x, y, padding=1)

        assert_not_zero(calculate_runtime(f, T(8, 4, 3, 3), T(1, 4, 5, 5)))

    def test_conv2d_transpose(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv_transpose2d(x, y, padding=1)

        assert_not_zero(calculate_runtime(f, T(8, 1, 1, 1), T(1, 4, 5, 5)))

    def test_conv3d(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv3d(x, y)

        us = calculate_runtime(f, T(20, 16, 50, 10, 20), T(33, 16, 3, 3, 3))
        assert_not_zero(us)
        flops = 2 * (20 * 33 * 48 * 8 * 18) * (16 * 3 * 3 * 3)
        assert us > flops / H100_FLOPS_A_US, "no GPU here does it faster in float32"

    def test_mm(self) -> None:
        def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.mm(a, b)

        assert_not_zero(calculate_runtime(f, T(10, 10), T(10, 10)))

    def test_addmm(self) -> None:
        def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return torch.addmm(a, b, c)

        assert_not_zero(calculate_runtime(f, T(10, 10), T(10, 10), T(10, 10)))

    def test_bmm(self) -> None:
        def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.bmm(a, b)

        assert_not_zero(calculate_runtime(f, T(10, 10, 10), T(10, 10, 10)))


class TestMemoryBounded:
    def test_relu(self) -> None:
        def f(a: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.relu(a)

        assert_not_zero(calculate_runtime(f, T(10, 10)))

    def test_horizontal_reduction_pointwise(self) -> None:
        def f(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            b = a.sum(dim=1)
            c = a.cos()
            return b, c

        assert_not_zero(calculate_runtime(f, T(10, 10)))

    def test_pointwise(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return x.cos()

        assert_not_zero(calculate_runtime(f, T(10)))

    @torch._dynamo.config.patch(assume_static_by_default=False)
    def test_dynamic(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return x.cos()

        assert_not_zero(calculate_runtime(f, T(10)))
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="litz", options={"debug": True})
        with collect() as reports:
            for size in (10, 11, 4000):
                given = T(size)
                torch.testing.assert_close(compiled(given), f(given))
        assert len(reports) == 1, "one compile for all sizes"


class TestCommAnalysis:
    WORLD_SIZE = 8
    RANKS = list(range(8))

    def _verify_runtime_estimation(
        self, fn: Callable[..., Any], inps: Any, message: tuple[str, int], values: bool = False
    ) -> None:
        """message: kind and bytes, as nccl-tests counts them. values: whether the fake group, which sends nothing,
        leaves defined ones.

        What another size would be thought to take is above zero, too: so what is estimated is compared with the model's
        answer for these bytes and ranks, and for larger tensors, and fewer ranks.
        """
        kind, size = message
        times = [self._estimated(fn, inps, Message(kind, size, self.WORLD_SIZE), values)]
        # 64 times as much in each tensor, in as many rows: functions wait for each.
        larger = tree_map(lambda t: t.repeat(*(1 for _ in t.shape[1:]), 64), inps)
        times.append(self._estimated(fn, larger, Message(kind, 64 * size, self.WORLD_SIZE)))
        assert times[1] > times[0], "more bytes take longer"
        self.WORLD_SIZE, self.RANKS = 4, [0, 1, 2, 3]
        fewer = Message(kind, 64 * size // 2 if kind == "all_gather" else 64 * size, 4)
        times.append(self._estimated(fn, larger, fewer))
        assert times[2] != times[1], "other ranks, other times"

    def _estimated(self, fn: Callable[..., Any], inps: Any, message: Message, values: bool | None = None) -> float:
        """Microseconds of the only collective in `fn(*inps)`, which sends this message. values: None to plan alone."""
        torch._dynamo.reset()  # what was compiled for another group of the same name would run
        dist.init_process_group(backend="fake", rank=0, world_size=self.WORLD_SIZE, store=FakeStore())
        try:
            alone = values is None and not HAS_GPU
            (plan,) = plans_for_cuda(fn, inps) if alone else compiled_schedules(fn, inps, bool(values))
        finally:
            dist.destroy_process_group()
        (step,) = (step for step in plan.steps if isinstance(step, Collective))
        profile = profile_of(torch.cuda.get_device_name() if HAS_GPU else "NVIDIA H100 80GB HBM3")
        assert step.ranks == tuple(self.RANKS)
        assert message_of(step, plan.program) == message
        cost, estimate = operation_cost(step, plan.program, profile), plan.estimates[step.name]
        assert cost is not None
        assert_not_zero(cost.us)
        assert estimate.us == cost.us == collective_cost(message, profile).us
        assert "communication-bound" in estimate.why, "the plugin answered"
        waits = [step for step in plan.steps if isinstance(step, Wait)]
        assert waits and not any(plan.estimates[wait.name].us for wait in waits), "communication is counted once"
        return estimate.us

    def test_legacy_all_reduce(self) -> None:
        def fn(x: torch.Tensor) -> torch.Tensor:
            r = c10d.all_reduce(x, "sum", "", self.RANKS, self.WORLD_SIZE)
            return c10d.wait_tensor(r)

        self._verify_runtime_estimation(fn, (T(10, 10),), ("all_reduce", 4 * 100), values=True)

    def test_legacy_all_reduce_coalesced(self) -> None:
        def fn(x: list[torch.Tensor]) -> list[torch.Tensor]:
            rs = c10d.all_reduce_coalesced(x, "sum", "", self.RANKS, self.WORLD_SIZE)
            return [c10d.wait_tensor(r) for r in rs]

        self._verify_runtime_estimation(fn, ([T(10, 10), T(15, 15)],), ("all_reduce", 4 * (100 + 225)), values=True)

    def test_legacy_all_gather_into_tensor_coalesced(self) -> None:
        def fn(x: list[torch.Tensor]) -> list[torch.Tensor]:
            rs = c10d.all_gather_into_tensor_coalesced(x, "", self.RANKS, self.WORLD_SIZE)
            return [c10d.wait_tensor(r) for r in rs]

        self._verify_runtime_estimation(fn, ([T(10, 10), T(15, 15)],), ("all_gather", 8 * 4 * (100 + 225)))

    def test_all_reduce(self) -> None:
        def fn(x: torch.Tensor) -> torch.Tensor:
            return _c10d.wait_tensor(_c10d.all_reduce(x, "sum", "0"))

        self._verify_runtime_estimation(fn, (T(10, 10),), ("all_reduce", 4 * 100), values=True)

    def test_all_reduce_coalesced(self) -> None:
        def fn(x: list[torch.Tensor]) -> list[torch.Tensor]:
            return [_c10d.wait_tensor(r) for r in _c10d.all_reduce_coalesced(x, "sum", "0")]

        self._verify_runtime_estimation(fn, ([T(10, 10), T(15, 15)],), ("all_reduce", 4 * (100 + 225)), values=True)

    def test_all_gather_into_tensor(self) -> None:
        def fn(x: torch.Tensor) -> list[torch.Tensor]:
            rs = _c10d.all_gather_into_tensor(x, self.WORLD_SIZE, "0")
            return [_c10d.wait_tensor(r) for r in rs]

        self._verify_runtime_estimation(fn, (T(10, 10),), ("all_gather", 8 * 4 * 100))

    def test_all_gather_into_tensor_coalesced(self) -> None:
        def fn(x: list[torch.Tensor]) -> list[torch.Tensor]:
            return [_c10d.wait_tensor(r) for r in _c10d.all_gather_into_tensor_coalesced(x, self.WORLD_SIZE, "0")]

        self._verify_runtime_estimation(fn, ([T(10, 10), T(15, 15)],), ("all_gather", 8 * 4 * (100 + 225)))

    def test_reduce_scatter_tensor(self) -> None:
        def fn(x: torch.Tensor) -> list[torch.Tensor]:
            rs = _c10d.reduce_scatter_tensor(x, "sum", self.WORLD_SIZE, "0")
            return [_c10d.wait_tensor(r) for r in rs]

        self._verify_runtime_estimation(fn, (T(self.WORLD_SIZE, 10),), ("reduce_scatter", 4 * 8 * 10))

    def test_reduce_scatter_tensor_coalesced(self) -> None:
        def fn(x: list[torch.Tensor]) -> list[torch.Tensor]:
            rs = _c10d.reduce_scatter_tensor_coalesced(x, "sum", self.WORLD_SIZE, "0")
            return [_c10d.wait_tensor(r) for r in rs]

        inputs = [T(self.WORLD_SIZE, 10), T(self.WORLD_SIZE, 15)]
        self._verify_runtime_estimation(fn, (inputs,), ("reduce_scatter", 4 * 8 * (10 + 15)))
