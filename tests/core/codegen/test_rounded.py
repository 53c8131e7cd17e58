"""What half types are computed from, in Triton's interpreter, against float64: the bounds that `rounded` states."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from litz.ir import Store
from litz.ir.build import call, cast, const, load, reduce
from support.triton_cases import CASES, make, output
from support.triton_cases.case import f32, i0, r0
from support.warm import run_warm

ROOT = Path(__file__).parents[3]
CODE = """
import math, sys
import torch, triton
import triton.language as tl
from litz.targets.triton.helpers import _erf_plus_one, _exp_near, _sigmoid_near, _tanh_plus_one, _tanh_slope, _exp_below

@triton.jit
def run(p, erf, exp, sig, tanh, below, slope, N: tl.constexpr):
    x = tl.arange(0, N)
    a = tl.load(p + x)
    tl.store(erf + x, _erf_plus_one(a))
    tl.store(exp + x, _exp_near(a))
    tl.store(sig + x, _sigmoid_near(a))
    tl.store(tanh + x, _tanh_plus_one(a))
    tl.store(below + x, _exp_below(-tl.abs(a)))
    tl.store(slope + x, _tanh_slope(a))

a = torch.cat([torch.linspace(-12, 12, 65536 - 6), torch.tensor([0.0, -0.0, 1e-30, math.inf, -math.inf, math.nan])])
found = [torch.empty_like(a) for _ in range(6)]
run[(1,)](a, *found, a.numel())
torch.save([a, *found], sys.argv[1])
"""


@cache
def _values(folder: Path) -> object:
    paths = [str(ROOT / "core/src"), str(ROOT / "plugins/src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    script, result = folder / "run.py", folder / "values.pt"
    script.write_text(CODE)
    done = run_warm([str(script), str(result)], environment, imported=True)
    assert done.returncode == 0, done.stderr[-2000:]
    import torch

    return torch.load(result)


def test_functions_are_as_exact_as_they_say(tmp_path: Path) -> None:
    import torch

    a, erf, exp, sig, tanh, below, slope = _values(tmp_path)  # type: ignore[misc]
    x = a.double()
    whole = x.isfinite()

    def relative(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        return ((got.double() - want).abs() / want.abs().clamp_min(1e-300))[whole]

    size = x.abs()[whole]
    assert bool((relative(exp, x.exp()) <= 2.0**-21 + size * 2.0**-23).all())
    assert bool((relative(sig, x.sigmoid()) <= 2.0**-20 + size * 2.0**-23).all())
    assert bool((relative(tanh, 2 * (2 * x).sigmoid()) <= 2.0**-20 + size * 2.0**-22).all())
    steep = 1 / x.cosh() ** 2
    assert bool((relative(slope, steep) <= 2.0**-18 + size * 2.0**-20).all())
    assert bool((relative(below, (-x.abs()).exp()) <= 2.0**-21 + size * 2.0**-23).all())
    want = torch.special.erfc(-x)
    assert float((erf.double() - want).abs()[whole].max()) < 2.0**-21
    near, far = (x >= -2)[whole], (x >= -4)[whole]
    assert float(relative(erf, want)[near].max()) < 2.0**-18
    assert float(relative(erf, want)[far].max()) < 2.0**-12


def test_what_is_not_finite(tmp_path: Path) -> None:
    _, erf, exp, sig, tanh, _, slope = _values(tmp_path)  # type: ignore[misc]
    for found, at_inf, at_minus in ((erf, 2, 0), (exp, float("inf"), 0), (sig, 1, 0), (tanh, 2, 0), (slope, 0, 0)):
        assert float(found[-3]) == at_inf
        assert float(found[-2]) == at_minus
        assert bool(found[-1].isnan())


def _norm(dtype: torch.dtype, kept: bool = False, columns: int = 100) -> str:
    """The text of a layer norm. kept: its mean is stored in float32."""
    x = cast(load("a", (i0, r0), dtype), f32)
    mean, m2 = reduce("welford_mean", x), reduce("welford_m2", x)
    scale = call("rsqrt", call("div", m2, const(columns, f32)))
    stores = [Store("o", (i0, r0), cast(call("mul", call("sub", x, mean), scale), dtype))]
    stores += [Store("mean", (i0,), mean)] if kept else []
    outputs = [output("o", (9, columns), dtype), *([output("mean", (9,), f32)] if kept else [])]
    return make({"a": torch.randn(9, columns).to(dtype)}, outputs, [9], [columns], stores).source.text


def test_a_mean_that_ends_in_a_half_type_is_no_division() -> None:
    """A division takes ten instructions of each thread, and a branch: a layer norm of 256 columns had 375 for 16
    elements (SASS for sm_90), and has 238."""
    text = _norm(torch.bfloat16)
    assert "= _mean(" not in text and "= _div(" not in text and text.count(" * 0.01\n") == 2


def test_a_mean_that_is_stored_in_float32_is_exact() -> None:
    assert "_mean(" in _norm(torch.bfloat16, kept=True)
    text = _norm(torch.float32)
    assert "= _mean(" in text and "= _div(" in text


def test_a_quotient_that_is_rounded_down_is_exact() -> None:
    """A floor makes a whole of its last bit."""
    total = call("div", reduce("sum", cast(load("a", (i0, r0), torch.bfloat16), f32)), const(3, f32))
    for value, exact in ((total, False), (call("floor", total), True)):
        stores = [Store("o", (i0,), cast(value, torch.bfloat16))]
        given = {"a": torch.randn(9, 100).bfloat16()}
        text = make(given, [output("o", (9,), torch.bfloat16)], [9], [100], stores).source.text
        assert ("= _div(" in text) == exact


def test_a_softmax_masks_its_row_once() -> None:
    """Lanes beyond the row are -inf for the maximum, so that their exponentials are 0: the sum needs no mask."""
    text = CASES["rows-197-bf16"]().source.text
    assert text.count("tl.where(") == 1
