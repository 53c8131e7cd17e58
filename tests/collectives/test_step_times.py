"""collectives.cost = "benchmark": each step that computes is measured once, and its time is what the passes go by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the ops
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz import report
from litz.graph_cache.key import Part
from litz.ir import Collective, Wait
from litz_collectives import step_times

ops = torch.ops._c10d_functional


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group(backend="fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def layers(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Two equal layers, each a product and a kernel, and an all_reduce before the second."""
    first = (m @ m).sin() * 2
    got = ops.wait_tensor(ops.all_reduce(x, "sum", "0"))
    return (first @ first).sin() * 2 + got


def run(tmp_path: Path, **given: Any) -> Any:
    torch._dynamo.reset()
    options = {"collectives.cost": "benchmark", "cache_dir": tmp_path, "graph_cache": False, **given}
    x, m = torch.ones(256, 256), torch.full((256, 256), 0.01)
    with report.collect() as reports:
        got = torch.compile(layers, backend="litz", options=options)(x, m)
    torch.testing.assert_close(got, layers(x, m))
    (found,) = reports
    return found


def kept(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob(f"{step_times.KIND}/*/{step_times.FILE}"))


def test_each_step_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    times = step_times._times
    monkeypatch.setattr(step_times, "_times", lambda *given: ran.append(str(given[0])) or times(*given))
    first = run(tmp_path)
    computing = [step for step in first.plan.steps if not isinstance(step, (Collective, Wait))]
    assert len(ran) == len(kept(tmp_path)) < len(computing), "equal products are one"
    by = {step.name: first.plan.estimates[step.name] for step in computing}
    assert all(one.why == "measured alone" and 0 < one.low_us <= one.us <= one.high_us for one in by.values()), by
    again = run(tmp_path)
    assert len(ran) == len(kept(tmp_path)), "nothing is measured again"
    assert {name: again.plan.estimates[name] for name in by} == by
    said = [one for one in first.decisions if one.subject == "times of steps"]
    assert said and said[0].chosen == f"{len(computing)} of {len(computing)} measured"


def test_kernels_of_other_code_or_for_another_processor_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    before = len(kept(tmp_path))
    run(tmp_path, **{"cpp.march": "x86-64"})
    assert len(kept(tmp_path)) == 2 * before
    monkeypatch.setattr(step_times, "version_parts", lambda: iter([Part("litz", "another version", "")]))
    run(tmp_path)
    assert len(kept(tmp_path)) == 3 * before


def test_a_damaged_time_is_measured_again(tmp_path: Path) -> None:
    run(tmp_path)
    for file in kept(tmp_path):
        file.write_text("{}")
    found = run(tmp_path)
    times = [one for one in found.plan.estimates.values() if one.why == "measured alone"]
    assert len(times) == len(found.plan.steps) - 2, "all but the collective and the wait"
    assert all("low_us" in file.read_text() for file in kept(tmp_path))


def test_what_is_not_here_is_not_measured(tmp_path: Path) -> None:
    """Planning for a GPU on a machine without one goes on with estimates, and says so."""
    from litz.pipeline import schedule_only

    with FakeTensorMode(allow_non_fake_inputs=True):
        given = [torch.empty(256, 256, device="cuda") for _ in range(2)]
    options = {"collectives.cost": "benchmark", "cache_dir": tmp_path}
    (schedule,) = schedule_only(layers, given, options)
    assert schedule.steps and not kept(tmp_path)
    (step, *_) = (one for one in schedule.steps if not isinstance(one, (Collective, Wait)))
    if not torch.cuda.is_available():
        assert step_times._why_not(step) == "there is no CUDA device here"
    with FakeTensorMode():
        assert step_times._why_not(on_cpu()) == "tensors are fake here, so nothing runs"


def on_cpu() -> Any:
    from litz.ir import Extern

    return Extern("call", torch.device("cpu"), torch.ops.aten.mm.default, ())


@pytest.mark.parametrize(
    "change",
    [
        {"target": torch.ops.aten.bernoulli.default},
        {"mutates": ("x",)},
        {"effect": True},
        {"aliases": {"y": "x"}},
        {"target": ops.all_reduce.default},
        {"target": print},
    ],
)
def test_what_does_more_than_compute_is_not_run(change: dict[str, Any]) -> None:
    from dataclasses import replace

    assert step_times._why_not(on_cpu()) == ""
    assert step_times._why_not(replace(on_cpu(), **change))
