"""Products with scales: which scales a kernel does, what fuses before and after, and right results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

pytest.importorskip("triton")

from litz.ir import Buffer, KernelCall, Layout, Program, Template, TensorRef
from litz.ir.index import to_expr
from litz.pipeline import schedule_only
from litz.schedule import Kernel
from litz.schedule.choices import replacement_of, substituted
from litz_contractions.products.offer import offer_gemm
from litz_contractions.products.scales import BLOCK, scalings
from support.kernel_programs import context
from support.retarget import cuda_schedules
from support.versions import OLD_TORCH

E4M3, POWERS = torch.float8_e4m3fn, torch.float8_e8m0fnu
Tensor = torch.Tensor
M, N, K = 256, 384, 512


def program_with(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Program, TensorRef]:
    layout = Layout.contiguous(tuple(map(to_expr, size)))
    buffer = Buffer("s", dtype, torch.device("cuda", 0), layout, "input")
    return Program("p", ("s",), {"s": buffer}, (), ()), TensorRef("s", layout)


SHARED: dict[str, tuple[str, tuple[int, ...], tuple[int | None, int | None]]] = {
    "all": ("scale_a", (), (None, None)),
    "all of one element": ("scale_b", (1, 1), (None, None)),
    "rows": ("scale_a", (M, 1), (1, None)),
    "columns": ("scale_b", (1, N), (1, None)),
    "1 x 128": ("scale_a", (M, K // 128), (1, 128)),
    "1 x 128 of the right": ("scale_b", (K // 128, N), (1, 128)),
    "128 x 128": ("scale_b", (K // 128, N // 128), (128, 128)),
    "128 x 128 of the left": ("scale_a", (M // 128, K // 128), (128, 128)),
}


@pytest.mark.parametrize("name", SHARED)
def test_who_shares_a_scale(name: str) -> None:
    which, size, shared = SHARED[name]
    program, ref = program_with(size)
    (found,) = scalings({which: ref}, program, (to_expr(M), to_expr(N)), to_expr(K))
    assert (found.rows, found.depth) == shared
    assert found.in_blocks == (shared[1] is not None)


@pytest.mark.parametrize("size", [(M, 2), (M,), (2, N), (M, K // 32)], ids=str)
def test_other_scales_are_left_to_the_library(size: tuple[int, ...]) -> None:
    program, ref = program_with(size)
    with pytest.raises(ValueError, match="scales of size"):
        scalings({"scale_a": ref}, program, (to_expr(M), to_expr(N)), to_expr(K))


def test_mx_scales_are_left_to_the_library() -> None:
    program, ref = program_with((M * K // 32,), POWERS)
    with pytest.raises(ValueError, match="float8_e8m0fnu"):
        scalings({"scale_a": ref}, program, (to_expr(M), to_expr(N)), to_expr(K))


def fake_program(fn: Callable[..., Any], *sizes: tuple[tuple[int, ...], torch.dtype]) -> Program:
    """The CUDA program of fn, with library calls for products."""
    with FakeTensorMode(), torch.no_grad():
        given = [torch.empty(size, dtype=dtype, device="cuda") for size, dtype in sizes]
        (schedule,) = schedule_only(fn, given, {"disable_plugins": ("autotune", "contractions")})
    return schedule.program


def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)


BLOCKS = (((M, K), E4M3), ((N, K), E4M3), ((K // BLOCK, M), torch.float32), ((K // BLOCK, N // BLOCK), torch.float32))


def test_kernels_are_offered_for_blocks_of_scales() -> None:
    """With max-autotune, with what follows; each step along the depth stays within a block."""
    program = fake_program(lambda a, b, sa, sb: F.silu(product(a, b, sa.t(), sb)), *BLOCKS)
    (template,) = (op for op in program.operations if isinstance(op, Template))
    offer = offer_gemm(template, context(program, template), 8)
    assert offer.choices
    for choice in offer.choices:
        made = substituted(program, template, replacement_of(choice))
        (call,) = (op for op in made.operations if isinstance(op, KernelCall))
        assert len(made.operations) == 1 and "* scaletmp" in call.source.text, choice.name


def test_why_there_is_no_kernel_for_mx_formats() -> None:
    count = 128 * (K // 32)
    powers = ((M // 128 * count,), POWERS), ((N // 128 * count,), POWERS)
    program = fake_program(product, *BLOCKS[:2], *powers)
    (template,) = (op for op in program.operations if isinstance(op, Template))
    offer = offer_gemm(template, context(program, template), 8)
    assert not offer.choices and "a scale of torch.float8_e8m0fnu" in str(offer.rejected)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """As torchao quantises an activation by rows."""
    scale = (x.abs().amax(-1, keepdim=True) / 448.0).to(torch.float32).clamp(min=1e-12)
    return (x.to(torch.float32) / scale).clamp(-448.0, 448.0).to(E4M3), scale


def dynamic_mlp(x: Tensor, ws: Any) -> Tensor:
    q, s = quantised(x)
    (w1, s1), (w2, s2), (w3, s3) = ws
    y = F.silu(torch._scaled_mm(q, w1.t(), s, s1.t(), out_dtype=torch.bfloat16))
    y = y * torch._scaled_mm(q, w2.t(), s, s2.t(), out_dtype=torch.bfloat16)
    q, s = quantised(y)
    return torch._scaled_mm(q, w3.t(), s, s3.t(), out_dtype=torch.bfloat16)


def weights() -> tuple[Any, list[Tensor]]:
    exact = [torch.randn(n, k) / k**0.5 for n, k in ((512, 256), (512, 256), (256, 512))]
    return [quantised(w) for w in exact], exact


@pytest.mark.skipif(OLD_TORCH, reason="torch 2.11's CPU has one scale a tensor only")
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_activation_is_quantised_once_and_by_one_kernel(dynamic: bool) -> None:
    ws, _ = weights()
    x = torch.randn(48, 256).bfloat16()

    def run(backend: Any) -> None:
        with torch.no_grad():
            torch.compile(dynamic_mlp, backend=backend, dynamic=dynamic)(x, ws)

    torch._dynamo.reset()
    (schedule,) = cuda_schedules(run)
    kinds = [type(step).__name__ for step in schedule.steps]
    assert kinds == ["Kernel", "Template", "Template", "Kernel", "Template"], kinds
    assert sum(isinstance(step, Kernel) for step in schedule.steps) == 2


@pytest.mark.skipif(OLD_TORCH, reason="torch 2.11's CPU has one scale a tensor only")
@pytest.mark.parametrize("rows", [1, 37])
def test_a_float8_model_on_the_cpu(rows: int) -> None:
    """Over many draws: of one, what float8 rounds otherwise makes a tenth of the error, either way."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled, ratios = torch.compile(dynamic_mlp, backend="litz"), []
    for _ in range(20):
        ws, exact = weights()
        x = torch.randn(rows, 256).bfloat16()
        with torch.no_grad():
            got, eager = compiled(x, ws), dynamic_mlp(x, ws)
            w1, w2, w3 = (w.double() for w in exact)
            wanted = (F.silu(x.double() @ w1.t()) * (x.double() @ w2.t())) @ w3.t()
        errors = [((y.double() - wanted).norm() / wanted.norm()).item() for y in (got, eager)]
        assert errors[0] <= 1.3 * errors[1], errors
        ratios.append(errors[0] / errors[1])
    assert sum(ratios) / len(ratios) <= 1.02, ratios


def test_scale_bias_and_activation_are_one_kernel_with_the_product() -> None:
    program = fake_program(
        lambda a, b, sa, sb, c: F.gelu(product(a, b, sa, sb) + c),
        *BLOCKS[:2],
        *[((), torch.float32)] * 2,
        ((N,), torch.bfloat16),
    )
    (template,) = (op for op in program.operations if isinstance(op, Template))
    choice = offer_gemm(template, context(program, template), 4).choices[0]
    assert len(substituted(program, template, replacement_of(choice)).operations) == 1
