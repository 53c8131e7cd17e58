"""What loses is measured as little as it takes to see that."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from pathlib import Path

import pytest
import torch

from litz_autotune import measuring
from litz_autotune.precompile import Precompilation
from litz_autotune.timing import LEAST_ROUNDS, LEAST_SPIN_US, MOST_SPIN_US, CpuTimer, CudaTimer
from litz_plugins import KernelSource
from support import rivals
from support.fake_timer import FakeTimer
from support.tuned import Tuned

A, B = torch.randn(32, 48), torch.randn(48, 16)
ALL = (rivals.good, rivals.better)


def tuned(folder: Path, timer: FakeTimer, **options: object) -> Tuned:
    compiled = Tuned(folder, timer, *ALL, **options)
    torch.testing.assert_close(compiled(torch.mm, A, B), A @ B)
    return compiled


def test_a_candidate_far_from_the_best_is_not_in_the_final(tmp_path: Path) -> None:
    timer = FakeTimer((("library", 100), ("good", 50), ("better", 90)))
    assert tuned(tmp_path, timer).chosen == ["good"]
    assert [timer.calls.count(name) for name in ("library", "good", "better")] == [2, 2, 1]


def test_there_is_no_final_where_the_library_is_far_ahead(tmp_path: Path) -> None:
    timer = FakeTimer((("library", 100), ("good", 120), ("better", 1000)))
    compiled = tuned(tmp_path, timer)
    assert compiled.chosen == ["aten.mm.default"] and "the library is the fastest: 120 µs" in compiled.reasons[0]
    assert [timer.calls.count(name) for name in ("library", "good", "better")] == [1, 1, 1]


def test_what_lost_to_the_library_may_still_be_all_there_is(tmp_path: Path) -> None:
    timer = FakeTimer((("library", 1), ("good", 60), ("better", 50)))
    assert tuned(tmp_path, timer).chosen == ["aten.mm.default"]
    again = tuned(tmp_path, timer, **{"autotune.backends": ("triton",)})  # from what is on disk
    assert again.chosen == ["better"] and again.autotune.counters.tuned == 0


def test_long_runs_of_hopeless_candidates_end_the_screening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "HOPELESS_SECONDS", 0.0)
    monkeypatch.setattr(measuring, "HOPELESS_AFTER", 1)
    timer = FakeTimer((("library", 100), ("good", 300), ("better", 10)))
    compiled = tuned(tmp_path, timer)
    assert timer.calls == ["library", "good"]
    assert "far slower than the library" in compiled.reasons[0]


def test_a_function_that_is_too_slow_is_run_three_times() -> None:
    count = 0

    def run() -> None:
        nonlocal count
        count += 1

    CpuTimer().time({"f": run}, torch.device("cpu"), 0.0, limit_us=0.0)
    assert count == 3
    CpuTimer().time({"f": run}, torch.device("cpu"), 0.0)
    assert count == 3 + LEAST_ROUNDS


def test_a_kernel_that_does_not_get_compiled_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litz_autotune.precompile.LEAST_PATIENCE", 0.05)
    end = threading.Event()

    def build(source: KernelSource) -> None:
        if source.name == "slow":
            end.wait(30)

    sources = {name: [KernelSource(name, "triton", name, "f")] for name in ("slow", "a", "b")}
    compilation = Precompilation(sources, build, threads=3)
    start = time.monotonic()
    batches = list(compilation.ready(sources))
    compilation.close()
    end.set()
    assert time.monotonic() - start < 10
    assert [sorted(batch) for batch in batches] == [["a"], ["b"], ["slow"]]
    assert batches[0]["a"] == "" and "does not compile in" in batches[2]["slow"]


class LateHost:
    """A stream whose device and host have made-up clocks, in µs: the host takes `host_us` to queue a run."""

    def __init__(self, host_us: float) -> None:
        self.host_us, self.host, self.device = host_us, 0.0, 0.0
        self.cleared: list[float] = []

    def clear(self, spin_us: float) -> None:
        self.cleared.append(spin_us)
        self.device = max(self.device, self.host) + spin_us

    def mark(self) -> float:
        self.device = max(self.device, self.host)  # an idle device takes the mark when it comes
        return self.device

    def run(self) -> None:
        """Two kernels of 10 µs, queued one after the other."""
        for _ in range(2):
            self.host += self.host_us / 2
            self.device = max(self.device, self.host) + 10.0

    def reached(self, mark: float) -> bool:
        return self.host >= mark

    def between(self, first: float, last: float) -> float:
        return last - first


@pytest.mark.parametrize("host_us", [1.0, 40.0, 170.0, 3000.0])
def test_a_run_that_the_host_was_late_for_is_thrown_away(host_us: float) -> None:
    stream = LateHost(host_us)
    found = CudaTimer().measure({"f": stream.run}, stream, 0.01)
    assert set(found["f"]) == {20.0}
    assert stream.cleared[-1] > host_us or host_us < LEAST_SPIN_US
    assert stream.cleared == sorted(stream.cleared) and len(set(stream.cleared)) < 8


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_nobody_gains_by_its_place_in_the_turns(count: int) -> None:
    stream = LateHost(1.0)
    runs = itertools.count()

    def run() -> None:
        stream.run()
        stream.device += 0.6 * (next(runs) % 2)

    found = CudaTimer().measure({str(n): run for n in range(count)}, stream, 0.01)
    medians = [statistics.median(samples) for samples in found.values()]
    assert medians == pytest.approx([20.3] * count)


def test_a_function_that_waits_for_the_device_is_timed_all_the_same() -> None:
    stream = LateHost(1.0)

    def waits() -> None:
        stream.run()
        stream.host = stream.device

    found = CudaTimer().measure({"f": waits}, stream, 0.01)
    assert set(found["f"]) == {20.0} and max(stream.cleared) >= MOST_SPIN_US
