"""Compiled graphs that are kept: found in the graph cache, put there, and what is said of a graph once it runs.

In: a captured program, a Graph, or what a compile made of one. Out: a CompiledGraph from the cache, or code whose files
lie in the cache; reports go to those who collect them. `litz.pipeline` asks here before it compiles, and hands over
what it has compiled; keys and entries are `litz.graph_cache`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from litz import graph_cache, logs
from litz import report as reports
from litz.capture.graph import Graph
from litz.capture.kept import GraphStore
from litz.capture.provenance import by_position
from litz.driver.code_loading import graph_of, join_code, likely_values, load_entry, write_code
from litz.driver.compiler import Compiler
from litz.driver.eager_fallback import needs_way_out
from litz.driver.unused_options import recorder_notes
from litz.origins.named import Named
from litz.origins.operations import ByPosition
from litz.origins.places import Words
from litz.origins.sources import SourcesError
from litz.origins.trust import make_trust
from litz.report.log import Log
from litz.runtime.compiled_graph import CompiledGraph
from litz.runtime.graph_code import GraphCode
from litz.runtime.graph_entry import GraphEntry, NotCacheable, check_same, check_storable
from litz_plugins import Decision, KernelSource
from litz_plugins.errors import LitzError

if TYPE_CHECKING:
    from litz.ir import Program


def graph_store(gm: torch.fx.GraphModule, compiler: Compiler) -> GraphStore | None:
    """Returns the store of graphs that need not be traced again; None where graphs have to be traced."""
    try:
        setting, program = graph_cache.setting_of(gm, compiler), graph_cache.program_of(gm)
    except Exception as why:
        if not isinstance(why, (NotCacheable, SourcesError)) and (compiler.options.debug or isinstance(why, LitzError)):
            raise
        logs.LOGGER.getChild("graph_cache").info("no graph is looked for without a trace, because %s", why)
        return None

    def load(key: str, name: str) -> CompiledGraph | None:
        log = Log()
        with log.stage("graph cache"):
            code = graph_cache.take(key, compiler, lambda entry, folder: load_entry(entry, folder, compiler))
        if code is None or needs_way_out(code.entry.objects, compiler):  # that takes a graph, which is not here
            return None
        stored = _Stored(code.entry, lambda named: named.known_to(program))  # it may be another layer's
        compiled = graph_of(code, name, stored.words, compiler, key=key)
        make = partial(stored.report, name, compiler.plugins.names())
        publish(make, compiled, graph_cache.OFF, compiler, log, said=f"hit {key[:12]} without a trace")
        return compiled

    return GraphStore(setting, load, program, make_trust(compiler.options.trust))


def from_cache(
    found: graph_cache.Lookup, graph: Graph, compiler: Compiler, log: Log | None = None
) -> CompiledGraph | None:
    """Returns the compiled graph that a lookup has found, and publishes its report; None if its guards do not hold."""
    log = log or Log()
    with log.stage("graph cache"):
        code = graph_cache.load(found, graph, compiler.cache, lambda entry, folder: load_entry(entry, folder, compiler))
    if code is None or found.key is None:
        return None
    known, strides = by_position(graph), graph_cache.strides_of(graph, code.entry.output_strides)
    stored = _Stored(code.entry, lambda named: known)
    compiled = graph_of(code, graph.name, stored.words, compiler, strides, found.key.digest)
    publish(partial(stored.report, graph.name, compiler.plugins.names()), compiled, found, compiler, log)
    return compiled


@dataclass(frozen=True)
class _Stored:
    """The words and the report of a stored graph, made where somebody reads them. known: facts of the graph at hand."""

    entry: GraphEntry
    known: Callable[[Named], ByPosition]

    def words(self) -> Words:
        named = Named.from_data(self.entry.named)
        return named.words(self.known(named))

    def report(self, name: str, plugins: Sequence[str]) -> reports.CompileReport:
        named = Named.from_data(self.entry.named)
        return reports.from_data(name, self.entry.report, named.origins(self.known(named)), plugins=plugins)


@dataclass(frozen=True)
class Kept:
    """The facts of a compile that go into the graph cache beside its code. known: how many guards there were before.
    others: texts for a reader. programs: of each kernel."""

    graph: Graph
    known: int
    strides: Any
    report: reports.CompileReport
    others: Mapping[str, str]
    programs: Mapping[str, Program]


def keep(
    entry: GraphEntry, kept: Kept, loaded: Any, compiler: Compiler, found: graph_cache.Lookup, log: Log
) -> tuple[GraphCode, graph_cache.Lookup]:
    """Stores the code for other processes if it has a key. Returns the loaded code, and the lookup with a reason."""
    reason = log.unsettled[0] if log.unsettled else ""
    if found.key is not None and not reason:
        try:
            whole = replace(
                likely_values(entry, kept.programs),
                output_strides=graph_cache.strides_texts(kept.graph, kept.strides),
                guards=graph_cache.guards_texts(kept.graph, kept.known),
                report=reports.to_data(kept.report),
            )
            check_storable(whole)
            if compiler.options.debug and (before := found.code.entry if found.code else found.entry):
                check_same(before, whole, kept.graph.name)
            code = join_code(whole, write_code(whole, kept.others, compiler, found.key), loaded, compiler)
            graph_cache.share(compiler.cache, found.key.digest, code)
            return code, found
        except (NotCacheable, TypeError, ValueError) as why:
            if compiler.options.debug and not isinstance(why, NotCacheable):
                raise
            reason = str(why)
    if found.key is not None:
        found = graph_cache.Lookup(reason=reason)
    return join_code(entry, write_code(entry, kept.others, compiler), loaded, compiler), found


def publish(
    make: Callable[[], reports.CompileReport],
    compiled: CompiledGraph,
    found: graph_cache.Lookup,
    compiler: Compiler,
    log: Log,
    sources: Mapping[str, KernelSource] | None = None,
    said: str = "",
) -> None:
    """Hands out the report that `make` makes, with where everything lies. sources: None for a graph from the graph
    cache, whose report is made where somebody reads it. said: of that cache, in place of what the lookup says."""
    said, hit = said or found.says(hit=sources is None), sources is None
    texts = sources or {name: kernel.source for name, kernel in compiled.code.entry.kernels.items()}
    left_out = [Decision("start", f"plugin {e.plugin}", "left out", e.what) for e in compiler.plugins.errors()]
    unrecorded = recorder_notes(compiled.name, compiler.options, compiled.code.entry.facts, compiler.plugins)
    calls, seconds, noted = compiler.plugins.ledger.take(), dict(log.seconds), tuple(log.noted)

    def whole() -> reports.CompileReport:
        report = make()
        return replace(
            report,
            decisions=(*left_out, *unrecorded, *report.decisions),
            calls=calls,
            stage_seconds=seconds,
            wrapper_path=compiled.path,
            wrapper_source=compiled.text,
            kernel_paths={name: Path(path) for name, path in compiled.kernels.items()},
            kernel_sources={name: source.text for name, source in texts.items()},
            cache_hits=compiled.cache_hits,
            graph_cache=said,
            key=found.key,
            frame=compiler.frame,
            noted=noted,
            code=None if report.plan is None else compiled.code.entry,
        )

    if hit and not compiler.is_watched:
        report = reports.unread(whole, name=compiled.name, folder=None)
    else:
        report = reports.publish(whole(), compiler.options.report_dir, compiler.collectors)
    if hit:
        logs.show("output_code", compiled.name, lambda: compiled.text)
        logs.show("kernel_code", compiled.name, lambda: kernel_texts(texts))
    logs.say(lambda: reports.words.summary_line(report))
    compiler.plugins.compile_finished(report, compiler.options)


def kernel_texts(sources: Mapping[str, KernelSource]) -> str:
    """Returns the texts of kernels one after the other, equal texts once."""
    return "\n".join({source.text: None for source in sources.values()})
