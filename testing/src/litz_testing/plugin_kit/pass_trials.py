"""Passes, layouts and observers on the small programs. In: the examples. Out: trials of each pass that ran.

Where a program is wrong, it is compiled again with one pass left out at a time (option `veto`): that names the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz_plugins import Pass

from .examples import FEW, Example
from .records import Trial
from .watching import Watching
from .ways import NotInterpreted, Under, problems

WAYS = ("interpreted", "interpreted, dynamic")
BUILT_WAYS = ("built", "built, dynamic", "kept")
REST = "its other hooks"
"""What a trial is of where no pass of the plugin's ran, or none alone is at fault."""


def pass_trials(
    passes: Sequence[Pass], examples: Sequence[Example], under: Under, watching: Watching, builds: bool
) -> tuple[list[Trial], dict[str, str]]:
    """Returns trials of the passes on the examples and of other hooks, and what is untried with the reason."""
    trials: list[Trial] = []
    changed: dict[str, bool] = {}
    names = [pass_.name for pass_ in passes]
    for example in examples:
        for way in (*WAYS, *(BUILT_WAYS if builds and example.name in FEW else ())):
            watching.clear()
            try:
                problem = problem_with(under, way, example)
            except NotInterpreted:
                continue
            ran = [name for name in names if name in watching.ran]
            for name in ran:
                changed[name] = changed.get(name, False) or watching.ran[name]
            if problem:
                culprit = _culprit(names, under, way, example)
                trials.append(Trial(f"pass {culprit}" if culprit else REST, example.name, way, problem))
            else:
                trials += [Trial(what, example.name, way) for what in [*(f"pass {name}" for name in ran), REST]]
    idle = {f"pass {name}": "it ran, and changed none of the examples; give others" for name in names}
    return trials, {what: why for what, why in idle.items() if not changed.get(what.removeprefix("pass "), False)}


def problem_with(under: Under, way: str, example: Example) -> str:
    """Returns what is wrong with an example, '' if nothing is. Raises NotInterpreted."""
    sizes = [example.inputs(), example.inputs(more=3, seed=1)] if "dynamic" in way else [example.inputs()]
    return problems(under, way, example.function, sizes, train=example.train)


def _culprit(names: Sequence[str], under: Under, way: str, example: Example) -> str:
    for name in names:
        without = replace(under, options={**under.options, "veto": (name,)})
        if not problem_with(without, way, example):
            return name
    return ""


__all__ = ["REST", "pass_trials", "problem_with"]
