"""The whole kit: in, a plugin; out, its `Conformance`, or a `ConformanceError`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from litz.driver.builtin import builtin_plugins
from litz.options import core_options, make_options
from litz_plugins import Plugins, make_plugins
from litz_plugins.testing import check_plugin, name_of

from .choice_trials import choice_trials, offered_without
from .estimate_trials import estimate_trials
from .examples import CONTRACTIONS, EXAMPLES, Example, chosen
from .export_trials import export_trials
from .op_samples import VARIANTS, Given, Variant
from .op_trials import op_trials
from .pass_trials import pass_trials
from .records import Conformance, ConformanceError, Trial
from .save_trials import save_trials
from .store_trials import store_trials
from .watching import NAME, Watching
from .ways import Under
from .wrap_trials import wrap_trials


def check_conformance(
    plugin: object,
    *,
    name: str = "",
    options: Mapping[str, Any] | None = None,
    samples: Mapping[Any, Sequence[Given]] | None = None,
    examples: Sequence[Example | str] = (),
    ops: Callable[[Any], bool] = lambda op: True,
    variants: Sequence[Variant] = VARIANTS,
    choices: int = 24,
    builds: bool = True,
    may_be_untried: Collection[str] | Literal["*"] = (),
) -> Conformance:
    """Runs what a plugin registers against eager, judged by float64.

    plugin: the module or object with the hooks; one of core's own too. name: as the entry point would name it. options:
    of the compiles, by name. samples: op overload -> calls of it, (args, kwargs) each, beside those made from its
    schema. examples: programs for passes, templates and the like, by name or of one's own
    (`litz_testing.plugin_kit.examples.Example`), in place of all of the kit's. ops: which of the ops with lowerings and
    decompositions are tried. variants: the tensors that their samples have. choices: how many of those that templates
    offer are taken for each example. builds: build and run kernels as well, and go through the graph cache; False for a
    quick run in which schedules are interpreted. may_be_untried: names of the plugin's passes and templates of which
    none of the examples need try anything, "*" for all of them; any other that is not tried is an error.

    Errors: ConformanceError with all that is wrong; those of `check_plugin`.
    """
    __tracebackhide__ = True  # pytest shows the test and the error
    name = name or name_of(plugin)
    options = dict(options or {})
    own = make_plugins((), extra=[(name, plugin)], entry_points=())
    settings = make_options(None, options, own.option_specs())
    values = {row.name: settings[row.name] for row in core_options()}
    hooks = set(check_plugin(plugin, name=name, options={**values, **options}).hooks)
    watching = Watching()
    builtins = builtin_plugins()
    is_core = name in dict(builtins)
    extra = [(NAME, watching)]
    plugins = make_plugins(builtins, extra=extra if is_core else [*extra, (name, plugin)], entry_points=())
    plugins.watchers.append(watching.called)
    without = None if is_core else Under(make_plugins(builtins, extra=extra, entry_points=()), _cores(options))
    under = Under(plugins, options)
    programs = [chosen([one])[0] if isinstance(one, str) else one for one in examples or EXAMPLES]

    trials: list[Trial] = []
    untried: dict[str, str] = {}

    def add(found: tuple[list[Trial], Mapping[str, str]]) -> None:
        trials.extend(found[0])
        untried.update(found[1])

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), _without_torchs_trace():
        warnings.simplefilter("ignore", UserWarning)
        add(op_trials(_ops(own, ops), samples or {}, under, without, builds, variants))
        if hooks - _ABOUT_OPS:
            add(pass_trials(own.passes(settings), programs, under, watching, builds))
        if hooks & _ABOUT_CHOICES:
            contractions = [one for one in programs if one.name in CONTRACTIONS or one.name not in EXAMPLES]
            known = frozenset[str]() if without is None else offered_without(contractions, without, watching)
            add(choice_trials(contractions, under, watching, known, builds, choices))
            tried = any(trial.what.startswith("choice") for trial in trials)
            idle = [
                spec.name for spec in own.templates(settings) if not (tried and (is_core or watching.offers(spec.name)))
            ]
            untried.update(
                (f"template {name}", "it offers nothing for any of the examples; give others") for name in idle
            )
        if "litz_estimate_runtime" in hooks:
            trials += estimate_trials(programs, under, own)
        if "litz_wrap_entry" in hooks and builds:
            trials += wrap_trials(programs, under)
        if "litz_select_exporter" in hooks and builds:
            add(export_trials(programs, under, name))
        if "litz_select_saver" in hooks and builds:
            trials += save_trials(programs, under)
        if hooks & {"litz_find_graph", "litz_keep_graph"}:
            add(store_trials(own, settings))
    torch.compiler.reset()
    found = Conformance(name, tuple(trials), untried, may_be_untried)
    if found.problems or found.missing:
        raise ConformanceError(found)
    return found


@contextmanager
def _without_torchs_trace() -> Iterator[None]:
    """Keeps the events of torch's structured trace, hundreds a compile without a text, out of pytest's report. pytest
    adds its handlers to that very logger; torch's own handlers stay."""
    log = logging.getLogger("torch.__trace")
    kept = list(log.handlers)
    log.handlers = [each for each in kept if type(each).__module__.startswith("torch.")]
    try:
        yield
    finally:
        log.handlers = kept


_ABOUT_OPS = {"litz_register_options", "litz_register_lowerings", "litz_register_decompositions"}
"""Hooks that are tried op by op."""
_ABOUT_CHOICES = {"litz_register_templates", "litz_select_choice"}


def _cores(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options that core has, for compiles without the plugin."""
    known = {row.name for row in core_options()}
    return {key: value for key, value in options.items() if key in known}


def _ops(own: Plugins, wanted: Callable[[Any], bool]) -> dict[str, list[Any]]:
    """The ops with rules in order of their names: sets of torch's overloads have another order in each process."""
    decomposed = [op for op, rule in own.decompositions().items() if rule is not None]
    kinds = {"lowering": own.lowerings(), "decomposition": decomposed}
    return {kind: [op for op in sorted(ops, key=str) if wanted(op)] for kind, ops in kinds.items()}


__all__ = ["check_conformance"]
