"""What the tests of the seed document test_max_autotune compile and tune with, on a GPU or without one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from litz import report as reports
from litz_autotune.plugin import plugin as installed
from litz_autotune.pool import Request, WorkerPool
from support.compare import every_element
from support.fake_gpu import FakeGpu
from support.run_texts import run_texts

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
DYNAMIC = pytest.mark.parametrize("dynamic", (False, True))
BACKEND = "triton"


ONLY_KERNELS = {"max_autotune": False, "max_autotune_pointwise": True, "autotune.kernels": True}


def triton_wins(name: str) -> float:
    return 50.0 if name.startswith("triton") or "warps=2" in name else 100.0


class Compiled:
    """A function tuned for the GPU, the real one or the one that is made out to be there.

    After a call `steps` are kinds and names of the steps, `sizes` how many nodes of the graph each does, `code` is the
    text of the wrappers.
    """

    def __init__(
        self, folder: Path, fn: Callable[..., Any], dynamic: bool | None, fullgraph: bool, options: dict[str, Any]
    ) -> None:
        torch._dynamo.reset()
        self.fake = None if HAS_GPU else FakeGpu(folder, triton_wins, **options)
        if self.fake is not None:
            self.fn = self.fake.compile(fn, dynamic, fullgraph)
            self.autotune = self.fake.autotune
        else:
            # As `FakeGpu` has it: what the tests count is of contractions, unless a test looks at kernels.
            given = {"max_autotune": True, "cache_dir": folder, "autotune.kernels": False, **options}
            self.fn = torch.compile(fn, backend="litz", dynamic=dynamic, fullgraph=fullgraph, options=given)
            self.autotune = installed
        self.before = vars(self.autotune.counters).copy()
        self.steps: list[str] = []
        self.sizes: list[int] = []
        self.code = ""
        self.settings: list[str] = []

    def __call__(self, *args: Any) -> Any:
        with reports.collect() as collected:
            result = self.fn(*args)
        if self.fake is not None:
            self.steps, self.sizes, self.code = self.fake.steps, self.fake.sizes, self.fake.code
            kernels = [kernel for schedule in self.fake.schedules for kernel in schedule.kernels]
            self.settings = [f"{name}={value}" for kernel in kernels for name, value in kernel.settings.items()]
        else:
            self.steps += [f"{step.kind} {step.what}" for report in collected for step in report.steps]
            self.sizes += [len(step.origins) for report in collected for step in report.steps]
            self.code += "".join(report.wrapper_source for report in collected)
        return result

    def counted(self, name: str) -> int:
        """By how much a counter has grown."""
        return int(getattr(self.autotune.counters, name)) - int(self.before[name])


@contextmanager
def high_precision() -> Iterator[None]:
    """Matrices of float32 are multiplied as the seed sets it for its whole file."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def randn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE).to(dtype)


def check(compiled: Compiled, fn: Callable[..., Any], *args: torch.Tensor, tolerance: float = 1e-2) -> None:
    """A matrix: every element is float64's."""
    actual, eager, exact = compiled(*args), fn(*args), fn(*(t.double() for t in args))
    every_element(actual, eager, lambda part: exact[part], tolerance)


def calls(code: str) -> str:
    """A wrapper's text without its comments, which name what each kernel does."""
    return "\n".join(line.partition("#")[0] for line in code.splitlines())


def mm_plus_mm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return a @ b + c @ d


def sin_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.sin(a) @ b


def chain_inputs() -> list[torch.Tensor]:
    """Small enough that no product of `chain` leaves float16's range."""
    return [torch.rand(256, 256, device=DEVICE) / 16 for _ in range(3)]


def chain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    a = (a @ b) @ c
    a, b, c = (t.to(torch.float16) for t in [a, b, c])
    return (a @ b) @ c


def check_text(
    compiled: Compiled, fn: Callable[..., Any], args: Sequence[torch.Tensor], folder: Path, tolerance: float = 2e-3
) -> None:
    """What was generated for a GPU that is not there, run in Triton's interpreter: every element is float64's."""
    assert compiled.fake is not None
    (schedule,) = compiled.fake.schedules
    (found,) = run_texts(schedule, args, folder)
    exact = fn(*(t.double() for t in args))
    every_element(found.reshape(exact.shape), fn(*args), lambda part: exact[part], tolerance)


def library_alone(compiled: Compiled, fn: Callable[..., Any], *args: torch.Tensor) -> None:
    """A product without elements: nothing is offered for it and nothing measured."""
    torch.testing.assert_close(compiled(*args), fn(*args))
    assert compiled.counted("tuned") == compiled.counted("races") == 0
    assert not any(step.startswith("KernelCall") for step in compiled.steps)
    assert compiled.fake is None or not compiled.fake.runner.raced


class CountingPool(WorkerPool):
    """Counts what its processes were asked."""

    asked = 0

    def run(self, requests: Sequence[Request], timeout: float = 60.0) -> list[Any]:
        self.asked += len(requests)
        return super().run(requests, timeout)


@dataclass(frozen=True)
class Where:
    """A request that says which process it runs in."""

    def run(self, state: dict[str, Any]) -> int:
        return os.getpid()


class MemoryServer:
    """In place of a Redis server, as the seed has one: what the autotuner asks of a client. hits, puts: how often a
    value was found, and stored."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.hits = self.puts = 0

    def get(self, key: str) -> str | None:
        self.hits += key in self.values
        return self.values.get(key)

    def set(self, key: str, value: str, nx: bool = False) -> bool:
        if nx and key in self.values:
            return False
        self.values[key] = value
        self.puts += 1
        return True


@dataclass(frozen=True)
class VisibleDevices:
    """A request that looks at the CUDA_VISIBLE_DEVICES of the process that it runs in."""

    value: float
    multi_device: bool
    parent_visible_devices: str | None

    def run(self, state: dict[str, Any]) -> tuple[float, str | None]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if not self.multi_device:
            assert visible == self.parent_visible_devices
        else:
            assert self.parent_visible_devices is not None
            assert visible in self.parent_visible_devices.split(",")
        return self.value, visible


@dataclass(frozen=True)
class Killed:
    """A request whose process does not survive it."""

    def run(self, state: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
