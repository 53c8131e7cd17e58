"""The hooks of litz-aot: how kernels of core's own targets get into packages, and what torch saves of a compile."""

from __future__ import annotations

from litz_plugins import Exporter, KernelSource, Saver, TargetSpec, hookimpl

EXPORTERS = {"cpp": Exporter("litz_aot.cpp_kernels"), "triton": Exporter("litz_aot.triton_kernels")}
"""By core's plugin that has the target: who replaces a target knows how its kernels are packed."""


@hookimpl(trylast=True)
def litz_select_exporter(target: TargetSpec, source: KernelSource | None) -> Exporter | None:
    """Returns the exporter of core's targets for CPUs and CUDA."""
    if source is not None and source.language != target.codegen.language:
        return None
    return EXPORTERS.get(target.plugin)


@hookimpl(trylast=True)
def litz_select_saver() -> Saver:
    """Returns what makes an artifact of what dynamo captured."""
    from .for_torch import compiled

    return compiled
