"""Products of few rows on the CPU: weights are converted on their way, wherever that is surely no slower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.ir import Template
from litz.pipeline import schedule_only
from litz.report import collect
from litz.report.log import Log
from litz.target.describe import cpu_target
from litz_contractions.products.rows_loop import FewRowsProblem, compare

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that was measured, whatever this one is."""
    monkeypatch.setattr("litz.target.describe.file_here", lambda: "cpu-avx512")


def scaled(w: Tensor, x: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * s


def biased(w: Tensor, x: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.linear(x, w.to(x.dtype), b))


def packed(w: Tensor, x: Tensor, s: Tensor) -> Tensor:
    digits = torch.stack((w & 15, w >> 4), -1).reshape(s.shape[0], s.shape[1], -1).to(x.dtype)
    return F.linear(x, ((digits - 8) * s).flatten(1))


def packed_whole(w: Tensor, x: Tensor) -> Tensor:
    return F.linear(x, (torch.stack((w & 15, w >> 4), -1).flatten(1).to(x.dtype) - 8))


def three(w1: Tensor, x: Tensor, s1: Tensor, w2: Tensor, s2: Tensor) -> Tensor:
    """Two of one activation, and one of an activation that was changed in between."""
    first = scaled(w1, x, s1)
    second = scaled(w2, x, s2)
    x.add_(1)
    return first + second * scaled(w1 + 1, x, s1)


def int8(*size: int) -> Tensor:
    return torch.randint(-127, 128, size, dtype=torch.int8)


def halves(n: int, k: int) -> Tensor:
    return torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)


def run(fn: Callable[..., Tensor], *tensors: Tensor, dynamic: bool | None = False, anew: bool = True) -> None:
    """Compiled, against float64: no further off than eager, an ulp or two aside. anew: not what was compiled before."""
    if anew:
        torch._dynamo.reset()
    with torch.no_grad():
        expected = fn(*(t.double() if t.is_floating_point() else t.clone() for t in tensors))
        eager = fn(*(t.clone() for t in tensors))
        compiled = torch.compile(fn, backend="litz", dynamic=dynamic)(*(t.clone() for t in tensors))
    assert compiled.dtype == eager.dtype and compiled.shape == eager.shape
    assert not eager.numel() or compiled.stride() == eager.stride()
    if expected.numel():
        scale = expected.abs().max().clamp_min(1e-30)
        errors = [(out.double() - expected).abs().max() / scale for out in (compiled, eager)]
        assert errors[0] <= max(1.5 * errors[1], 1e-6 if eager.dtype == torch.float32 else 8e-3)


def decided(fn: Callable[..., Tensor], *tensors: Tensor, **how: Any) -> tuple[int, str]:
    """How many library calls are left, and what was decided."""
    torch._dynamo.reset()
    log = Log()
    with torch.no_grad():
        (schedule,) = schedule_only(fn, tensors, log=log, **how)
    left = sum(isinstance(step, Template) for step in schedule.steps)
    return left, "\n".join(map(str, log.decisions))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 16, 17])
@pytest.mark.parametrize("n, k", [(1, 1), (5, 7), (33, 259), (64, 1024)])
def test_bytes(dtype: torch.dtype, rows: int, n: int, k: int) -> None:
    torch.manual_seed(rows + n)
    run(scaled, int8(n, k), torch.randn(rows, k).to(dtype), torch.rand(n).to(dtype))


@pytest.mark.ci_cases("1-torch.float32", "4-torch.bfloat16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 4, 7, 8])
def test_halves_of_bytes(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 768).to(dtype)
    run(packed, halves(19, 768), x, torch.rand(19, 6, 1).to(dtype))
    run(packed, halves(19, 768), x, torch.rand(19, 1, 1).to(dtype))
    run(packed_whole, halves(19, 768), x)


@pytest.mark.parametrize("dynamic", [True, None])
def test_dynamic_sizes(dynamic: bool | None) -> None:
    torch._dynamo.reset()
    with collect() as graphs:
        for rows in (1, 3, 4):
            run(scaled, int8(24, 80), torch.randn(rows, 80), torch.rand(24), dynamic=dynamic, anew=False)
    assert len(graphs) == 2  # of one row, and of any other number


VIEWS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:1].expand(4, -1),
    "sliced": lambda x: torch.cat((x, x), 1)[:, 3 : 3 + x.shape[1]],
    "every other": lambda x: torch.stack((x, x + 1), -1)[..., 0],
}


@pytest.mark.ci_cases("transposed", "sliced")
@pytest.mark.parametrize("view", VIEWS)
def test_strides(view: str) -> None:
    x, w = torch.randn(4, 96), int8(33, 96)
    run(scaled, w, VIEWS[view](x), torch.rand(33))
    run(scaled, w, VIEWS[view](x).bfloat16(), torch.rand(33).bfloat16())
    weights = torch.randint(-9, 9, (4, 96), dtype=torch.int8)
    run(scaled, VIEWS[view](weights), x, torch.rand(4))


def test_bias_and_activation() -> None:
    left, decisions = decided(biased, int8(512, 512), torch.randn(2, 512), torch.randn(512))
    assert left == 0, decisions
    run(biased, int8(512, 512), torch.randn(2, 512), torch.randn(512))


def test_an_activation_that_changes() -> None:
    args = (int8(64, 128), torch.randn(2, 128).bfloat16(), torch.rand(64).bfloat16())
    run(three, *args, int8(64, 128), torch.rand(64).bfloat16())


def test_one_conversion_for_all() -> None:
    """Products of one activation share its copy in float32."""

    def two(w1: Tensor, x: Tensor, s1: Tensor, w2: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
        return scaled(w1, x, s1), scaled(w2, x, s2)

    args = (int8(512, 512), torch.randn(2, 512).bfloat16(), torch.rand(512).bfloat16())
    torch._dynamo.reset()
    with torch.no_grad():
        (schedule,) = schedule_only(two, (*args, int8(256, 512), torch.rand(256).bfloat16()))
    wide = [name for name in schedule.program.buffers if "_wide_" in name]
    assert len(wide) == 1 and not any(isinstance(step, Template) for step in schedule.steps)


def test_left_to_the_library() -> None:
    """And why, on record."""
    s, x = torch.rand(512), torch.randn(2, 512)
    left, decisions = decided(scaled, int8(512, 512), torch.randn(32, 512), s)
    assert left == 1 and "the kernel takes 1 to 16 rows, and the product has 32" in decisions
    left, decisions = decided(lambda w, x: F.linear(x, w), torch.randn(512, 512), x)
    assert left == 1 and "no operation makes the weights" in decisions
    left, decisions = decided(scaled, torch.randn(512, 512), x.bfloat16(), s.bfloat16())
    assert left == 1 and "not stored in fewer bits" in decisions
    left, decisions = decided(scaled, int8(512, 512).t(), x, s)
    assert left == 1 and "do not lie along the depth" in decisions
    left, decisions = decided(scaled, int8(512, 512), x.double(), s.double())
    assert left == 1 and "float64" in decisions
    many = torch.randn(16, 512).bfloat16()
    left, decisions = decided(scaled, int8(512, 512), many, s.bfloat16())
    assert left == 1 and "loop mm" in decisions and ">=" in decisions
    left, decisions = decided(scaled, int8(512, 512), x, s, options={"cpp.march": "x86-64"})
    assert left == 1 and "not measured on this processor" in decisions


def test_nobody_knows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litz.target.describe.file_here", lambda: "")
    left, decisions = decided(scaled, int8(512, 512), torch.randn(2, 512), torch.rand(512))
    assert left == 1 and "not measured on this processor" in decisions


def test_figures() -> None:
    """What was measured on 2026-11-22 is decided as it came out."""
    problem = FewRowsProblem(1, 2048 * 2048, torch.float32, 2)
    for capability in ("AVX2", "AVX512"):
        target = replace(cpu_target(1), file=f"cpu-{capability.lower()}")
        for dtype, most in ((torch.float32, 16), (torch.bfloat16, 4 if capability == "AVX512" else 16)):
            for rows in (1, 2, 4, 8, 16):
                compared = compare(replace(problem, rows=rows, dtype=dtype), target)
                assert compared is not None
                assert (compared[0].high_us < compared[1].low_us) == (rows <= most), (capability, dtype, rows)
        far = compare(replace(problem, rows=4, weights=4096 * 11008, dtype=torch.bfloat16), target)
        assert far is not None and far[0].high_us < far[1].low_us
        assert compare(replace(problem, dtype=torch.float16), target) is None
