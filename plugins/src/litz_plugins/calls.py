"""How often each hook is called, and how results combine: a table that the hooks' documentation is held to, and tests
count. In: a hook's name. Out: its `Calls`.

A compile is what torch.compile's backend does with one piece of a program that dynamo captured. A compile has one
graph, or two where gradients are asked for: the forward, and the backward when it first runs. A graph that the graph
cache has is not compiled again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from litz_plugins import hookspecs

Per = Literal["compile", "graph", "look-up", "pass", "contraction", "step", "package", "command line"]
"""The thing that a hook is called once for. "graph": each graph that is compiled. "look-up": each look into the graph
cache, before the trace where that may be saved, and for each graph. "pass": each run of one over one noun.
"contraction": each of a kind that a template is registered for. "step": each of a finished schedule.
"package": each that litz-aot writes."""

Combined = Literal["concatenated", "merged", "sorted", "first", "by plugin", "nested", "told"]
"""The way in which the results of several plugins become one. "merged": by key, where a plugin's replaces core's.
"first": the first that is not None. "nested": each plugin is handed what the one before it returned. "told": results
are ignored."""


@dataclass(frozen=True)
class Calls:
    """The number of times litz calls a hook. least, most: for one ``per``; most is None where nothing limits it."""

    per: Per
    combined: Combined
    least: int = 1
    most: int | None = 1

    def __str__(self) -> str:
        """Returns "once a compile", "at most once a compile", "at least once a step"."""
        if self.most is None and not self.least:
            return f"any number of times a {self.per}"
        if self.most is None:
            return f"at least {_times(self.least)} a {self.per}"
        return f"{'' if self.least == self.most else 'at most '}{_times(self.most)} a {self.per}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


CALLS: Mapping[str, Calls] = {
    "litz_register_options": Calls("compile", "concatenated"),
    "litz_register_decompositions": Calls("compile", "merged", least=0),
    "litz_register_lowerings": Calls("compile", "merged", least=0),
    "litz_register_passes": Calls("compile", "sorted", least=0),
    "litz_register_templates": Calls("compile", "concatenated", least=0),
    "litz_register_layout_needs": Calls("compile", "merged", least=0),
    "litz_register_targets": Calls("compile", "merged", least=0),
    "litz_narrow": Calls("compile", "nested", least=0, most=None),
    "litz_register_commands": Calls("command line", "merged", least=0),
    "litz_estimate_runtime": Calls("step", "first", most=None),
    "litz_select_choice": Calls("contraction", "first"),
    "litz_select_layout": Calls("graph", "first"),
    "litz_tune": Calls("graph", "first"),
    "litz_partition": Calls("compile", "first", least=0),
    "litz_cache_fingerprint": Calls("look-up", "by plugin"),
    "litz_find_graph": Calls("graph", "first", least=0, most=None),
    "litz_keep_graph": Calls("graph", "told", least=0, most=None),
    "litz_wrap_entry": Calls("graph", "nested", most=None),
    "litz_select_exporter": Calls("package", "first", most=None),
    "litz_select_saver": Calls("compile", "first", least=0),
    "litz_watch_graph": Calls("graph", "told", most=None),
    "litz_compile_started": Calls("graph", "told"),
    "litz_pass_finished": Calls("pass", "told"),
    "litz_compile_failed": Calls("graph", "first", least=0),
    "litz_compile_finished": Calls("graph", "told"),
}
"""By hook. A "first" hook is not asked where another plugin's answer came before."""


def since(hook: str) -> str:
    """Returns the minor version of litz-plugins that first had a hook, by its docstring. Raises KeyError if unsaid."""
    found = re.search(r"Since (\d+\.\d+)\.", getattr(hookspecs, hook).__doc__ or "")
    if found is None:
        raise KeyError(hook)
    return found[1]


__all__ = ["CALLS", "Calls", "Combined", "Per", "since"]
