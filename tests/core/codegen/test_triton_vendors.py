"""Triton's text for another vendor: device functions without PTX, warps of 64 threads. Compiled, with no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from litz.target import target_named, warp_lines
from litz.targets.triton.compile import Job, compile_kernel, make_target
from litz.targets.triton.warps import warps_of
from litz_plugins import Target

TEXT = """import triton
import triton.language as tl
from litz.targets.triton.helpers import {name}
@triton.jit
def kernel(p0, p1):
    at = tl.arange(0, 256)
    found = {name}(tl.load(p0 + at){dtype})
    tl.store(p1 + at, {value})
"""
FLOATS = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
CASES = [
    *(
        (f"{name}_{half}", "*i8" if name == "_signed" else "*u8")
        for name in ("_signed", "_unsigned")
        for half in ("bf16", "f16")
    ),
    *((f"_nibbles_{half}", "*u8") for half in ("bf16", "f16")),
    *((f"_word_{name}_{half}", "*u16") for name in ("signed", "unsigned", "nibbles") for half in ("bf16", "f16")),
    *((f"_half_{name}", "*u8") for name in FLOATS),
    *((f"_word_{name}", "*u16") for name in FLOATS),
    *((f"_from_{name}", "*u8") for name in FLOATS),
]


def compiled(name: str, pointer: str, vendor: str) -> tuple[str, int]:
    from triton.backends.compiler import GPUTarget

    half = "*fp32" if "_from_" in name else "*fp16" if name.endswith("_f16") else "*bf16"
    dtype = ", tl.bfloat16" if name.startswith(("_half_f8", "_word_f8")) else ""
    value = "found[0] + found[1]" if name.startswith(("_word", "_nibbles")) else "found"
    settings = {
        "pointers": [pointer, half],
        "sizes": 0,
        "unaligned": [],
        "num_warps": 4,
        "limits": [],
        "asserts": False,
    }
    text = TEXT.format(name=name, dtype=dtype, value=value)
    target = GPUTarget("hip", "gfx942", 64) if vendor == "hip" else make_target((9, 0))
    found = compile_kernel(Job(text, "kernel", {**settings, "num_warps": 4}, (9, 0), 1 << 16), target)
    return found.asm["ttir"], found.metadata.num_warps


@pytest.mark.parametrize(("name", "pointer"), CASES, ids=[name for name, _ in CASES])
def test_a_vendor_without_ptx_gets_none(name: str, pointer: str) -> None:
    text, warps = compiled(name, pointer, "hip")
    assert "inline_asm" not in text and warps == 2


@pytest.mark.parametrize(("name", "pointer"), [CASES[0], CASES[-1]])
def test_cuda_has_ptx_and_warps_of_32(name: str, pointer: str) -> None:
    text, warps = compiled(name, pointer, "cuda")
    assert "inline_asm" in text and warps == 4


def test_warps_are_threads() -> None:
    assert [warps_of(count, 64) for count in (1, 2, 8)] == [1, 1, 4] and warps_of(8, 32) == 8
    # 64 threads that are 128 bytes apart touch twice the lines of 32.
    assert warp_lines([(4096, 128.0)], 64) == 2 * warp_lines([(4096, 128.0)], 32)
    assert target_named("H100 SXM").warp == 32


@pytest.mark.parametrize("name", ["hip", "module:", ":function"])
def test_an_allocator_is_a_word_or_a_function(name: str) -> None:
    with pytest.raises(ValueError, match="'pool', 'cuda' or 'package"):
        Target("fake", allocator=name)
    assert replace(Target("fake"), allocator="package.module:function").allocator
