"""What all stages of one torch.compile call share: its options, plugins, cache, and who wants its reports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from litz import report as reports
from litz.builtin import builtin_plugins
from litz.capture import torch_api
from litz.errors import InvalidOptionError
from litz.options import Options, make_options, make_plugin_settings
from litz.runtime.cache import Cache
from litz.runtime.peers import Peers
from litz.schedule.asked import Asked
from litz.target import make_target
from litz_plugins import Ask, Target, TargetSpec, Vetoes, unknown_target
from litz_plugins.errors import nearest
from litz_plugins.manager import Plugins, make_plugins
from litz_plugins.vetoes import read_vetoes

MAKERS = ("lower", "layout", "choose", "fuse", "plan_memory", "cuda_graphs")
"""Who decides, beside the passes: what the option `veto` can leave out by name."""


@dataclass(frozen=True)
class Compiler:
    """What all stages of one torch.compile call share."""

    options: Options
    plugins: Plugins
    cache: Cache
    collectors: reports.Collectors
    """Who asked for reports where torch.compile was called: a backward may be compiled in a thread of autograd's."""
    targets: dict[torch.device, Target] = field(default_factory=dict)
    """The targets made so far: each device's is made once."""
    vetoes: Vetoes = field(default_factory=Vetoes)
    """The decisions that no graph of this compile may take."""
    start_seconds: list[float] = field(default_factory=list)
    """How long it took to make this, until the first graph's report has taken it."""

    def target_of(self, device: torch.device) -> Target:
        """The target of a device, as it was when this compile first met it. Errors: CalibrationError."""
        if device not in self.targets:
            spec = self.specs.get(device.type)
            known = None if spec is None else make_target(spec.describe, device, self.options)
            self.targets[device] = known or unknown_target(device)
        return self.targets[device]

    @cached_property
    def specs(self) -> Mapping[str, TargetSpec]:
        """Type of device -> its target, core's or a plugin's."""
        return self.plugins.targets(self.options)

    @cached_property
    def ask(self) -> Ask | None:
        """What plugins say of the time of an operation (`PassContext.ask`)."""
        found = self.plugins.asker(self.options)
        return None if found is None else Asked(found)


def make_compiler(
    mode: str | None = None, options: Mapping[str, Any] | None = None, plugins: Plugins | None = None
) -> Compiler:
    """A compiler for torch.compile's `mode=` and `options=`. `plugins` instead of the installed ones, for tests."""
    start = time.perf_counter()
    settings = make_plugin_settings(options)
    if plugins is None:
        plugins = make_plugins(builtin_plugins(), disable=settings.disable, on_plugin_error=settings.on_error)
    opts = make_options(mode, options, plugins.option_specs())
    peers = Peers(torch_api.default_store) if opts.share_builds else None
    shared = tuple(Path(path).expanduser() for path in opts.cache_shared)
    cache = Cache(opts.cache_dir, opts.cache, peers, limit=opts.cache_limit << 20, shared=shared)
    vetoes = _read_vetoes(opts, plugins)
    seconds = [time.perf_counter() - start]
    return Compiler(opts, plugins, cache, reports.collectors(), vetoes=vetoes, start_seconds=seconds)


def _read_vetoes(options: Options, plugins: Plugins) -> Vetoes:
    """The option `veto`, its files read. Errors: InvalidOptionError."""
    if not options.veto:
        return Vetoes()
    try:
        vetoes = read_vetoes(options.veto)
    except OSError as error:
        raise InvalidOptionError("veto", options.veto, f"files that can be read: {error}") from error
    known = {*MAKERS, *(item.name for item in plugins.passes(options))}
    for maker in sorted(vetoes.makers - known):
        near = nearest(maker, known)
        meant = f" (did you mean {near!r}?)" if near else ""
        accepted = f"keys of {', '.join(sorted(known))}; nobody who decides is called {maker!r}{meant}"
        raise InvalidOptionError("veto", options.veto, accepted)
    return vetoes
