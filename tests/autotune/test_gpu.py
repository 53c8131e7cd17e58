"""Tuning on a GPU that is there: every template kernel right, the choice measured, results kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import report as reports
from support.compare import NO_GPU, ROUNDING, close

pytest.importorskip("litz_autotune")
pytestmark = [pytest.mark.gpu, NO_GPU]
F = torch.nn.functional
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def compiled(fn: Callable[..., Any], tmp_path: Path, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    options = {"cache_dir": str(tmp_path)} | {name.replace("__", "."): value for name, value in options.items()}
    return torch.compile(fn, backend="litz", options={"mode": "max-autotune-no-cudagraphs"} | options)


def make(*size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": lambda x, w, b: x @ w,
    "gelu": lambda x, w, b: F.gelu(torch.addmm(b, x, w)),
    "transposed": lambda x, w, b: x.t().contiguous().t() @ w.t().contiguous().t() + b,
    "made": lambda x, w, b: F.silu(x) @ (w.float() * 0.5).to(w.dtype) + b,
    "rows": lambda x, w, b: F.layer_norm(x @ w + b, w.shape[1:]),
    "residual": lambda x, w, b: (x @ w).relu() * 2 + (x @ w).sigmoid(),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("size", [(256, 128, 512), (130, 67, 255), (1, 2048, 96)], ids=str)
def test_templates_are_as_right_as_the_library(
    name: str, dtype: torch.dtype, size: tuple[int, int, int], tmp_path: Path
) -> None:
    m, k, n = size
    args = make(m, k, dtype=dtype, seed=1), make(k, n, dtype=dtype, seed=2), make(n, dtype=dtype, seed=3)
    fn = PRODUCTS[name]
    with reports.collect() as collected:
        actual = compiled(fn, tmp_path, autotune__backends=["triton"], autotune__search="fast")(*args)
    close(actual, fn(*args), fn(*(a.double() for a in args)), rounding=2 * ROUNDING[dtype])
    assert not collected[0].externs, "a library call, where only templates may run"


def test_batches_and_any_size(tmp_path: Path) -> None:
    fn = lambda x, w: torch.bmm(x, w.transpose(1, 2)).relu()
    x, w = make(5, 70, 33, dtype=torch.bfloat16, seed=1), make(5, 90, 33, dtype=torch.bfloat16, seed=2)
    torch._dynamo.mark_dynamic(x, 1)
    call = compiled(fn, tmp_path, autotune__backends=["triton"], autotune__search="fast")
    for rows in (70, 3, 301):
        x = make(5, rows, 33, dtype=torch.bfloat16, seed=rows)
        if rows == 70:
            torch._dynamo.mark_dynamic(x, 1)
        close(call(x, w), fn(x, w), fn(x.double(), w.double()))


def test_each_size_has_its_own_choice(tmp_path: Path) -> None:
    fn = lambda x, w, b: F.gelu(F.linear(x, w, b))
    w, b = make(1536, 512, dtype=torch.bfloat16, seed=2), make(1536, dtype=torch.bfloat16, seed=3)
    call = compiled(fn, tmp_path, autotune__search="fast", sizes=(16, 4096))
    with reports.collect() as collected:
        for rows in (256, 3, 16, 65, 1000, 4096, 5001):
            x = make(rows, 512, dtype=torch.bfloat16, seed=rows)
            torch._dynamo.mark_dynamic(x, 0)
            close(
                call(x, w, b), fn(x, w, b), fn(*(t.double() for t in (x, w, b))), rounding=2 * ROUNDING[torch.bfloat16]
            )
    (report,) = collected  # compiled once
    tuned = {str(d.subject).partition(" = ")[2] for d in report.decisions if d.plugin == "autotune"}
    assert tuned == {"", "16", "4096"}
    assert any("size" in d.chosen for d in report.decisions), "what runs for which sizes"


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "plain": ((64, 48, 3, 3), lambda x, w: F.conv2d(x, w, padding=1).relu()),
    "strided": ((64, 48, 3, 3), lambda x, w: F.conv2d(x, w, stride=2)),
    "grouped": ((96, 16, 3, 3), lambda x, w: F.conv2d(x, w, padding=1, groups=3)),
    "transposed": ((48, 40, 3, 3), lambda x, w: F.conv_transpose2d(x, w, padding=1)),
    "upsampling": ((48, 40, 4, 4), lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1).relu()),
    "upsampling by 3 taps": ((48, 40, 3, 3), lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, output_padding=1)),
    "depthwise": ((96, 1, 3, 3), lambda x, w: F.silu(F.conv2d(x, w, padding=1, groups=48))),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_as_right_as_the_library(name: str, last: bool, tmp_path: Path) -> None:
    size, fn = CONVOLUTIONS[name]
    form = torch.channels_last if last else torch.contiguous_format
    x = make(4, 48, 15, 14, dtype=torch.bfloat16, seed=1).contiguous(memory_format=form)
    w = make(*size, dtype=torch.bfloat16, seed=2).contiguous(memory_format=form)
    with reports.collect() as collected:
        actual = compiled(fn, tmp_path, autotune__backends=["triton"], autotune__search="fast")(x, w)
    close(actual, fn(x, w), fn(x.double(), w.double()), rounding=2 * ROUNDING[torch.bfloat16])
    assert not collected[0].externs, "a library call, where only templates may run"


def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    x, w = make(512, 512, dtype=torch.bfloat16, seed=1), make(512, 512, dtype=torch.bfloat16, seed=2)
    for _ in range(2):
        fn = lambda x, w: F.silu(x @ w)
        with reports.collect() as collected:
            actual = compiled(fn, tmp_path)(x, w)
        close(actual, fn(x, w), fn(x.double(), w.double()), rounding=2 * ROUNDING[torch.bfloat16])
    assert any("library" in str(decision) for decision in collected[0].decisions)
