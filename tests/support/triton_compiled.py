"""Triton's compilations of a kernel, with no GPU. Triton's cache is the run's: each text is compiled once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litz.targets.triton.compile import Variant, compile_kernel, make_target
from litz_plugins import KernelSource


def compile_only(source: KernelSource, target: Any = None, variant: Variant | None = None) -> Mapping[str, Any]:
    """The stages of a compilation by name ("ttir", "ttgir", "llir", "ptx", "cubin"), with no GPU.

    target: a GPUTarget, sm_90 by default.
    """
    return dict(compile_kernel(source, target or make_target((9, 0)), variant or Variant()).asm)


def variants_of(source: KernelSource) -> tuple[Variant, ...]:
    """The variants that a kernel has: they differ in sizes that a call brings, so one of static sizes has one."""
    static = (Variant(),)
    return (*static, Variant(multiples=True), Variant(wide=True)) if source.settings["sizes"] else static
