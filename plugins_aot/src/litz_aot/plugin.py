"""The hook of litz-aot: how kernels of core's own targets get into packages."""

from __future__ import annotations

from litz_plugins import Exporter, KernelSource, TargetSpec, hookimpl

EXPORTERS = {"cpp": Exporter("litz_aot.cpp_kernels"), "triton": Exporter("litz_aot.triton_kernels")}
"""By core's plugin that has the target: who replaces a target knows how its kernels are packed."""
USER_KERNELS = Exporter("litz.targets.triton.user_kernels")


@hookimpl(trylast=True)
def litz_select_exporter(target: TargetSpec, source: KernelSource | None) -> Exporter | None:
    """Returns the exporter of core's targets for CPUs and CUDA."""
    if source is not None and source.language != target.codegen.language:
        return None
    if target.plugin == "triton" and source is not None and "user_kernel" in source.settings:
        return USER_KERNELS
    return EXPORTERS.get(target.plugin)
