"""Triton kernels of the user's on a GPU: against torch, and against the same kernels in eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import litz_aot
from litz import report
from litz.targets.triton import user_kernels
from support.user_kernels import CASES, SIZES, blocks, double_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def compiled(run: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(run, backend="litz", fullgraph=True, **how)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "how", [{}, {"dynamic": True}, {"mode": "reduce-overhead"}], ids=["plain", "dynamic", "graphs"]
)
def test_gives_what_torch_gives(name: str, how: dict[str, Any]) -> None:
    case, call = CASES[name], compiled(CASES[name].run, **how)
    for size in SIZES if name != "part-written" else SIZES[::2]:
        for _ in range(4):  # warm-up, recording, replays
            x, y = (torch.randn(size, device="cuda") for _ in range(2))
            for actual, expected in zip(call(x, y), case.expected(x, y), strict=True):
                torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_an_input_is_written(mode: str | None) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        double_kernel[blocks(x.numel())](x, x.numel(), BLOCK=64)
        return x + 1

    call = compiled(run, mode=mode)
    for _ in range(4):
        x = torch.randn(33, 7, device="cuda")
        kept = x.clone()
        torch.testing.assert_close(call(x), kept * 2 + 1)
        torch.testing.assert_close(x, kept * 2)


def test_pointers_that_are_not_aligned() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        double_kernel[blocks(x.numel())](x, x.numel(), BLOCK=64)
        return x.sum()

    call, memory = compiled(run), torch.ones(1024, device="cuda")
    for start in (0, 1, 2):
        torch.testing.assert_close(call(memory[start : start + 512]).item(), memory[start : start + 512].sum().item())


def test_a_tuned_kernel_runs_once_a_call() -> None:
    """What is written while configurations are measured is taken back."""
    call = compiled(CASES["tuned"].run, dynamic=True)
    for size in (64, 65, 512):
        x = torch.randn(size, 16, device="cuda")
        torch.testing.assert_close(call(x, x)[0], x @ x.t() + 1, atol=1e-3, rtol=1e-3)


def test_no_dispatch_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    call = compiled(CASES["chain"].run)
    x, y = (torch.randn(64, 32, device="cuda") for _ in range(2))
    with report.collect() as reports:
        call(x, y)
    from triton.runtime.jit import JITFunction

    monkeypatch.setattr(JITFunction, "run", None)
    monkeypatch.setattr(user_kernels, "compile_user_kernel", None)
    for actual, expected in zip(call(x, y), CASES["chain"].expected(x, y), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)
    assert reports and "triton_kernel_wrapper_functional(" not in str(reports[0])


def test_gradients_around_an_op() -> None:
    """The op itself has no backward: it stands between what has."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return CASES["op"].run(x.detach(), y.detach())[0] * x

    x, y = (torch.randn(8, 8, device="cuda", requires_grad=True) for _ in range(2))
    compiled(run)(x, y).sum().backward()
    torch.testing.assert_close(x.grad, CASES["op"].expected(x.detach(), y.detach())[0])


@pytest.mark.parametrize("name", ["chain", "tuned", "strided", "op"])
def test_in_a_package(name: str, tmp_path: Path) -> None:
    """Where torch.export captures a kernel at all: `torch.library.triton_op`s stay ops that the process must have."""
    x, y = (torch.randn(30, 20, device="cuda") for _ in range(2))
    try:
        litz_aot.compile(CASES[name].run, (x, y), tmp_path / "p")
    except Exception as error:
        if name == "op":
            raise
        pytest.skip(f"torch.export does not capture it: {type(error).__name__}")
    call = litz_aot.load(tmp_path / "p")
    for actual, expected in zip(call(x, y), CASES[name].expected(x, y), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)
