"""The hooks of litz-tools: commands, and what is written when a graph is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from litz_plugins import OptionsView, Watcher, hookimpl


@hookimpl
def litz_register_commands() -> Mapping[str, Any]:
    """Returns the commands for developers of models, plugins and litz."""
    from .bench_cli import bench_kernels
    from .bisect_cli import bisect
    from .calibrate_cli import calibrate
    from .doctor import doctor
    from .explain_cli import explain
    from .explain_miss_cli import explain_miss
    from .memory_cli import memory
    from .plugins_cli import check_plugins, watch_plugins
    from .report_cli import report

    found = (
        bench_kernels,
        bisect,
        calibrate,
        check_plugins,
        doctor,
        explain,
        explain_miss,
        memory,
        report,
        watch_plugins,
    )
    return {str(command.name): command for command in found}


@hookimpl
def litz_watch_graph(name: str, options: OptionsView, read: bool, slow: Callable[[], str]) -> Watcher | None:
    """Returns what shows the progress of a long compile on the terminal, and notes what passes change where somebody
    reads the report."""
    from .progress import watch

    shown = watch(name, options.get("progress"), slow)
    if not read:
        return shown
    from .pass_notes import PassNotes

    return replace(shown or Watcher(), passed=PassNotes(lines=options.get("report_dir") is not None))


@hookimpl
def litz_compile_failed(graph: Any, failure: Any, options: Any) -> str | None:
    """Writes the graph as a script that compiles it again, and returns the command that runs the script."""
    from .failure_script import write_script

    return write_script(graph, failure, options)


@hookimpl
def litz_compile_finished(report: Any, options: Any) -> None:
    """Logs what may be slow, and writes files beside the report and the kernels, where the user asked for them."""
    from .hints import log_hints

    log_hints(report)
    if report.folder is not None or options.benchmark_kernels:
        from .files import write_files

        write_files(report, options)
