"""The plugin: litz's hooks, and what each hands on to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from litz.contractions.products.depthwise import offer_depthwise
from litz.contractions.products.library import offer_library
from litz.contractions.products.offer import KINDS, Offer, offer_gemm
from litz.contractions.products.rows import offer_rows
from litz.ir import Attention, AttentionBackward, KernelCall
from litz.schedule.choices import fits
from litz_plugins import ChoiceContext, Estimate, OptionSpec, OptionsView, TemplateSpec, Uncacheable, hookimpl
from litz_plugins.records import Choice

from .pool import InProcess, Runner, WorkerPool
from .race import Forget
from .results import Counters, known_keys
from .switches import is_active, is_decided, measures, most_in_one_kernel
from .timing import Timer
from .tune import LIBRARY_BACKEND, TEMPLATE_BACKEND, Tuner

SEARCH = {"fast": 4, "default": 12, "exhaustive": 1000}
"""How many configurations are measured, by `autotune.search`."""


class Autotune:
    """Implements litz's hooks. Does nothing unless an option asks for tuning (`switches`).

    timer: instead of the device's own, for tests. counters: what happened so far.
    """

    def __init__(self, timer: Timer | None = None) -> None:
        self.counters = Counters()
        self._raced = 0
        self._runners: dict[tuple[int | None, ...] | str, Runner] = {}
        self.tuner = Tuner(self._runner, self.counters, timer, _rejections)

    @hookimpl
    def litz_register_options(self) -> Sequence[OptionSpec]:
        return [
            OptionSpec("search", str, "default", "how many configurations are measured", choices=tuple(SEARCH)),
            OptionSpec("backends", tuple, (LIBRARY_BACKEND, TEMPLATE_BACKEND), "what may run a contraction"),
            OptionSpec("fusion", bool, True, "a contraction's kernel may do its users and producers too"),
            OptionSpec("search_cache", bool, False, "use what was measured before where nothing is measured"),
            OptionSpec("budget_s", float, 120.0, "seconds that one graph may spend on measuring"),
            OptionSpec("timeout", float, 30.0, "seconds after which a measurement is given up"),
            OptionSpec("in_subprocess", bool, True, "measure in another process, which may crash"),
            OptionSpec("multi_device", bool, False, "screen candidates on all devices of the same name"),
            OptionSpec("local_cache", bool, True, "keep measurements in litz's disk cache"),
            OptionSpec("remote_cache", str, None, "URL of a Redis server that machines share; unset: none"),
        ]

    @hookimpl
    def litz_cache_fingerprint(self, options: OptionsView) -> str | Uncacheable | None:
        """What is looked up hangs on what was measured by then. What is measured is not measured again: a graph in the
        graph cache keeps what won."""
        if measures(options) or not options["autotune.search_cache"]:
            return None
        if options["autotune.remote_cache"]:
            return Uncacheable("others may have measured more by the next compile (autotune.remote_cache)")
        return " ".join(known_keys(Path(options["cache_dir"])))

    @hookimpl
    def litz_register_commands(self) -> Mapping[str, Any]:
        from litz_autotune.commands import tune

        return {"tune": tune}

    @hookimpl
    def litz_register_templates(self, options: OptionsView) -> Sequence[TemplateSpec]:
        kinds = tuple(kind for kind in KINDS if is_decided(options, kind))
        return [TemplateSpec("gemm", kinds, _offered)] if kinds else []

    @hookimpl
    def litz_compile_started(self, options: OptionsView) -> None:
        if not is_active(options):
            return
        self.tuner.start(options["autotune.budget_s"])
        if measures(options) and torch.cuda.is_available():
            # A process that measures takes seconds to start: while this one captures.
            self._runner(options, "cuda", None).start()

    @hookimpl
    def litz_compile_finished(self) -> None:
        if self._raced != self.counters.races:
            self._raced = self.counters.races
            for runner in self._runners.values():
                runner.rest(Forget())

    @hookimpl
    def litz_select_choice(self, choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
        if not is_decided(context.options, context.operation.kind):
            return None
        if isinstance(context.operation, (Attention, AttentionBackward)):
            return None  # it is measured with made-up tensors, and lists of blocks cannot be made up
        return self.tuner.select(choices, context)

    @hookimpl
    def litz_estimate_runtime(self, operation: Any) -> Estimate | None:
        if not isinstance(operation, KernelCall):
            return None
        return self.tuner.estimates.get(getattr(operation.source, "text", ""))

    def close(self) -> None:
        """End the measuring processes; they start again when they are needed."""
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()

    def _runner(self, options: OptionsView, device: str, index: int | None) -> Runner:
        if not options["autotune.in_subprocess"]:
            return self._runners.setdefault("here", InProcess())
        devices: tuple[int | None, ...] = (None,)
        if options["autotune.multi_device"] and device == "cuda" and torch.cuda.device_count() > 1:
            devices = same_devices(index)
        if devices not in self._runners:
            self._runners[devices] = WorkerPool(devices)
        return self._runners[devices]


def same_devices(index: int | None) -> tuple[int, ...]:
    """The CUDA devices of the same name as this one, itself first."""
    own = torch.cuda.current_device() if index is None else index
    name = torch.cuda.get_device_name(own)
    others = [n for n in range(torch.cuda.device_count()) if n != own and torch.cuda.get_device_name(n) == name]
    return (own, *others)


def _offered(operation: Any, context: ChoiceContext) -> Sequence[Choice]:
    if operation.device.type != "cuda" or TEMPLATE_BACKEND not in context.options["autotune.backends"]:
        return ()
    kernels = _kernels(operation, context)
    for name, why in kernels.rejected:
        context.verdict(name, why)
    choices = (*offer_depthwise(operation, context.program), *kernels.choices)
    choices = (*choices, *offer_rows(operation, context, measured=True))
    if LIBRARY_BACKEND in context.options["autotune.backends"]:
        choices = (*offer_library(operation, context.program), *choices)
    most = most_in_one_kernel(context.options)
    return [choice for choice in choices if fits(choice, operation, context.program, most)]


def _kernels(operation: Any, context: ChoiceContext) -> Offer:
    count = SEARCH[str(context.options["autotune.search"])]
    return offer_gemm(operation, context, count, most_in_one_kernel(context.options))


def _rejections(context: ChoiceContext) -> Sequence[tuple[str, str]]:
    if context.operation.kind in KINDS and context.operation.device.type == "cuda":
        return _kernels(context.operation, context).rejected
    return ((f"triton {context.operation.kind}", f"no template for it on a {context.target.type} device"),)


plugin = Autotune()
"""What the entry point names."""
