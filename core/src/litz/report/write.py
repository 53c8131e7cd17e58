"""Reports as files. In: a report and a folder. Out: a folder of its own in there, with everything to read or share."""

from __future__ import annotations

import io
import json
import os
import re
import threading
import time
from pathlib import Path

from .page import render_html, render_index, summary_of
from .page.index import SUMMARY, read_summaries
from .report import UNTIMED, CompileReport
from .trace import make_trace

RUNS_ALONE = """

if __name__ == "__main__":  # makes inputs, runs, and times each step: needs wrapper.json and kernels/ beside it
    from litz.driver.wrapper_bench import main

    raise SystemExit(main(__file__))
"""
"""The end of a report's wrapper.py."""


def _runs_alone(text: str) -> str:
    """A wrapper's text as a script: with what it finds in its globals where litz runs it, and an end that runs it."""
    docstring, quotes, rest = text.partition('"""\n\n')
    return f"{docstring}{quotes}import torch\n\n{rest}{RUNS_ALONE}"


def write_report_dir(report: CompileReport, directory: Path | str) -> Path:
    """Writes report.html, report.txt, report.json, trace.json (chrome://tracing, ui.perfetto.dev), the schedule, the
    generated source and what plugins attach; and index.html in `directory`, over all reports there. Returns the folder:
    `directory`/NAME, or NAME-2, NAME-3, ... where that exists.

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
        text = report.wrapper_source
        _write(folder / "wrapper.py", _runs_alone(text) if report.wrapper_data else text)
    if report.wrapper_data:
        _write(folder / "wrapper.json", report.wrapper_data)
    for name, source in report.kernel_sources.items():
        path = report.kernel_paths.get(name)
        _write(folder / kernel_place(name, path.suffix if path else ".txt"), source)
        if path is not None and path.with_suffix(".json").is_file():  # of the option benchmark_kernels
            _write(folder / "kernels" / f"{name}.json", path.with_suffix(".json").read_text(encoding="utf-8"))
    _write(folder / SUMMARY, json.dumps(summary_of(report, os.getpid(), time.time())) + "\n")
    write_index(folder.parent)
    return folder


def write_index(directory: Path) -> None:
    """Writes index.html over all reports in a folder, and puts the file there whole: others write the file too."""
    new = directory / f".index-{os.getpid()}-{threading.get_ident()}.html"
    _write(new, render_index(read_summaries(directory)))
    new.replace(directory / "index.html")


def kernel_place(name: str, suffix: str) -> str:
    """Returns the path of a kernel's source in a report's folder."""
    return f"kernels/{name}{suffix}"


def report_text(report: CompileReport, verbose: bool = False) -> str:
    """Returns the text report without colours."""
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
