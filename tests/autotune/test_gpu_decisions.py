"""Decisions measured on a GPU that is there: a wrong cost model is found out, beside the calls and recorded too."""

from pathlib import Path
from typing import Any

import pytest
import torch

from litz import pipeline
from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.runtime.background import wait
from litz_plugins.manager import make_plugins
from support.compare import NO_GPU
from support.cost_models import BytesAlone

pytest.importorskip("litz_autotune")
pytestmark = [pytest.mark.gpu, NO_GPU]

from litz_autotune import Autotune  # noqa: E402

ATTACHMENT = "decisions measured.txt"


def again_and_again(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Each value is expensive, and read by 64 others."""
    value = x
    for _ in range(12):
        value = torch.erf(torch.log1p(value.exp())).tanh().sin().exp().atan()
    return w * value


def compiled(folder: Path, **options: Any) -> Any:
    autotune = Autotune()
    extra = [("autotune", autotune), ("cheap", BytesAlone())]
    plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
    given = {"mode": "max-autotune-no-cudagraphs", "cache_dir": folder, **options}
    torch._dynamo.reset()
    return torch.compile(
        again_and_again,
        backend=lambda gm, inputs: pipeline.compile_backend(gm, inputs, options=given, plugins=plugins),
        dynamic=False,
    )


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.rand(1 << 16, device="cuda", generator=generator)
    return x, torch.rand(64, 1 << 16, device="cuda", generator=generator)


def check(result: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    torch.testing.assert_close(result.double(), again_and_again(x.double(), w.double()), rtol=1e-4, atol=1e-5)


def step_us(fn: Any, *args: torch.Tensor) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(30):
        start.record()
        fn(*args)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return min(times)


@pytest.mark.parametrize("in_subprocess", [True, False])
def test_a_wrong_cost_model_is_found_out(in_subprocess: bool, tmp_path: Path) -> None:
    x, w = inputs()
    state = torch.cuda.get_rng_state()
    wrong = compiled(tmp_path, **{"autotune.decisions": False})
    check(wrong(x, w), x, w)
    slow = step_us(wrong, x, w)
    with reports.collect() as made:
        tuned = compiled(tmp_path, **{"autotune.in_subprocess": in_subprocess})
        check(tuned(x, w), x, w)
    text = made[-1].attachments[ATTACHMENT]
    assert "* inline_pointwise/" in text, text
    assert torch.equal(torch.cuda.get_rng_state(), state)
    fast = step_us(tuned, x, w)
    assert fast < slow / 1.5, f"{fast} us, {slow} us before\n{text}"
    with reports.collect() as made:
        later = compiled(tmp_path)
        check(later(x, w), x, w)
    assert "by an earlier process" in made[-1].attachments[ATTACHMENT]


@pytest.mark.parametrize("mode", ["max-autotune-no-cudagraphs", "max-autotune"])
def test_in_the_background(mode: str, tmp_path: Path) -> None:
    """Results are right at any time, and with CUDA graphs what was swapped in is recorded anew."""
    x, w = inputs()
    tuned = compiled(tmp_path, mode=mode, **{"autotune.background": True})
    for _ in range(4):
        check(tuned(x, w), x, w)
    slow = step_us(tuned, x, w)
    while not wait(0.05):
        check(tuned(x, w), x, w)
    for _ in range(4):
        check(tuned(x, w), x, w)
    assert step_us(tuned, x, w) < slow
