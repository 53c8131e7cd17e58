"""A plugin of litz: a line in Python's log, at level INFO, for each graph that is compiled.

logging.basicConfig(level=logging.INFO)
"""

from __future__ import annotations

import logging
from collections import Counter

from litz_plugins import hookimpl

LOG = logging.getLogger("litz_my_observer")


class Observer:
    """The hooks. An object, since what passes take is added up until the graph is finished."""

    def __init__(self) -> None:
        self.pass_seconds: Counter[str] = Counter()

    @hookimpl
    def litz_compile_started(self, graph):
        """Forgets the last graph's passes. Litz does not call this for a graph that comes from the graph cache."""
        self.pass_seconds.clear()
        LOG.debug("%s: %d nodes", graph.name, len(graph.nodes))

    @hookimpl
    def litz_pass_finished(self, pass_, seconds):
        self.pass_seconds[pass_.name] += seconds

    @hookimpl
    def litz_compile_finished(self, report, options):
        LOG.info("%s", describe(report, self.pass_seconds))
        for decision in report.decisions if options["debug"] else ():
            LOG.debug("%s", decision)
        self.pass_seconds.clear()


def describe(report, pass_seconds):
    """Returns one line on a `litz.report.CompileReport` and the seconds of each pass."""
    calls = sum(report.externs.values())
    text = f"{report.name}: {report.kernels_after} kernels and {calls} calls in {report.compile_seconds:.2f} s"
    if pass_seconds:
        name, seconds = pass_seconds.most_common(1)[0]
        text += f", of which {sum(pass_seconds.values()):.2f} s in passes ({name} {seconds:.2f} s)"
    return f"{text}; graph cache: {report.graph_cache or 'off'}"


observer = Observer()
