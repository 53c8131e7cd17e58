"""The plugin: litz's hooks, and what each hands on to.

`litz --help` and `litz options` load this module, which therefore loads torch only in hooks that a compile calls.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litz_plugins import ChoiceContext, Estimate, OptionSpec, OptionsView, Secret, TemplateSpec, Uncacheable, hookimpl
from litz_plugins.records import Choice

from .switches import BACKENDS, SEARCH, check_address, is_active, is_decided, looks_up, measures

if TYPE_CHECKING:
    from .pool import Runner
    from .results import Counters
    from .timing import Timer
    from .tune import Tuner


class Autotune:
    """Implements litz's hooks. Does nothing unless an option asks for tuning (`switches`).

    timer: instead of the device's own, for tests.
    """

    def __init__(self, timer: Timer | None = None) -> None:
        self.timer = timer
        self._raced = 0
        self._runners: dict[tuple[int | None, ...] | str, Runner] = {}
        self._beside = threading.local()

    def __dir__(self) -> list[str]:
        """The hooks alone: pluggy reads every name that dir() gives, and reading the others would load torch."""
        return [name for name in vars(type(self)) if name.startswith("litz_")]

    @cached_property
    def counters(self) -> Counters:
        """Returns the counters of what happened so far."""
        from .results import Counters

        return Counters()

    @cached_property
    def _first(self) -> Tuner:
        return self.make_tuner()

    def make_tuner(self, background: bool = False) -> Tuner:
        """Returns a tuner with a budget of its own."""
        from .offers import rejections
        from .tune import Tuner

        return Tuner(self._runner, self.counters, self.timer, rejections, background)

    @property
    def tuner(self) -> Tuner:
        """Returns the tuner of the compile that runs; a thread in the background has its own."""
        return getattr(self._beside, "tuner", self._first)

    @contextmanager
    def beside(self, tuner: Tuner) -> Iterator[None]:
        """Makes `tuner` take this thread's decisions inside the `with`."""
        self._beside.tuner = tuner
        try:
            yield
        finally:
            del self._beside.tuner

    @hookimpl
    def litz_register_options(self) -> Sequence[OptionSpec]:
        """Returns the options whose names begin with `autotune.`."""
        return [
            OptionSpec("search", str, "default", "how many configurations are measured", choices=tuple(SEARCH)),
            OptionSpec("backends", tuple, BACKENDS, "what may run a contraction", choices=BACKENDS),
            OptionSpec("fusion", bool, True, "a contraction's kernel may do its users and producers too"),
            OptionSpec("search_cache", bool, False, "use what was measured before where nothing is measured"),
            OptionSpec("budget_s", float, 120.0, "seconds that one graph may spend on measuring"),
            OptionSpec(
                "decisions", bool, True, "fusions, splits, layouts and the like that are close are measured too"
            ),
            OptionSpec("kernels", bool, True, "tiles and warps of generated kernels are measured too"),
            OptionSpec(
                "background", bool, False, "measure once a graph was called; swap in what wins between two calls"
            ),
            OptionSpec("timeout", float, 30.0, "seconds after which a measurement is given up"),
            OptionSpec("in_subprocess", bool, True, "measure in another process, which may crash"),
            OptionSpec("multi_device", bool, False, "screen candidates on all devices of the same name"),
            OptionSpec("local_cache", bool, True, "keep measurements in litz's disk cache"),
            OptionSpec(
                "remote_cache",
                Secret,
                None,
                "URL of a Redis server that machines share; unset: none",
                check=check_address,
                accepts='the URL of a Redis server (redis://, rediss:// or unix://), as "redis://host:6379/0"',
            ),
        ]

    @hookimpl
    def litz_cache_fingerprint(self, options: OptionsView) -> str | Uncacheable | None:
        """Returns the names of all earlier measurements for a compile that looks them up, since its code depends on
        them. None for a compile that measures: a graph in the graph cache keeps what won."""
        if measures(options) or not looks_up(options):
            return None
        if options["autotune.remote_cache"]:
            return Uncacheable("others may have measured more by the next compile (autotune.remote_cache)")
        from .kept import known_entries
        from .results import known_keys

        folder = Path(options["cache_dir"])
        return " ".join([*known_keys(folder), *known_entries(folder)])

    @hookimpl
    def litz_register_commands(self) -> Mapping[str, Any]:
        """Returns the command `litz tune`."""
        from litz_autotune.commands import tune

        return {"tune": tune}

    @hookimpl
    def litz_register_templates(self, options: OptionsView) -> Sequence[TemplateSpec]:
        """Returns the kernel templates for the kinds of contraction that the options have measured."""
        if not is_active(options):
            return []
        from .offers import KINDS, offered

        kinds = tuple(kind for kind in KINDS if is_decided(options, kind))
        return [TemplateSpec("gemm", kinds, offered)] if kinds else []

    @hookimpl
    def litz_compile_started(self, options: OptionsView) -> None:
        """Starts the time budget of one graph and, where CUDA is measured, the processes that measure."""
        if not is_active(options):
            return
        import torch

        self.tuner.start(options["autotune.budget_s"])
        if measures(options) and torch.cuda.is_available():
            # A process that measures takes seconds to start: while this one captures.
            self._runner(options, "cuda", None).start()

    @hookimpl
    def litz_compile_finished(self) -> None:
        """Makes the measuring processes free their memory on the device, if races have run since the last compile."""
        if "counters" in vars(self) and self._raced != self.counters.races:
            from .race import Forget

            self._raced = self.counters.races
            for runner in self._runners.values():
                runner.rest(Forget())

    @hookimpl
    def litz_select_choice(self, choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
        """Returns the fastest of the choices by measurement; None where the options or the kind of contraction rule
        measuring out."""
        if not is_decided(context.options, context.operation.kind):
            return None
        from litz_contractions.api import Attention, AttentionBackward

        if isinstance(context.operation, (Attention, AttentionBackward)):
            return None  # it is measured with made-up tensors, and lists of blocks cannot be made up
        return self.tuner.select(choices, context)

    @hookimpl
    def litz_tune(self, tuning: Any) -> Any:
        """Returns the variant of the graph's schedule that measures fastest, None where nothing is tuned."""
        from .decisions import tell_no_kernels, tune_decisions
        from .kernels import tune_kernels

        variant = tune_decisions(tuning, self)
        tuned = tune_kernels(tuning, variant or tuning.first, self, self.tuner)
        tell_no_kernels(tuning, self.tuner)
        return tuned or variant

    @hookimpl
    def litz_estimate_runtime(self, operation: Any) -> Estimate | None:
        """Returns the measured time of a kernel that this plugin has chosen, None for any other operation."""
        from litz.ir import KernelCall

        if not isinstance(operation, KernelCall):
            return None
        return self.tuner.estimates.get(getattr(operation.source, "text", ""))

    def close(self) -> None:
        """Ends the measuring processes. A later measurement starts new ones."""
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()

    def _runner(self, options: OptionsView, device: str, index: int | None) -> Runner:
        import torch

        from .pool import InProcess, WorkerPool

        if not options["autotune.in_subprocess"]:
            return self._runners.setdefault("here", InProcess())
        devices: tuple[int | None, ...] = (None,)
        if options["autotune.multi_device"] and device == "cuda" and torch.cuda.device_count() > 1:
            devices = same_devices(index)
        if devices not in self._runners:
            self._runners[devices] = WorkerPool(devices)
        return self._runners[devices]


def same_devices(index: int | None) -> tuple[int, ...]:
    """Returns the CUDA devices of the same name as device `index`, itself first. None: the current device."""
    import torch

    own = torch.cuda.current_device() if index is None else index
    name = torch.cuda.get_device_name(own)
    others = [n for n in range(torch.cuda.device_count()) if n != own and torch.cuda.get_device_name(n) == name]
    return (own, *others)


plugin = Autotune()
"""What the entry point names."""
