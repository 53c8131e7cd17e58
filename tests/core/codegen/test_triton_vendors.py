"""Triton's text for another vendor: device functions without PTX, warps of 64 threads. Compiled, with no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from litz.ir import KernelCall
from litz.pipeline import make_compiler
from litz.target import target_named, warp_lines
from litz.targets.triton.compile import Job, compile_kernel, make_target
from litz.targets.triton.imports import HELPERS
from litz.targets.triton.tile_shape import warps_of
from litz_contractions.module import DEVICE_FUNCTIONS
from litz_plugins import Target
from support.retarget import CUDA, cuda_schedules

TEXT = """import triton
import triton.language as tl
from {module} import {name}
@triton.jit
def kernel(p0, p1):
    at = tl.arange(0, 256)
    found = {name}(tl.load(p0 + at){more})
    tl.store(p1 + at, {value})
"""
FLOATS = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
STORED = {"signed": "*i8", "unsigned": "*u8", "nibbles": "*u8"}
CASES = [
    *((f"_half_integer {name}", pointer, half) for name, pointer in STORED.items() for half in ("bf16", "fp16")),
    *((f"_word_integer {name}", "*u16", half) for name in STORED for half in ("bf16", "fp16")),
    *((f"_half_float8 {name}", "*u8", "bf16") for name in FLOATS),
    *((f"_word_float8 {name}", "*u16", "bf16") for name in FLOATS),
    *((f"_from_float8 {name}", "*u8", "fp32") for name in FLOATS),
]


def compiled(name: str, pointer: str, made: str, vendor: str) -> tuple[str, int]:
    from triton.backends.compiler import GPUTarget

    name, _, kind = name.partition(" ")
    dtype = {"bf16": "tl.bfloat16, ", "fp16": "tl.float16, "}.get(made, "")
    more = f', {dtype}"{kind}"'
    value = "found[0] + found[1]" if name.startswith("_word") or kind == "nibbles" else "found"
    settings = {
        "pointers": [pointer, f"*{made}"],
        "sizes": 0,
        "unaligned": [],
        "num_warps": 4,
        "limits": [],
        "asserts": False,
    }
    text = TEXT.format(module=DEVICE_FUNCTIONS.get(name, HELPERS), name=name, more=more, value=value)
    target = GPUTarget("hip", "gfx942", 64) if vendor == "hip" else make_target((9, 0))
    found = compile_kernel(Job(text, "kernel", {**settings, "num_warps": 4}, (9, 0), 1 << 16), target)
    return found.asm["ttir"], found.metadata.num_warps


@pytest.mark.parametrize(("name", "pointer", "made"), CASES, ids=[f"{name} {made}" for name, _, made in CASES])
def test_a_vendor_without_ptx_gets_none(name: str, pointer: str, made: str) -> None:
    text, warps = compiled(name, pointer, made, "hip")
    assert "inline_asm" not in text and warps == 2


@pytest.mark.parametrize(("name", "pointer", "made"), [CASES[0], CASES[-1]])
def test_cuda_has_ptx_and_warps_of_32(name: str, pointer: str, made: str) -> None:
    text, warps = compiled(name, pointer, made, "cuda")
    assert "inline_asm" in text and warps == 4


def test_warps_are_threads() -> None:
    assert [warps_of(count, 64) for count in (1, 2, 8)] == [1, 1, 4] and warps_of(8, 32) == 8
    # 64 threads that are 128 bytes apart touch twice the lines of 32.
    assert warp_lines([(4096, 128.0)], Target("a", warp=64)) == 2 * warp_lines([(4096, 128.0)], Target("b", warp=32))
    assert target_named("H100 SXM").warp == 32


@pytest.mark.parametrize("name", ["hip", "module:", ":function"])
def test_an_allocator_is_a_word_or_a_function(name: str) -> None:
    with pytest.raises(ValueError, match="'pool', 'cuda' or 'package"):
        Target("fake", allocator=name)
    assert replace(Target("fake"), allocator="package.module:function").allocator


def runs(fn: Callable[..., torch.Tensor], *sizes: tuple[int, ...], without: str = "") -> list[type]:
    """What a GPU without an ability does of a function of tensors in bfloat16."""
    torch._dynamo.reset()
    compiler, target = make_compiler(), target_named("H100 SXM")
    compiler.targets[CUDA] = replace(target, abilities=target.abilities - {without})
    given = [torch.randn(size, dtype=torch.bfloat16) for size in sizes]
    (schedule,) = cuda_schedules(lambda backend: torch.compile(fn, backend=backend)(*given), compiler)
    return [type(operation) for operation in schedule.program.operations]


def test_products_go_by_the_ability_and_not_by_the_name_of_the_device() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w.to(torch.float8_e5m2).to(torch.bfloat16)

    assert KernelCall in runs(fn, (4, 4096), (4096, 4096))
    assert KernelCall not in runs(fn, (4, 4096), (4096, 4096), without="products")
