"""Compiling with the autotuner on the CPU, with made-up rivals for mm and, mostly, made-up times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from litz import pipeline
from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz_autotune import Autotune
from litz_plugins.manager import make_plugins
from support.rivals import Rivals


class Tuned:
    """Compiles with the autotuner and some rivals for mm."""

    def __init__(self, folder: Path, timer: Any, *functions: Callable[..., Any], **options: Any) -> None:
        self.autotune = Autotune(timer)
        extra = [("autotune", self.autotune), ("rivals", Rivals(*functions))]
        self.plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
        given = {"max_autotune": True, "cache_dir": folder, "autotune.in_subprocess": False}
        self.options = {**given, "autotune.decisions": False, **options}  # contractions only

    def __call__(self, fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> Any:
        torch._dynamo.reset()
        with reports.collect() as collected:
            compiled = torch.compile(
                fn,
                backend=lambda gm, inputs: pipeline.compile_backend(
                    gm, inputs, options=self.options, plugins=self.plugins
                ),
                dynamic=dynamic,
            )
            result = compiled(*args)
        own = [d for report in collected for d in report.decisions if d.plugin == "autotune"]
        self.decisions = [d for d in own if d.chosen != "nothing measured"]  # a note about the graph
        self.chosen = [
            d.chosen for d in self.decisions if "chosen by" not in d.reason and d.reason != "the library call"
        ]
        self.reasons = [
            d.reason for d in self.decisions if "chosen by" not in d.reason and d.reason != "the library call"
        ]
        self.report = collected[-1]
        return result
