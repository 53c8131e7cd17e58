"""What all stages of one torch.compile call share: its options, plugins, cache, and who wants its reports."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from litz import report as reports
from litz.cache.disk import Cache
from litz.cache.stores import Stores
from litz.driver.builtin import builtin_plugins
from litz.driver.plugin_options import plugin_options
from litz.options import Options, make_plugin_settings
from litz.origins.operations import Frame
from litz.origins.plugin_call import Owner
from litz.origins.trust import make_trust
from litz.report.log import Log
from litz.report.tracing import trace
from litz.target import make_target
from litz_plugins import Ask, Preferences, Target, TargetSpec, Vetoes, Watcher, unknown_target
from litz_plugins.blame import LeftOut
from litz_plugins.manager import Plugins, make_plugins
from litz_plugins.vetoes import read_preferences, read_vetoes

if TYPE_CHECKING:
    from litz.ir import Program


@dataclass(frozen=True)
class Compiler:
    """The state that all stages of one torch.compile call share."""

    options: Options
    plugins: Plugins
    cache: Cache
    collectors: reports.Collectors
    """The lists that collect reports where torch.compile was called; autograd may compile a backward in a thread of its
    own."""
    targets: dict[torch.device, Target] = field(default_factory=dict)
    """The targets made so far, one per device."""
    vetoes: Vetoes = field(default_factory=Vetoes)
    """The decisions that no graph of this compile may take."""
    preferences: Preferences = field(default_factory=Preferences)
    """The ways of decisions that are given, whatever they are estimated to take."""
    frame: Frame = field(default_factory=Frame)
    """The code that dynamo traced, for the report."""
    start_seconds: list[float] = field(default_factory=list)
    """The time that it took to make this, until the first graph's report has taken it."""
    watchers: list[Watcher] = field(default_factory=list)
    """The watchers of plugins, which are told of the capture."""
    failures: int = 0
    """`plugins.failures` when this was made: with more, what it makes is not whole."""

    @property
    def is_watched(self) -> bool:
        """Returns whether anybody reads the reports."""
        return bool(self.collectors) or self.options.report_dir is not None

    def owner(self, plugin: str) -> Owner:
        """Returns a plugin as files name it: its name, its dist and the dist's version."""
        source = self.plugins.source_of(plugin)
        return Owner(plugin, source.dist, source.version)

    def accept_program(self, plugin: str, before: Program, after: Program) -> Program:
        """Returns what a plugin's pass made of a program, its calls and kernels marked as that plugin's. ValueError
        where it does otherwise for who calls it."""
        from litz.ir.promised import check_promises  # here: a process that finds its graphs has no programs
        from litz.schedule.owned import owned_program

        check_promises(before, after)
        return owned_program(before, after, self.owner(plugin))

    def check_whole(self) -> None:
        """Raises LeftOut if a plugin was left out since this compiler was made, as its work must not go on."""
        if self.plugins.failures != self.failures:
            raise LeftOut(self.plugins.errors()[-1])

    @contextmanager
    def stage(self, name: str, log: Log) -> Iterator[None]:
        """Runs a stage in a `with`: the log has the stage's name and time. Raises LeftOut at the end if a plugin was
        left out meanwhile: what the stage made is not whole."""
        with log.stage(name):
            yield
        self.check_whole()

    @contextmanager
    def watched(self, name: str) -> Iterator[list[Watcher]]:
        """Yields what plugins are told of a graph, or for '' of a capture. The list is empty when the `with` has ended:
        a search in the background, which has the list too, tells nobody."""
        watchers = self.plugins.watch_graph(name, self.options, self.is_watched)
        with ExitStack() as ends:  # each is told, also where another's function fails
            for watcher in watchers:
                if watcher.ended is not None:
                    ends.callback(watcher.ended)
            ends.callback(watchers.clear)
            yield watchers

    def fresh(self) -> Compiler:
        """Returns a compiler without the plugins that were left out since this one was made; this one if none was."""
        self.plugins.leave_out_failed()
        if self.plugins.failures == self.failures:
            return self
        return replace(self, targets={}, failures=self.plugins.failures)

    def target_of(self, device: torch.device) -> Target:
        """Returns the target of a device, as it was when this compile first met the device. Errors:
        CalibrationError."""
        if device not in self.targets:
            spec = self.specs.get(device.type)
            known = None if spec is None else make_target(spec.describe, device, self.options)
            self.targets[device] = known or unknown_target(device)
        return self.targets[device]

    @cached_property
    def specs(self) -> Mapping[str, TargetSpec]:
        """Returns the target, core's or a plugin's, of each type of device."""
        return self.plugins.targets(self.options)

    @cached_property
    def ask(self) -> Ask | None:
        """Returns what plugins say of the time of an operation (`PassContext.ask`)."""
        from litz.schedule.asked import Asked

        found = self.plugins.asker(self.options)
        return None if found is None else Asked(found)


def stores_of(plugins: Plugins, options: Options) -> Stores | None:
    """Returns what plugins keep of graphs; None where none does."""
    keep = partial(plugins.keep_graph, options) if plugins.has("litz_keep_graph") else None
    return Stores(partial(plugins.find_graph, options), keep) if keep or plugins.has("litz_find_graph") else None


def make_compiler(
    mode: str | None = None, options: Mapping[str, Any] | None = None, plugins: Plugins | None = None
) -> Compiler:
    """Returns a compiler for torch.compile's `mode=` and `options=`. plugins: for tests, in place of the installed."""
    start = time.perf_counter()
    settings = make_plugin_settings(options)
    if plugins is None:
        known: dict[str, Any] = {"on_plugin_error": settings.on_error, "seconds": settings.seconds}
        plugins = make_plugins(builtin_plugins(), disable=settings.disable, **known)
    plugins.leave_out_failed()
    trace(plugins)
    opts = plugin_options(plugins, mode, options)
    shared = tuple(Path(os.path.expanduser(path)) for path in opts.cache_shared)
    cache = Cache(
        opts.cache_dir,
        opts.cache,
        stores_of(plugins, opts),
        limit=opts.cache_limit << 20,
        shared=shared,
        trust=make_trust(opts.trust),
    )
    seconds = [time.perf_counter() - start]
    return Compiler(
        opts,
        plugins,
        cache,
        reports.collectors(),
        vetoes=read_vetoes(opts.veto),
        preferences=read_preferences(opts.prefer),
        start_seconds=seconds,
        failures=plugins.failures,
    )
