"""Reports as files. In: a report and a folder. Out: a folder of its own in there, with everything to read or share."""

from __future__ import annotations

import json
import re
from pathlib import Path

from litz_plugins.words import install

from .report import CompileReport
from .words import brief_text

WRAPPER = "wrapper.py"
IN_SHORT = f"In short. The plugin 'tools' writes more, with HTML pages and a trace: {install('tools')}"
"""The last line of a report's text without litz-tools, which writes the text where it is installed."""


def write_report_dir(report: CompileReport, directory: Path | str) -> Path:
    """Writes a short report.txt, report.json, the schedule, the generated source and what plugins attach. Returns the
    folder: `directory`/NAME, or NAME-2, NAME-3, ... where that exists.

    OSError if the folder cannot be written.
    """
    folder = _new_folder(Path(directory), re.sub(r"[^\w.-]+", "_", report.name) or "graph")
    _write(folder / "report.txt", brief_text(report) + ("" if "tools" in report.plugins else f"\n{IN_SHORT}\n"))
    _write(folder / "report.json", json.dumps(report.to_json(), indent=2, default=str) + "\n")
    for name, text in report.attachments.items():
        _write(folder / re.sub(r"[^\w.-]+", "_", name), text)
    if report.plan is not None:
        _write(folder / "schedule.txt", f"{report.plan}\n")
    if report.wrapper_source:
        _write(folder / WRAPPER, report.wrapper_source)
    for name, source in report.kernel_sources.items():
        path = report.kernel_paths.get(name)
        _write(folder / kernel_place(name, path.suffix if path else ".txt"), source)
    return folder


def kernel_place(name: str, suffix: str) -> str:
    """Returns the path of a kernel's source in a report's folder."""
    return f"kernels/{name}{suffix}"


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
