"""The errors of litz-tools, each with one message: what happened, where, what to do."""

from __future__ import annotations

from litz_plugins import LitzError


class BisectError(LitzError):
    """`litz bisect` cannot begin or go on: the script fails, calls too little, or is too noisy to measure."""


class KernelFileError(LitzError):
    """A kernel cannot be timed alone: its file is not there or is none. path: which."""

    def __init__(self, problem: str, *, path: str = "") -> None:
        self.problem = problem
        self.path = path
        todo = (
            "compile with options={'benchmark_kernels': True}, and name the graph's folder or one of the .json files "
            "in it (`litz explain -v` shows where)"
        )
        super().__init__(problem, where=path or "litz bench-kernels", todo=todo)


class WrapperFileError(LitzError):
    """A wrapper cannot be run alone: what it needs is not there. path: which."""

    def __init__(self, problem: str, *, path: str = "") -> None:
        self.problem = problem
        self.path = path
        todo = "run the wrapper.py of a report (LITZ_REPORT_DIR=folder), in its folder and with this version of litz"
        super().__init__(problem, where=path, todo=todo)


class MeasuringError(LitzError):
    """A device cannot be measured: this machine has none, nobody knows how, or the machine does something else."""

    def __init__(self, problem: str, todo: str = "measure another device: `litz calibrate cpu`") -> None:
        super().__init__(problem, where="litz calibrate", todo=todo)


class ReportFileError(LitzError):
    """A report, or what is to be put into one, cannot be read. path: which."""

    def __init__(self, problem: str, *, path: str = "") -> None:
        self.problem = problem
        self.path = path
        todo = "name the folder of a graph in LITZ_REPORT_DIR, and traces of prof.export_chrome_trace (docs/report.md)"
        super().__init__(problem, where=path, todo=todo)
