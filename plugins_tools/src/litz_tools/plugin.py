"""The hooks of litz-tools: commands, and what is written when a graph is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litz_plugins import hookimpl


@hookimpl
def litz_register_commands() -> Mapping[str, Any]:
    """Returns `litz bisect` and `litz bench-kernels`."""
    from .bench_cli import bench_kernels
    from .bisect_cli import bisect

    return {"bench-kernels": bench_kernels, "bisect": bisect}


@hookimpl
def litz_compile_finished(report: Any, options: Any) -> None:
    """Writes files beside the report and beside the kernels, where the user asked for them."""
    if report.folder is not None or options.benchmark_kernels:
        from .files import write_files

        write_files(report, options)
