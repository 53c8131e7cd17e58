"""Reports as files. In: a report and a folder. Out: a folder of its own in there, with everything to read or share."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

from .html import render_html
from .report import UNTIMED, CompileReport
from .trace import make_trace


def write_report_dir(report: CompileReport, directory: Path | str) -> Path:
    """Write report.html, report.txt, report.json, trace.json (chrome://tracing, ui.perfetto.dev), the schedule, the
    generated source and what plugins attach. Returns the folder: `directory`/NAME, or NAME-2, NAME-3, ... where that
    exists.

    OSError if the folder cannot be written.
    """
    folder = _new_folder(Path(directory), re.sub(r"[^\w.-]+", "_", report.name) or "graph")
    _write(folder / "report.html", render_html(report))
    _write(folder / "report.txt", report_text(report, verbose=True))
    _write(folder / "report.json", json.dumps(report.to_json(), indent=2, default=str) + "\n")
    _write(folder / "trace.json", json.dumps(make_trace(report)) + "\n")
    for name, text in report.attachments.items():
        _write(folder / re.sub(r"[^\w.-]+", "_", name), text)
    if report.plan is not None:
        _write(folder / "schedule.txt", f"{report.plan}\n")
    if report.wrapper_source:
        _write(folder / "wrapper.py", report.wrapper_source)
    for name, source in report.kernel_sources.items():
        path = report.kernel_paths.get(name)
        _write(folder / "kernels" / f"{name}{path.suffix if path else '.txt'}", source)
        if path is not None and path.with_suffix(".json").is_file():  # of the option benchmark_kernels
            _write(folder / "kernels" / f"{name}.json", path.with_suffix(".json").read_text(encoding="utf-8"))
    return folder


def report_text(report: CompileReport, verbose: bool = False) -> str:
    """The text report without colours."""
    from rich.console import Console  # a tenth of a second that most compiles need not pay

    from .text import render

    stream = io.StringIO()
    render(report, Console(file=stream, width=100, highlight=False, no_color=True), verbose)
    if report.total_bytes and not report.timed:
        stream.write(f"{UNTIMED}\n")
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _new_folder(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()  # fails where another process was quicker
            return folder
        except FileExistsError:
            number += 1


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
