"""Positions that fit 16 bits: LLVM packs two of them into a register, whose additions ptxas gets wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from litz.targets.triton import compile as triton_compile
from litz_plugins import KernelSource
from support.triton_compiled import compile_only

SOURCE = KernelSource(
    "kernel",
    "triton",
    """
import triton
import triton.language as tl


@triton.jit
def kernel(p0, p1, p2):
    x = tl.arange(0, 16)
    mask = x < 9
    x1 = x % 3
    x0 = x // 3
    tmp0 = tl.load(p0 + x, mask)
    tmp1 = tl.load(p0 + (((1 + x0) % 3)*3 + 9 + x1), mask)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.load(p0 + (18 + x), mask)
    tl.store(p1 + x, tmp2, mask)
    tl.store(p2 + x, tmp3.to(tl.float16), mask)
""",
    "kernel",
    settings={
        "pointers": ("*fp32", "*fp32", "*fp16"),
        "sizes": 0,
        "unaligned": (),
        "num_warps": 1,
        "limits": (),
        "asserts": False,
    },
)


def test_ptxas_gets_no_packed_addition(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = compile_only(SOURCE)["ptx"]
    monkeypatch.setattr(triton_compile, "_PACKED_ADD", re.compile("(never)()()"))
    packed = compile_only(SOURCE)["ptx"]
    assert "add.s16x2" in packed, "Triton packs no additions any more: this mend can go"
    assert "16x2" not in ptx and ptx.count("add.s16 %low") == packed.count("add.s16x2")


def rolled(x: torch.Tensor) -> Any:
    return x[:3] + x[3:6].roll(-1, 0), x[6:].half()


def stacked(x: torch.Tensor) -> Any:
    return torch.vstack([x, x.roll(1, 0), x.roll((1, -1), (0, 1))])


def windows(x: torch.Tensor) -> Any:
    """The shifted windows of a vision model."""
    return x.roll((-1, -1), (0, 1)).unflatten(0, (3, -1)).unflatten(2, (3, -1)).transpose(1, 2).flatten(0, 1) * 2


@pytest.mark.gpu
@pytest.mark.parametrize("f", [rolled, stacked, windows])
@pytest.mark.parametrize("columns", [3, 6, 9, 12, 30])
def test_values_and_gradients_at_small_positions(f: Any, columns: int) -> None:
    x = torch.arange(9 * columns, dtype=torch.float32, device="cuda").reshape(9, columns)
    torch._dynamo.reset()
    compiled, results = torch.compile(f, backend="litz", fullgraph=True), []
    for function in (f, compiled):
        taken = x.clone().requires_grad_()
        outputs = function(taken)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        weights = [torch.arange(o.numel(), device="cuda").reshape(o.shape).remainder(5).to(o.dtype) for o in outputs]
        results.append([*outputs, *torch.autograd.grad(outputs, [taken], weights)])
    for eager, litz in zip(*results, strict=True):
        assert torch.equal(eager, litz)
