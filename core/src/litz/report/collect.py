"""Who gets the reports. In: finished reports, from the pipeline. Out: lists of whoever asked, and folders.

    with collect() as reports:
        torch.compile(model, backend="litz")(x)
    print(reports[0].kernels_after)

Kept in a context variable: two threads, or two tasks, that collect at a time each get their own. A thread that was
started by someone else (autograd's, which may compile a backward) has an empty context; whoever starts a compile there
passes `collectors()` of where it was asked for on to `publish`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from .report import CompileReport

Collectors = tuple[list[CompileReport], ...]

_collectors: ContextVar[Collectors] = ContextVar("litz_report_collectors", default=())


@contextmanager
def collect() -> Iterator[list[CompileReport]]:
    """Yields a list to which each report is appended that is published inside the `with`, in order of completion."""
    reports: list[CompileReport] = []
    token = _collectors.set((*_collectors.get(), reports))
    try:
        yield reports
    finally:
        _collectors.reset(token)


def collectors() -> Collectors:
    """Returns the lists that the present context collects into."""
    return _collectors.get()


def publish(report: CompileReport, report_dir: Path | str | None = None, to: Collectors | None = None) -> CompileReport:
    """Writes a report below `report_dir` if that is given, and hands the report to every collector. Returns the report,
    with the folder that it was written to.

    to: collect into these instead of the present context's. A report that cannot be written is a warning: it must not
    stop the compile that it reports.
    """
    if report_dir is not None:
        from .write import write_report_dir

        try:
            report = replace(report, folder=write_report_dir(report, report_dir))
        except OSError as error:
            warnings.warn(f"litz could not write the report of {report.name} to {report_dir}: {error}", stacklevel=2)
    for reports in _collectors.get() if to is None else to:
        reports.append(report)
    return report
