"""What C++ rounds on its way to memory, and what it need not: bfloat16 that is chosen, integers made of floats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from litz.ir import Store, build
from support.compare import litz
from support.cpp_kernels import Case, I, load

SPECIAL = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, 3e38, -0.4, 0.6, 300.0]
CHOSEN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "clamp": lambda x, m: x.clamp(0, 1),
    "relu": lambda x, m: F.relu6(x),
    "sign": lambda x, m: torch.minimum(-x.abs(), x.new_tensor(-0.5)),
    "mask": lambda x, m: x.masked_fill(m, -float("inf")),
    "float32 between": lambda x, m: x.float().clamp_min(0.5).bfloat16(),
}
COMPUTED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a limit that bfloat16 does not hold": lambda x, m: x.float().clamp(-0.1, 0.1).bfloat16(),
    "product": lambda x, m: x * 1.5,
    "one of two": lambda x, m: torch.where(m, x, x * 1.1),
    "an integer between": lambda x, m: (x.nan_to_num(0, 9, 9).clamp(-128, 128).to(torch.int32) * 3).bfloat16(),
}


def values(dtype: torch.dtype) -> torch.Tensor:
    random = torch.randn(990, generator=torch.Generator().manual_seed(0)) * 30
    return torch.cat([torch.tensor(SPECIAL), random]).to(dtype)


@pytest.mark.parametrize("name", [*CHOSEN, *COMPUTED])
def test_bfloat16_is_rounded_where_it_was_computed(name: str, tmp_path: Path) -> None:
    """And is cut where it was loaded or chosen: 7 operations less."""
    function, x = (CHOSEN | COMPUTED)[name], values(torch.bfloat16)
    m = torch.arange(len(x)) % 3 == 0
    compiled = litz(function, options={"cache_dir": str(tmp_path), "graph_cache": True})
    result, expected = compiled(x, m), function(x, m)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    numbers = ~expected.isnan()
    assert torch.equal(torch.signbit(result[numbers]), torch.signbit(expected[numbers]))
    (file,) = tmp_path.glob("graph/*/*.cpp")
    text = file.read_text(encoding="utf-8").split("int kernel")[1]
    assert ("to_bf16(" in text) == (name in COMPUTED) and (">> 16)" in text) == (name in CHOSEN)


@pytest.mark.parametrize("between", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_an_integer_that_was_a_float_has_no_sign_of_zero(dtype: torch.dtype, between: torch.dtype) -> None:
    """g++ 12 makes one cut of both conversions, which leaves -0 of -0.5, and a number that no integer holds."""
    x = torch.linspace(-3, 3, 1001).to(dtype)
    back = build.cast(build.cast(build.cast(load("x", x), between), torch.int64), dtype)
    Case((1001,), [Store("o", (I[0],), back)], {"x": x}, {"o": torch.empty(1001, dtype=dtype)}).check(rtol=0, atol=0)
    ones = torch.ones(1001, dtype=dtype)
    signs = build.call("div", load("ones", ones), back)  # -infinity for -0
    case = Case((1001,), [Store("o", (I[0],), signs)], {"x": x, "ones": ones}, {"o": torch.empty(1001, dtype=dtype)})
    case.check(rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_rounded_value_that_is_read_again_has_the_bits_of_memorys(dtype: torch.dtype) -> None:
    """Every half, its neighbours among the floats, the middles between halves, and theirs; subnormals and NaN."""
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    middles = (halves.view(torch.int32) + (0x1000 if dtype == torch.float16 else 0x8000)).view(torch.float32)
    exact = torch.cat([halves, middles, torch.tensor(SPECIAL), 2.0 ** torch.arange(-30, -10, 0.37)])
    x = torch.cat([(exact.view(torch.int32) + step).view(torch.float32) for step in (-1, 0, 1)])
    rounded = build.cast(build.cast(load("x", x), dtype), torch.float32)
    case = Case(x.shape, [Store("o", (I[0],), rounded)], {"x": x}, {"o": torch.empty_like(x)})
    source = case.source()
    assert "rounded_" in source.text
    made, wanted = case.run(source)["o"], x.to(dtype).float()
    assert torch.equal(made.isnan(), wanted.isnan())
    assert torch.equal(made.nan_to_num(0).view(torch.int32), wanted.nan_to_num(0).view(torch.int32))
