"""litz's own dists as plugins that a test passes in, as (name, plugin); the passes of core and litz-passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import litz_contractions.plugin
import litz_operators.plugin
import litz_passes.plugin
from litz.driver.builtin import builtin_plugins
from litz.ir import Program
from litz.target import target_of
from litz_plugins import Pass, PassContext, TargetOf
from litz_plugins.manager import Plugins, make_plugins
from litz_plugins.records import Stage

CONTRACTIONS = ("contractions", litz_contractions.plugin)
OPERATORS = ("operators", litz_operators.plugin)
PASSES = ("passes", litz_passes.plugin)


def with_passes(*extra: tuple[str, object], **how: Any) -> Plugins:
    """Core's plugins and litz-passes, whatever is installed. extra: others."""
    return make_plugins(builtin_plugins(), extra=[PASSES, *extra], entry_points=(), **how)


@cache
def operators() -> Plugins:
    """Core's plugins and litz-operators, whatever is installed."""
    return make_plugins(builtin_plugins(), extra=[OPERATORS], entry_points=())


@cache
def passes(stage: Stage) -> Sequence[Pass]:
    """The passes of a stage, core's and those of litz-passes, in their order."""
    return with_passes().passes({}, stage)


def prepare(program: Program, options: Any = None, target_of: TargetOf = target_of) -> Program:
    """The program after the program passes."""
    for item in passes("program"):
        program = item.run(program, PassContext(options, "program", item.name, target_of=target_of))
    return program
