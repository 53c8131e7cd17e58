"""The templates' kernels compiled for sm_90, which needs no GPU: every configuration, and every dtype."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from litz.cache.disk import Cache
from litz.errors import KernelBuildError
from litz.ir import KernelCall, Program, Template
from litz.target import target_named, target_of
from litz.target.devices import nearest_family
from litz.targets.triton.build import Binary, build
from litz.targets.triton.compile import Variant, compile_kernel, make_target
from litz_contractions.products.blocks import can_use_descriptors
from litz_contractions.products.configs import Config, all_configs, rank, shared_bytes
from litz_contractions.products.gemm import make_gemm
from litz_contractions.products.kernel import write_gemm
from litz_contractions.products.offer import shape_of
from support.gemm_matrix import CASES, case_params
from support.gemm_problem import SMALL, Case
from support.kernel_programs import randn
from support.triton_compiled import variants_of

SM_90 = make_target((9, 0))


def product(dtype: torch.dtype) -> tuple[Program, Template]:
    case = Case(
        torch.mm, lambda: (randn(512, 512, dtype=dtype), randn(512, 512, dtype=dtype)), Config(32, 32, 32, 2, 4)
    )
    program, _ = case.programs()
    (template,) = (op for op in program.operations if isinstance(op, Template))
    return program, template


EACH = pytest.mark.parametrize("each", [pytest.param(1, marks=pytest.mark.nightly), 5])
"""Every configuration, or one of five: those next to each other differ in one number."""


@EACH
def test_every_configuration_compiles_and_takes_the_shared_memory_that_it_was_ranked_by(each: int) -> None:
    program, template = product(torch.bfloat16)
    gemm = make_gemm(template, program)

    def build(config: Config) -> tuple[Config, int]:
        compiled = compile_kernel(write_gemm(gemm, config, program, "kernel"), SM_90)
        return config, compiled.metadata.shared

    with ThreadPoolExecutor(2) as pool:
        for config, shared in pool.map(build, all_configs(2, target_named("H100"))[::each]):
            # Triton keeps one stage fewer where the tensor cores read registers.
            assert shared <= shared_bytes(config, 2) <= target_named("H100").shared_bytes, config
            assert shared >= shared_bytes(config, 2) * (config.stages - 1) // config.stages, config


@pytest.mark.ci_cases("False-dtype1", "True-dtype0")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("tf32", [False, True])
def test_dtypes_compile(dtype: torch.dtype, tf32: bool) -> None:
    program, template = product(dtype)
    gemm = replace(make_gemm(template, program), tf32=tf32 and dtype == torch.float32)
    compiled = compile_kernel(write_gemm(gemm, Config(64, 64, 32, 3, 4), program, "kernel"), SM_90)
    uses_tensor_cores = "wgmma" in compiled.asm["ptx"]
    assert uses_tensor_cores == (dtype == torch.float16 or gemm.tf32)


OTHERS = ["mm-mm-bf16", "int-mm-scaled", "scaled-mm-rows", "conv1x1-last", "conv3x3-last-relu", "conv3x3-dynamic"]
OTHERS += [
    "of-cast",
    "linear-of-int8",
    "of-dynamic",
    "conv-grouped-last",
    "conv-transposed-odd-taps",
    "mm-softmax",
    "tma-softmax",
]


@pytest.mark.ci_cases(
    "linear-dynamic-gelu",
    "mm-dynamic-split",
    "mm-three-users",
    "mm-mm-bf16",
    "int-mm-scaled",
    "scaled-mm-rows",
    "conv3x3-last-relu",
    "linear-of-int8",
    "conv-transposed-odd-taps",
    "tma-softmax",
)
@pytest.mark.parametrize(
    "name", case_params(["linear-dynamic-gelu", "bmm-strided", "mm-three-users", "mm-dynamic-split", *OTHERS])
)
def test_fused_and_dynamic_kernels_compile(name: str) -> None:
    _, program = CASES[name].programs()
    (call,) = (op for op in program.operations if isinstance(op, KernelCall))
    assert all(compile_kernel(call.source, SM_90, variant).asm["cubin"] for variant in variants_of(call.source))


def test_loads_are_16_bytes_wide_and_asynchronous() -> None:
    program, template = product(torch.bfloat16)
    source = write_gemm(make_gemm(template, program), Config(128, 128, 64, 4, 8), program, "kernel")
    ptx = compile_kernel(source, SM_90).asm["ptx"]
    widths = re.findall(r"cp\.async\.\w+\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", ptx)
    assert widths and {int(width, 0) for width in widths} == {16}
    assert "wgmma.mma_async" in ptx


@EACH
def test_every_persistent_configuration_compiles_and_fits(each: int) -> None:
    program, template = product(torch.bfloat16)
    gemm = make_gemm(template, program)
    assert can_use_descriptors(gemm, program)
    shape = shape_of(gemm, program)
    persistent = [config for config, _ in rank(shape, target_of("cuda")).best if config.programs]
    assert len(persistent) > 10

    def build(config: Config) -> None:
        compiled = compile_kernel(write_gemm(gemm, config, program, "kernel"), SM_90)
        ptx = compiled.asm["ptx"]
        assert "cp.async.bulk.tensor" in ptx and ("wgmma" in ptx) == (config.warps >= 4), config
        assert compiled.metadata.shared <= shared_bytes(config, 2) <= target_named("H100").shared_bytes, config
        assert compiled.metadata.global_scratch_size > 0

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(build, persistent[::each]))


def test_descriptors_are_for_constant_sizes_in_rows_of_16_bytes() -> None:
    def can(name: str) -> bool:
        case = CASES[name]
        program, _ = replace(case, fuse=False, config=SMALL).programs()
        (template,) = (op for op in program.operations if isinstance(op, Template))
        return can_use_descriptors(make_gemm(template, program), program)

    assert all(map(can, ("tma", "tma-transposed", "tma-strided", "tma-batch", "tma-batch-expanded")))
    assert not any(map(can, ("mm-odd", "mm-dynamic", "bmm", "bmm-dynamic", "mm-expanded", "mm-sliced")))


def test_sizes_beyond_32_bits() -> None:
    """The seed's operand, (50257, 32768) with strides (1, 50304), and one that 32 bits cannot address."""
    for rows in (50257, 90001):
        stride = (1, rows + 47)

        def make(rows: int = rows, stride: tuple[int, int] = stride) -> tuple[torch.Tensor, ...]:
            with torch.device("meta"):
                return (
                    torch.empty_strided((rows, 32768), stride, dtype=torch.bfloat16),
                    torch.empty(32768, 768, dtype=torch.bfloat16),
                )

        case = Case(torch.mm, make, Config(128, 128, 64, 3, 8), fuse=False)
        _, program = case.programs()
        (call,) = (op for op in program.operations if isinstance(op, KernelCall))
        assert ("tl.int64" in call.source.text) == (rows * 32768 > 2**31)
        assert compile_kernel(call.source, SM_90).asm["cubin"]


def built(config: Config, cache: Cache) -> Binary:
    program, template = product(torch.bfloat16)
    source = write_gemm(make_gemm(template, program), config, program, "kernel")
    return build(source, (9, 0), cache, Variant())


def test_stages_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    """Five stages of 48 KiB: a block of an H100 has 227."""
    fewer = built(Config(128, 256, 64, 5, 8), Cache(tmp_path))
    assert fewer.shared == built(Config(128, 256, 64, 4, 8), Cache(tmp_path)).shared <= 227 << 10


def test_a_kernel_too_large_in_one_stage_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(nearest_family(90), shared_kib=8)
    monkeypatch.setattr("litz.targets.triton.build.nearest_family", lambda capability: small)
    with pytest.raises(KernelBuildError, match=r"bytes of shared memory with one stage; a block has 8192"):
        built(Config(128, 256, 64, 2, 8), Cache(tmp_path))
