"""Settings of generated kernels: a local search with few measurements, records that are kept, a gain beyond noise."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import pipeline
from litz import report as reports
from litz.cache.disk import Cache
from litz.driver.builtin import builtin_plugins
from litz.targets.cpp.codegen import CppCodegen
from litz_autotune import Autotune
from litz_autotune.hill import Hill, name_of, settings_in, winner
from litz_autotune.kernels import ATTACHMENT
from litz_autotune.measurement import Measurement, failed
from litz_autotune.results import UNTUNED, Counters, LocalStore, Record
from litz_autotune.timing import CpuTimer
from litz_autotune.trial import Trial, WithSettings
from litz_plugins import KernelSource
from litz_plugins.manager import make_plugins
from support.fake_timer import FakeTimer
from support.own_plugins import CONTRACTIONS
from support.redis_server import redis_server

# ------------------------------------------------------------------------------------------------------ the search


@dataclass
class Valley:
    """Kernels of two settings, whose times are those of `us`; the second time that a pair is asked for `again`."""

    us: Callable[[int, int], float]
    noise: float = 0.0
    asked: list[tuple[str, str]] = field(default_factory=list)

    def time(self, name: str) -> float:
        settings = settings_in(name)
        return self.us(settings.get("x", 1024), settings.get("warps", 4))

    def near(self, name: str) -> list[str]:
        now = {"x": 1024, "warps": 4} | settings_in(name)
        steps = [now | {key: value} for key in now for value in (2 * now[key], now[key] // 2)]
        known = {each for pair in self.asked for each in pair}
        return [text for each in steps if (text := name_of(each)) not in known and each != {"x": 1024, "warps": 4}]

    def measure(self, pairs: Sequence[tuple[str, str]], seconds: float) -> list[tuple[Measurement, Measurement]]:
        self.asked += pairs
        return [(self._of(first), self._of(second)) for first, second in pairs]

    def _of(self, name: str) -> Measurement:
        us = self.time(name)
        return Measurement(us, self.noise, 9) if us < inf else failed("too much shared memory")

    def hill(self, most: int = 12, seconds: float = 60.0) -> Hill:
        return Hill(self.near, self.measure, most, time.monotonic() + seconds)


def bowl(x: int, warps: int) -> float:
    """The best is x=4096 warps=8, two steps along one setting and one along the other."""
    return 100 + 20 * abs((x // 512).bit_length() - 4) + 10 * abs(warps.bit_length() - 4)


def test_it_finds_the_best_in_a_few_measurements_and_says_why_of_each_step() -> None:
    valley = Valley(bowl)
    hill = valley.hill()
    assert hill.climb() == "x=4096 warps=8"
    assert len(valley.asked) <= 14 and hill.complete
    assert winner(hill.measured)[0] == "x=4096 warps=8"
    reasons = {name: found.reason for name, found in hill.measured.items()}
    assert reasons["x=2048 warps=4"].startswith(f"taken in step 1, from {UNTUNED}: gains")
    assert "no faster" in reasons["x=512 warps=4"]
    assert reasons[UNTUNED] == reasons["x=4096 warps=8"] == ""
    assert all(reason for name, reason in reasons.items() if name not in (UNTUNED, "x=4096 warps=8"))


def test_the_untuned_kernel_stays_within_the_noise() -> None:
    hill = Valley(lambda x, warps: 100.0 if x == 1024 else 98.0, noise=1.0).hill()
    assert hill.climb() == UNTUNED
    assert winner(hill.measured)[0] == UNTUNED
    assert "within the noise" in hill.measured["x=2048 warps=4"].reason


def test_a_gain_that_is_not_there_again_is_none() -> None:
    """The candidate was fast in its step and in one final; in the next it was as slow as the others."""
    valley = Valley(lambda x, warps: 50.0 if x == 2048 else 100.0)

    def slower(pairs: Sequence[tuple[str, str]], seconds: float) -> list[tuple[Measurement, Measurement]]:
        found = valley.measure(pairs, seconds)
        finals = [pair for pair in valley.asked if pair == (UNTUNED, "x=2048 warps=4")]
        return found if len(finals) < 3 else [(first, first) for first, _ in found]

    hill = Hill(valley.near, slower, 12, time.monotonic() + 60)
    assert hill.climb() == UNTUNED
    assert "not there again" in hill.measured["x=2048 warps=4"].reason
    assert winner(hill.measured)[0] == UNTUNED


def test_what_does_not_run_costs_itself() -> None:
    hill = Valley(lambda x, warps: inf if warps > 4 else bowl(x, warps)).hill()
    assert hill.climb() == "x=4096 warps=4"
    assert "too much shared memory" in hill.measured["x=1024 warps=8"].reason


def test_it_measures_no_more_than_it_may() -> None:
    valley = Valley(bowl)
    hill = valley.hill(most=5)
    hill.climb()
    assert len({second for _, second in valley.asked}) <= 5


def test_without_time_nothing_is_taken_and_the_record_is_not_complete() -> None:
    valley = Valley(bowl)
    hill = valley.hill(seconds=-1.0)
    assert hill.climb() == UNTUNED and not hill.complete and not valley.asked


def test_a_gain_that_was_not_confirmed_in_time_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    valley = Valley(bowl)
    hill = valley.hill(most=4)
    in_time = iter([True, False])
    monkeypatch.setattr(hill, "_in_time", lambda: next(in_time))
    assert hill.climb() == UNTUNED
    assert winner(hill.measured)[0] == UNTUNED
    assert "no time was left" in hill.measured["x=2048 warps=4"].reason


@pytest.mark.parametrize("settings", [{}, {"x": 1024, "warps": 4}], ids=str)
def test_names_of_settings_are_read_back(settings: dict[str, int]) -> None:
    assert settings_in(name_of(settings)) == settings


# ------------------------------------------------------------------- compiled on the CPU, with settings that do nothing


def near(self: Any, kernel: Any, context: Any) -> list[dict[str, int]]:
    size = kernel.settings.get("x", 1024)
    return [{"x": size * 2}, {"x": size // 2}]


@pytest.fixture
def tunable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code generator of the CPU with settings: they are a comment in its text."""
    generate = CppCodegen.generate

    def with_settings(self: CppCodegen, kernel: Any, context: Any) -> KernelSource:
        source = generate(self, kernel, context)
        if kernel.settings.keys() - {"x"}:
            raise ValueError("no settings of this kernel")
        lines = f"// x={kernel.settings['x']}\n" if kernel.settings else ""
        return replace(source, text=lines + source.text)

    monkeypatch.setattr(CppCodegen, "generate", with_settings)
    monkeypatch.setattr(CppCodegen, "near", near, raising=False)


TIMES = FakeTimer(((UNTUNED, 100.0), ("x=2048", 60.0), ("x=4096", 50.0)))


class Compiled:
    """A function compiled with the autotuner on the CPU. counters: what it did; text: what the report says of it."""

    def __init__(self, folder: Path, timer: Any = TIMES, **options: Any) -> None:
        self.autotune = Autotune(timer)
        extra = [CONTRACTIONS, ("autotune", self.autotune)]
        self.plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
        given = {"max_autotune_pointwise": True, "cache_dir": folder, "cpp.qualify": False, "graph_cache": False}
        self.options = {**given, "autotune.in_subprocess": False, **options}

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        torch._dynamo.reset()
        backend = lambda gm, inputs: pipeline.compile_backend(gm, inputs, options=self.options, plugins=self.plugins)
        with reports.collect() as collected:
            result = torch.compile(fn, backend=backend, dynamic=False)(*args)
        self.report = collected[-1]
        self.text = self.report.attachments.get(ATTACHMENT, "")
        self.sources = "".join(self.report.kernel_sources.values())
        return result

    @property
    def counters(self) -> Counters:
        return self.autotune.counters


def fn(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).exp()


X = torch.randn(300, 40)


def tuned(
    folder: Path, fn: Callable[..., Any] = fn, x: torch.Tensor = X, timer: Any = TIMES, **options: Any
) -> Compiled:
    compiled = Compiled(folder, timer, **options)
    torch.testing.assert_close(compiled(fn, x), fn(x))
    return compiled


@pytest.mark.usefixtures("tunable")
def test_the_fastest_settings_are_compiled_and_kept(tmp_path: Path) -> None:
    first = tuned(tmp_path)
    assert "// x=4096" in first.sources and first.counters.kernels == 1 and first.counters.races > 0
    assert re.search(r"\* +50 us .* x=4096\n", first.text), first.text
    (decision,) = [each for each in first.report.decisions if each.plugin == "autotune"]
    assert decision.chosen == "x=4096" and decision.gained_us == 50 and "kernel_settings/" in decision.key
    again = tuned(tmp_path)
    assert "// x=4096" in again.sources
    assert (again.counters.kernels, again.counters.races, again.counters.local_hits) == (0, 0, 1)


@pytest.mark.usefixtures("tunable")
def test_another_kernel_is_another_question(tmp_path: Path) -> None:
    """Another text, other sizes, another driver or torch (`environment`)."""
    tuned(tmp_path)
    assert tuned(tmp_path, lambda x: (x.cos() + 1).exp()).counters.kernels == 1
    assert tuned(tmp_path, x=torch.randn(301, 40)).counters.kernels == 1
    assert tuned(tmp_path).counters.kernels == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("litz_autotune.kernels.environment", lambda: ("another torch",))
        assert tuned(tmp_path).counters.kernels == 1


@pytest.mark.usefixtures("tunable")
def test_equal_kernels_are_measured_once(tmp_path: Path) -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(x.sin(), x.t()).sin(), x).sin()

    x = torch.randn(64, 64)
    compiled = Compiled(tmp_path)
    torch.testing.assert_close(compiled(twice, x), twice(x), rtol=1e-4, atol=1e-4)
    assert compiled.counters.kernels == 1 and "and 2 equal ones" in compiled.text, compiled.text
    assert sum("// x=4096" in source for source in compiled.report.kernel_sources.values()) == 3


@pytest.mark.usefixtures("tunable")
def test_settings_that_compute_something_else_do_not_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = CppCodegen.generate

    def wrong(self: CppCodegen, kernel: Any, context: Any) -> KernelSource:
        source = generate(self, kernel, context)
        return replace(source, text=source.text.replace("= sin(", "= -sin(")) if kernel.settings else source

    monkeypatch.setattr(CppCodegen, "generate", wrong)
    compiled = tuned(tmp_path)
    assert "// x=" not in compiled.sources and "gives other values" in compiled.text


@pytest.mark.usefixtures("tunable")
def test_options_say_whether(tmp_path: Path) -> None:
    assert tuned(tmp_path, max_autotune_pointwise=False).counters.kernels == 0
    assert tuned(tmp_path, max_autotune_pointwise=False, max_autotune_gemm=True).counters.kernels == 0
    assert tuned(tmp_path, **{"autotune.kernels": False}).counters.kernels == 0
    only = tuned(tmp_path, max_autotune_pointwise=False, **{"autotune.search_cache": True})
    assert "// x=" not in only.sources, "nothing was measured yet"
    options = {"max_autotune_pointwise": False, "max_autotune": True, "autotune.decisions": False}
    assert tuned(tmp_path, **options).counters.kernels == 1
    looked_up = tuned(tmp_path, max_autotune_pointwise=False, **{"autotune.search_cache": True})
    assert "// x=4096" in looked_up.sources and looked_up.counters.races == 0


@pytest.mark.usefixtures("tunable")
def test_a_veto_leaves_the_kernel_as_worked_out(tmp_path: Path) -> None:
    (decision,) = [each for each in tuned(tmp_path).report.decisions if each.plugin == "autotune"]
    vetoed = tuned(tmp_path, veto=(decision.key.partition(":")[2],))
    assert "// x=" not in vetoed.sources and vetoed.counters.races == 0
    assert "// x=4096" in tuned(tmp_path, veto=("fuse/nothing",)).sources, "what is known is taken"


@pytest.mark.usefixtures("tunable")
def test_a_budget_of_nothing_measures_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    compiled = tuned(tmp_path, **{"autotune.budget_s": 0.0, "graph_cache": True})
    assert "// x=" not in compiled.sources and compiled.counters.races == 0
    assert compiled.counters.local_puts == 0
    assert "// x=4096" in tuned(tmp_path, graph_cache=True).sources, "nor does the graph cache keep the graph"


@pytest.mark.ci_cases("x=1e3", "x=2048 colour=3")
@pytest.mark.usefixtures("tunable")
@pytest.mark.parametrize("name", ["x=2048 colour=3", "x", "x=1e3", "x=4096 x=oops", ""])
def test_who_shares_a_cache_cannot_send_settings_that_break_a_compile(tmp_path: Path, name: str) -> None:
    compiled = tuned(tmp_path)
    store = LocalStore(Cache(tmp_path), Counters())
    (key,) = store.all_keys()
    record = store.find(key)
    assert record is not None
    measured = {UNTUNED: Measurement(100.0, 0.0, 9), name: Measurement(1.0, 0.0, 9)}
    other = LocalStore(Cache(tmp_path / "other"), Counters())
    other.put(key, Record(record.problem, measured))
    compiled = tuned(tmp_path / "other")
    assert "// x=" not in compiled.sources and compiled.counters.local_hits == 1


@pytest.mark.usefixtures("tunable")
def test_machines_share_results(tmp_path: Path) -> None:
    with redis_server(tmp_path) as url:
        options = {"autotune.local_cache": False, "autotune.remote_cache": url}
        first = tuned(tmp_path / "a", **options)
        assert (first.counters.remote_puts, first.counters.kernels) == (1, 1)
        second = tuned(tmp_path / "b", **options)
        assert (second.counters.remote_hits, second.counters.kernels) == (1, 0)
        assert "// x=4096" in second.sources


@pytest.mark.usefixtures("tunable")
def test_in_the_background(tmp_path: Path) -> None:
    from litz.runtime.background import wait

    compiled = tuned(tmp_path, **{"autotune.background": True, "max_autotune": True})
    assert compiled.counters.kernels == 0 or wait(0)
    assert wait(60)
    assert compiled.counters.kernels == 1
    later = tuned(tmp_path, **{"autotune.background": True, "max_autotune": True})
    assert "// x=4096" in later.sources


# ------------------------------------------------------------------------------------------------------------ a trial


def _trial(folder: Path, *functions: Callable[..., Any]) -> Trial:
    compiler = pipeline.make_compiler(None, {"cache_dir": folder, "cpp.qualify": False})
    schedules = []
    for function in functions:
        torch._dynamo.reset()
        schedules += pipeline.schedule_only(function, (X,), {"cache_dir": folder})
    entrants = tuple(WithSettings(str(number), schedule) for number, schedule in enumerate(schedules))
    return Trial("key", entrants, CpuTimer(), compiler.options, str(folder), 0.01)


def test_a_trial_times_and_compares(tmp_path: Path) -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2.0)

    first, same, other = _trial(tmp_path, fn, fn, lambda x: (x.cos() + 1).exp()).run({})
    assert first.valid and same.valid and first.us > 0
    assert other.us == inf and "other values" in other.reason
    first, same = _trial(tmp_path, writes, writes).run({})
    assert first.valid and same.valid, "each has its own of what it writes"
