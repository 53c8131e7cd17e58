"""What puts kernels into packages, on the small programs. In: the examples. Out: a trial of each.

A package is written, loaded by what it says of itself alone, and called, also with other values. The exporter's module
is looked at first: what it lacks is one problem, whatever the examples are.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from litz.options import make_options
from litz_plugins import Exporter
from litz_plugins.errors import in_short
from litz_plugins.records.exporters import FUNCTIONS
from litz_testing.conformance.call import clones, doubled
from litz_testing.conformance.runs import Run, compare_runs, run_once

from .examples import FEW, Example
from .records import Trial
from .ways import Under

WHAT = "litz_select_exporter"
WAY = "packed and loaded"
ALONE = """
import importlib, sys
_, module, *sys.path = sys.argv
importlib.import_module(module)
sys.exit("litz.pipeline" in sys.modules)
"""
"""What a process that loads a package does first."""


def export_trials(examples: Sequence[Example], under: Under, name: str) -> tuple[list[Trial], dict[str, str]]:
    """Returns a trial of each example that is built and needs no gradients, for the device of the examples; and why no
    trial ran. name: of the plugin that exports."""
    settings = make_options(None, under.options, under.plugins.option_specs())
    spec = under.plugins.targets(settings).get("cpu")
    found = None if spec is None else under.plugins.select_exporter(spec, None, settings)
    if found is None or found.plugin != name:
        return [], {WHAT: "it exports nothing for the CPU, where the examples run"}
    try:
        importlib.import_module("litz_aot")
    except ModuleNotFoundError:
        return [], {WHAT: "litz-aot writes packages, and is not installed"}
    problem = _problem_of_module(found)
    if problem:
        return [Trial(WHAT, found.module, "imported", problem)], {}
    tried = [example for example in examples if example.name in FEW and not example.train]
    return [Trial(WHAT, example.name, WAY, _problem(example, under)) for example in tried], {}


def _problem_of_module(exporter: Exporter) -> str:
    try:
        module = importlib.import_module(exporter.module)
    except ImportError as error:
        return f"the module {exporter.module} cannot be imported: {error}"
    for name, parameters in FUNCTIONS.items():
        function = getattr(module, name, None)
        if not callable(function):
            return f"the module {exporter.module} has no function {name}({', '.join(parameters)})"
        try:
            inspect.signature(function).bind(*parameters)
        except TypeError:
            return f"{exporter.module}.{name} must be callable as {name}({', '.join(parameters)})"
    command = [sys.executable, "-c", ALONE, exporter.module, *sys.path]
    alone = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if alone.returncode:
        last = (alone.stderr.strip().splitlines() or ["it imports the compiler, litz.pipeline"])[-1]
        return f"a process that loads a package cannot import {exporter.module}: {last}"
    return ""


def _problem(example: Example, under: Under) -> str:
    import litz_aot

    given = [example.inputs(0, seed) for seed in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            options = {"graph_cache": False, **under.options}
            made = litz_aot.compile(
                example.function, clones(given[0]), Path(folder) / "package", options=options, plugins=under.plugins
            )
            call = litz_aot.load(made)
            runs = [run_once(call, clones(inputs)) for inputs in given]
        except Exception as error:
            return in_short(error)
        judged = (_judged(run, inputs, example) for run, inputs in zip(runs, given, strict=True))
        return next((problem for problem in judged if problem), "")


def _judged(run: Run, inputs: Sequence[torch.Tensor], example: Example) -> str:
    expected = run_once(example.function, clones(inputs))
    return "; ".join(compare_runs(run, expected, lambda: run_once(example.function, doubled(inputs)), True))


__all__ = ["export_trials"]
