"""What the tools write when a graph is compiled. In: the report, which knows its folder, and the options. Out: files.

Beside each kernel's source, with the option `benchmark_kernels`: what a launch needs (`kernel_bench`). In the report's
folder: the report as text (`text`), the HTML page (`page`), the Chrome trace (`trace`), and what the wrapper needs to
run by itself (`wrapper_bench`). Beside that folder: the index over all reports there.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from litz.options import Options
from litz.report import CompileReport
from litz.report.write import WRAPPER, kernel_place

from . import assembly, kernel_bench, kernel_files, wrapper_bench
from .guards import guards_of
from .held import NOTES, forward_of, memory_of_one
from .page import More, render_html, render_index, summary_of
from .page.index import SUMMARY, read_summaries
from .text import report_text
from .trace import make_trace

MEMORY = "memory_steps.json"
"""The file of a report's folder with what `litz memory --json` has of the graph."""


def write_files(report: CompileReport, options: Options) -> None:
    """Writes what there is to write for one graph. A file that cannot be written is a warning: it must not stop the
    compile."""
    try:
        if options.benchmark_kernels:
            _write_kernels(report, options)
        if report.folder is not None:
            _write_runnable(report, report.folder, options)
            write_pages(report, report.folder, _more(report, options))
    except OSError as error:
        warnings.warn(f"litz-tools could not write its files of {report.name}: {error}", stacklevel=2)


def _write_kernels(report: CompileReport, options: Options) -> None:
    """The data of each kernel, where its source lies and in the report's folder. Of a graph from the graph cache they
    were written when it was compiled."""
    plan, code = report.plan, report.code
    if plan is not None and code is not None:
        for kernel, variant in [(kernel, each) for each in plan.functions for kernel in each.launched]:
            source, path = code.kernels[kernel.name].source, report.kernel_paths[kernel.name]
            data = kernel_bench.kernel_data(kernel, source, path.name, variant, options)
            write_whole(path.with_suffix(kernel_files.SUFFIX), data)
    if report.folder is not None:
        for name, path in report.kernel_paths.items():
            file = path.with_suffix(kernel_files.SUFFIX)
            if file.is_file():
                copy = report.folder / kernel_place(name, kernel_files.SUFFIX)
                write_whole(copy, file.read_text(encoding="utf-8"))


def _write_runnable(report: CompileReport, folder: Path, options: Options) -> None:
    """The wrapper as a script, and what the script needs. A graph from the graph cache has no plan to tell it from."""
    if report.plan is None or report.code is None:
        return
    sources = {name: kernel.source for name, kernel in report.code.kernels.items()}
    places = {name: kernel_place(name, report.kernel_paths[name].suffix) for name in sources}
    data = wrapper_bench.wrapper_data(report.plan, sources, places, report.code.objects, options)
    write_whole(folder / wrapper_bench.FILE, data)
    write_whole(folder / WRAPPER, wrapper_bench.runs_alone(report.wrapper_source))


def _more(report: CompileReport, options: Options) -> More:
    """Returns what the page shows that the report does not say, after the machine code of kernels is written beside
    their texts. Texts and figures for GPUs are looked up for GPUs alone."""
    if all(step.device.partition(":")[0] != "cuda" for step in report.steps):
        return More(guards_of(report), memory=_memory(report))
    from .resources import Resources, binaries_of, resources_of
    from .tiles import tiles_of

    takes: dict[str, Resources] = {}
    machine: dict[str, str] = {}
    disassembled = cache(assembly.assembly_of)  # kernels of equal layers have one cubin
    for name, binary, target in binaries_of(report, options):
        if (found := resources_of(binary, target)) is not None:
            takes[name] = found
        if report.folder is not None and (text := disassembled(binary.cubin)) is not None:
            machine[name] = kernel_place(name, assembly.SUFFIX)
            write_whole(report.folder / machine[name], text)
    return More(guards_of(report), takes, tiles_of(report), machine, _memory(report))


def _memory(report: CompileReport) -> list[Mapping[str, Any]]:
    """The planned memory of the graph; before it that of a backward's forward, the last that was written beside."""
    if report.folder is None:
        return []
    forward = re.escape(re.sub(r"[^\w.-]+", "_", forward_of(report.name)))
    folders = [each for each in report.folder.parent.iterdir() if re.fullmatch(rf"{forward}(-\d+)?", each.name)]
    folders = [each for each in folders if report.kind == "backward" and (each / MEMORY).is_file()]
    if not folders:
        return [memory_of_one(report, report.attachments)]
    first = max(folders, key=lambda each: (each / MEMORY).stat().st_mtime_ns)
    notes = {name: (first / name).read_text(encoding="utf-8") for name in NOTES if (first / name).is_file()}
    return [json.loads((first / MEMORY).read_text(encoding="utf-8")), memory_of_one(report, notes)]


def write_pages(report: CompileReport, folder: Path, more: More | None = None) -> None:
    """Writes report.txt, report.html, memory_steps.json, trace.json (chrome://tracing, ui.perfetto.dev) and what the
    index says of the graph into the report's folder, and the index beside the folder. Errors: OSError."""
    write_whole(folder / "report.txt", report_text(report, verbose=True))
    write_whole(folder / "report.html", render_html(report, more))
    if more is not None and more.memory:
        write_whole(folder / MEMORY, json.dumps(more.memory[-1]) + "\n")
    write_whole(folder / "trace.json", json.dumps(make_trace(report)) + "\n")
    write_whole(folder / SUMMARY, json.dumps(summary_of(report, os.getpid(), time.time())) + "\n")
    write_index(folder.parent)


def write_index(directory: Path) -> None:
    """Writes index.html over all reports in a folder. Errors: OSError."""
    write_whole(directory / "index.html", render_index(read_summaries(directory)))


def write_whole(path: Path, text: str) -> None:
    """Puts a file there at once: others may be reading or writing it. Errors: OSError."""
    new = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
