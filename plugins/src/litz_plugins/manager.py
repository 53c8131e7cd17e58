"""The plugin manager: in, built-in plugins and entry points; out, `Plugins`, with one typed method per hook.

There is no global manager. `make_plugins` gives one and whoever compiles passes it on; tests make their own. How
plugins are called, and what becomes of one that fails, is `litz_plugins.roster`'s.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from litz_plugins import strict
from litz_plugins.blame import Call
from litz_plugins.errors import (
    DuplicateRegistrationError,
    PassOrderError,
    PluginError,
    UnknownPluginError,
    describe,
)
from litz_plugins.loading import Source, Status, installed_entry_points, load_entry_points
from litz_plugins.nouns import Graph, JointGraph, Noun, Operation, OpOverload, OptionsView, Program, Report
from litz_plugins.passes import sort_passes
from litz_plugins.records import (
    STAGES,
    Ask,
    Choice,
    ChoiceContext,
    Decision,
    Entry,
    EntryFacts,
    Estimate,
    Exporter,
    KernelSource,
    LayoutNeed,
    LayoutPlan,
    OptionSpec,
    Pass,
    PassContext,
    Saver,
    Stage,
    Target,
    TargetOf,
    TargetSpec,
    TemplateSpec,
    Uncacheable,
    Watcher,
    unknown_target,
)
from litz_plugins.records.decisions import no_attachment
from litz_plugins.roster import SECONDS, OnError, Roster
from litz_plugins.strict import anything, of_type, sequence_of
from litz_plugins.unchanged import Snapshot
from litz_plugins.vetoes import VETOED, Gate
from litz_plugins.watching import owned_watcher
from litz_plugins.words import CORE_PLUGINS, CORE_VARIABLES, OWN_PLUGINS

T = TypeVar("T")


def _takes_any(node: Any, argument: Any) -> LayoutNeed:
    """Returns "any", the layout need of what nobody knows."""
    return "any"


DECIDING = (
    "litz_register_decompositions",
    "litz_register_lowerings",
    "litz_register_passes",
    "litz_register_templates",
    "litz_register_layout_needs",
    "litz_register_targets",
    "litz_narrow",
    "litz_estimate_runtime",
    "litz_select_choice",
    "litz_select_layout",
    "litz_tune",
    "litz_partition",
)
"""Hooks that may change what a graph becomes."""


@dataclass(frozen=True)
class PluginInfo:
    """One row of `litz plugins`. hooks, options, passes: names. error: why it failed, or what is wrong with its
    passes."""

    name: str
    status: Status
    dist: str = ""
    version: str = ""
    hooks: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    error: str = ""


def make_plugins(
    builtins: Sequence[tuple[str, object]] = (),
    *,
    extra: Sequence[tuple[str, object]] = (),
    disable: Collection[str] = (),
    entry_points: Iterable[EntryPoint] | None = None,
    on_plugin_error: OnError = "raise",
    seconds: float = SECONDS,
) -> Plugins:
    """Loads and checks every plugin.

    builtins: (name, object) of core's own plugins; asked last. extra: (name, object) of plugins that the caller brings
    along (tests, a notebook); asked first. disable: names to leave out, built-in or not. entry_points: what to load;
    None for the installed ones of group "litz". on_plugin_error: "raise", or "disable" to go on without a plugin that
    fails, with one PluginWarning; one that failed earlier in the process is left out without being tried. seconds: what
    one call of a plugin may take, measurements apart; 0 for no limit.

    Errors ("raise"): PluginLoadError, UnknownHookError, HookSignatureError. In both modes: DuplicatePluginError, since
    nobody can say which of the two is meant; UnknownPluginError for a name in ``disable`` that no plugin has.
    """
    disabled, quarantined = frozenset(disable), on_plugin_error == "disable"
    points = installed_entry_points() if entry_points is None else entry_points
    sources = [Source(name, obj, "builtin") for name, obj in builtins]
    sources += [Source(name, obj, "external") for name, obj in extra]
    sources += load_entry_points(points, disabled, quarantined)
    sources = [replace(s, obj=None, status="blocked") if s.name in disabled else s for s in sources]
    known = {*CORE_PLUGINS, *OWN_PLUGINS, *(s.name for s in sources)}
    for name in sorted(disabled - known):
        raise UnknownPluginError(name, known)
    listed = {s.name for s in sources}
    sources += [
        Source(name, None, "blocked") for name in sorted(disabled - listed)
    ]  # not installed: shown all the same
    return Plugins(sources, on_plugin_error, seconds)


def offer_of(template: str) -> str:
    """Returns what a call of a template's `make_choices` is called in errors, and for watchers (`Called.what`)."""
    return f"make_choices of template {template!r}"


class Plugins(Roster):
    """The plugins of one process or test, and the hooks. Make it with `make_plugins`."""

    # ------------------------------------------------------------------------------------------- hooks: what there is

    def options(self) -> dict[str, tuple[OptionSpec, ...]]:
        """Returns the option specs by plugin, their names with the plugin's in front ("autotune.seconds"). Asked once.
        Errors: DuplicateRegistrationError; PluginHookError for a variable that two options of one plugin share, or one
        with core's."""
        if self._option_specs is None:
            self._option_specs = self._joined("litz_register_options", self._ask_options)
        return {plugin: specs for plugin, specs in self._option_specs.items() if self._sources[plugin].obj is not None}

    def _ask_options(self) -> dict[str, tuple[OptionSpec, ...]]:
        specs: dict[str, tuple[OptionSpec, ...]] = {}
        core, owners = dict.fromkeys(CORE_VARIABLES, "an option of core's"), dict[str, str]()
        for plugin, given in self._registered("litz_register_options", sequence_of(OptionSpec)):
            named = tuple(self._owned_option(plugin, spec) for spec in given)
            names = [spec.name for spec in named]
            for name in names:
                if names.count(name) > 1:
                    raise DuplicateRegistrationError("option", name, [plugin, plugin])
            with Call(self, plugin, "litz_register_options", goes_on=True, checks=True) as call:
                call.result = strict.options(named, core)
            if not call.failed:
                for variable in call.result:
                    owner = owners.setdefault(variable, plugin)
                    if owner != plugin:
                        raise DuplicateRegistrationError("variable", variable, [owner, plugin])
                specs[plugin] = named
        return specs

    def _owned_option(self, plugin: str, spec: OptionSpec) -> OptionSpec:
        name = f"{plugin}.{spec.name}"
        check = spec.check and self.blamed(plugin, f"check of the option {name}", spec.check, (ValueError, OSError))
        return replace(spec, name=name, check=check)

    def option_specs(self) -> tuple[OptionSpec, ...]:
        """Returns all plugins' option specs in registration order. Each name begins with the plugin's."""
        return tuple(spec for specs in self.options().values() for spec in specs)

    def decompositions(
        self, core: bool = True, options: OptionsView | None = None
    ) -> dict[OpOverload, Callable[..., Any]]:
        """Returns op overload -> decomposition; None keeps an op whole. core: core's, too. options: those that plugins
        leave for a compile. Raises DuplicateRegistrationError."""
        check = strict.of_mapping(functools.partial(strict.rules, whole=True))
        found = self._rules("litz_register_decompositions", "decomposition", check, (), core)
        return self._narrowed("litz_narrow", "decomposition", found, options).copy()

    def lowerings(self, core: bool = True, options: OptionsView | None = None) -> dict[OpOverload, Callable[..., Any]]:
        """Returns op overload -> lowering. core: core's, too. options: those that plugins leave for a compile. Raises
        DuplicateRegistrationError."""
        # One that raises NotImplementedError leaves its op to a library call.
        check, passes = strict.of_mapping(strict.rules), (NotImplementedError,)
        found = self._rules("litz_register_lowerings", "lowering", check, passes, core)
        return self._narrowed("litz_narrow", "lowering", found, options, passes).copy()

    def passes(self, options: OptionsView, stage: Stage | None = None) -> tuple[Pass, ...]:
        """Returns the passes of a stage (all stages if None) in running order, each with its plugin filled in.

        Errors: PassOrderError; PluginHookError for an `after` or `before` that is no pass.
        """
        if stage is not None and stage not in STAGES:
            raise ValueError(f"there is no stage {stage!r}; stages are {', '.join(STAGES)}")
        key = "passes in order", id(options)  # which each stage of each graph asks for
        if key not in self._known:
            ordered = self._joined("litz_register_passes", lambda: self._sorted_passes(options))
            self._known[key] = options, list(ordered)
        return tuple(p for p in self._known[key][1] if stage is None or p.stage == stage)

    def _sorted_passes(self, options: OptionsView) -> tuple[Pass, ...]:
        while True:
            results, failures = self._registered("litz_register_passes", sequence_of(Pass), options), self.failures
            given = [replace(p, plugin=plugin) for plugin, passes in results for p in passes]
            for plugin, passes in results:
                if not self.is_builtin(plugin):
                    with Call(self, plugin, "litz_register_passes", goes_on=True, checks=True):
                        strict.pass_order(passes, given)
            if failures == self.failures:
                known = {item.name: item for item in sort_passes(given)}
                return tuple(self._narrowed("litz_narrow", "pass", known, options).values())

    def templates(self, options: OptionsView) -> tuple[TemplateSpec, ...]:
        """Returns all kernel templates, with their plugins filled in. Raises DuplicateRegistrationError."""
        return self._joined("litz_register_templates", lambda: self._owned_templates(options))

    def _owned_templates(self, options: OptionsView) -> tuple[TemplateSpec, ...]:
        owners: dict[str, str] = {}
        found = []
        for plugin, specs in self._registered("litz_register_templates", _templates, options):
            for spec in specs:
                if spec.name in owners:
                    raise DuplicateRegistrationError("template", spec.name, [owners[spec.name], plugin])
                owners[spec.name] = plugin
                make = self.blamed(
                    plugin, offer_of(spec.name), spec.make_choices, check=sequence_of(Choice), handed=self._contraction
                )
                found.append(replace(spec, plugin=plugin, make_choices=make))
        named = {spec.name: spec for spec in found}
        return tuple(self._narrowed("litz_narrow", "template", named, options).values())

    def _contraction(self, operation: Operation, context: ChoiceContext) -> list[Snapshot]:
        """The nouns that a template is handed."""
        return self.snapshots([operation, context.program], deep=False)

    def layout_needs(self) -> dict[OpOverload, LayoutNeed | Mapping[str, LayoutNeed]]:
        """Returns op overload -> how the op takes its tensors. Raises DuplicateRegistrationError."""
        hook, check = "litz_register_layout_needs", strict.of_mapping(strict.layout_needs)
        merged = self._joined(hook, lambda: self._merge("layout needs of", self._registered(hook, check)))
        return {op: row for op, (_, row) in merged.items()}

    def targets(self, options: OptionsView) -> dict[str, TargetSpec]:
        """Returns device type -> target, with its plugin filled in. Raises DuplicateRegistrationError."""
        hook = "litz_register_targets"

        def merged() -> dict[str, tuple[str, TargetSpec]]:
            results = self._registered(hook, sequence_of(TargetSpec), options)
            named = [(plugin, {spec.type: spec}) for plugin, specs in results for spec in specs]
            return self._merge("target for device", named, repr)

        def owned(plugin: str, spec: TargetSpec) -> TargetSpec:
            describe = self.blamed(plugin, f"describe of target {spec.type!r}", spec.describe, check=_target)
            return replace(spec, plugin=plugin, describe=describe)

        return {type_: owned(plugin, spec) for type_, (plugin, spec) in self._joined(hook, merged).items()}

    def settle(self, options: OptionsView) -> None:
        """Asks for all that plugins register for a compile, once for these options: of two that clash one is left out
        before any function of it has run. Errors ("raise"): DuplicateRegistrationError, PassOrderError."""
        key, failures = ("", id(options)), -1
        while failures != self.failures:  # a pass may name one whose plugin is left out by then
            failures = self.failures
            if key not in self._known:
                self.decompositions(core=False), self.lowerings(core=False), self.layout_needs()
                self.passes(options), self.templates(options), self.targets(options)
        self._known[key] = options, []

    def commands(self) -> dict[str, Any]:
        """Returns name -> click command. Raises DuplicateRegistrationError; PluginHookError for a name of core's."""
        return {name: command for name, (_, command) in self.commands_by_plugin().items()}

    def commands_by_plugin(self) -> dict[str, tuple[str, Any]]:
        """Returns name -> (plugin, click command). See `commands` for the errors."""
        hook, check = "litz_register_commands", strict.of_mapping(strict.commands)
        return self._joined(hook, lambda: self._merge("command", self._registered(hook, check)))

    # -------------------------------------------------------------------------------- hooks: what it costs, what to do

    def estimate_runtime(
        self, operation: Operation, target: Target, program: Program, options: OptionsView | None = None
    ) -> Estimate | None:
        """Returns how long an operation runs, by the first plugin that knows; None if no plugin knows."""
        found = self.estimate_runtime_from(operation, target, program, options)
        return None if found is None else found[1]

    def estimate_runtime_from(
        self, operation: Operation, target: Target, program: Program, options: OptionsView | None = None
    ) -> tuple[str, Estimate] | None:
        """Returns what `estimate_runtime` does, with the name of the plugin that answered."""
        arguments = {"operation": operation, "target": target, "program": program, "options": options}
        return self._first("litz_estimate_runtime", arguments, of_type(Estimate))

    def asker(self, options: OptionsView) -> Ask | None:
        """Returns what asks the plugins other than the built-in ones how long an operation runs; None if no such plugin
        has the hook."""

        def ask(operation: Operation, target: Target, program: Program) -> tuple[str, Estimate] | None:
            arguments = {"operation": operation, "target": target, "program": program, "options": options}
            return self._first("litz_estimate_runtime", arguments, check, builtin=False)

        check = of_type(Estimate)
        return ask if self.asks("litz_estimate_runtime") else None

    def select_choice(self, choices: Sequence[Choice], context: ChoiceContext) -> tuple[str, Choice] | None:
        """Returns (plugin, choice) of the first plugin with an opinion; None if no plugin has one."""
        given = tuple(choices)

        def check(result: Any) -> Choice:
            if not any(result is choice for choice in given):
                raise TypeError(f"returned {result!r}, which is none of the choices that it was given")
            return result

        return self._first("litz_select_choice", {"choices": given, "context": context}, check)

    def select_layout(
        self,
        graph: Graph,
        options: OptionsView,
        needs: Callable[[Any, Any], LayoutNeed] = _takes_any,
        target_of: TargetOf = unknown_target,
        lowered: frozenset[Any] = frozenset(),
    ) -> tuple[str, LayoutPlan] | None:
        """Returns (plugin, plan) of the first plugin with an opinion; None if nobody has one. needs, target_of,
        lowered: as the hook documents."""
        arguments = {"graph": graph, "options": options, "needs": needs, "target_of": target_of, "lowered": lowered}
        return self._first("litz_select_layout", arguments, of_type(LayoutPlan))

    def partition(
        self,
        joint: JointGraph,
        options: OptionsView,
        planned: Callable[[Any], Any],
        context: PassContext,
        check: Callable[[Any], T] = anything,
    ) -> tuple[str, T] | None:
        """Returns (plugin, forward and backward) of the first plugin that partitions a joint graph; None if nobody
        does. planned, context: as the hook documents. check: raises for what is no partition of it."""
        arguments = {"joint": joint, "options": options, "planned": planned, "context": context}
        return self._first("litz_partition", arguments, check)

    def asks(self, hook: str) -> bool:
        """Returns whether a plugin that is not built in implements the hook of this name."""
        return not all(impl.builtin for impl in self._implementations(hook))

    def has(self, hook: str) -> bool:
        """Returns whether any loaded plugin implements the hook of this name."""
        return bool(self.answering(hook))

    def tune(self, tuning: Any, check: Callable[[Any], T] = anything) -> T | None:
        """Returns the variant of a graph that the first plugin with an opinion chooses; None if nobody has one. check:
        raises for what is no variant."""
        found = self._first("litz_tune", {"tuning": tuning}, check)
        return None if found is None else found[1]

    # ------------------------------------------------------------------------------------------- hooks: what is cached

    def deciders(self) -> tuple[Source, ...]:
        """Returns the plugins, without the built-in ones, that may change what a graph becomes, by name."""
        names = {name for hook in DECIDING for name in self.answering(hook)}
        found = (self._sources[name] for name in sorted(names))
        return tuple(source for source in found if source.status != "builtin")

    def cache_fingerprints(self, options: OptionsView) -> dict[str, str | Uncacheable]:
        """Returns plugin -> what its results depend on, '' if it says nothing, for plugins with the hook."""
        found: dict[str, str | Uncacheable] = dict.fromkeys(sorted(self.answering("litz_cache_fingerprint")), "")
        return found | dict(self._each("litz_cache_fingerprint", {"options": options}, strict.fingerprint))

    def find_graph(self, options: OptionsView, kind: str, key: str, check: Callable[[bytes], T | None]) -> T | None:
        """Returns what the first plugin that has it keeps under a kind and a key; None if none has. check: gives what
        bytes stand for, None for what is no entry. A plugin that fails costs its store alone."""
        hook, arguments = "litz_find_graph", {"kind": kind, "key": key, "options": options}
        asked = (self._from_store(impl, hook, arguments, of_type(bytes)) for impl in self._implementations(hook))
        checked = (check(content) for content in asked if content is not None)
        return next((found for found in checked if found is not None), None)

    def keep_graph(self, options: OptionsView, kind: str, key: str, content: bytes | None) -> None:
        """Tells every plugin what was made under a kind and a key; None for what could not be made."""
        hook, arguments = "litz_keep_graph", {"kind": kind, "key": key, "content": content, "options": options}
        for impl in self._implementations(hook):
            self._from_store(impl, hook, arguments, anything)

    # ------------------------------------------------------------------------------------------------ hooks: what runs

    def wrap_entry(self, entry: Entry, facts: EntryFacts, options: OptionsView) -> Entry:
        """Returns what runs in place of a graph's entry: the entry itself where no plugin wraps it."""
        hook = "litz_wrap_entry"
        for impl in self._implementations(hook):
            found = self._ask(impl, hook, {"entry": entry, "facts": facts, "options": options}, _callable, {(): ()})
            entry = entry if found is None else found[1]
        return entry

    def select_exporter(self, target: TargetSpec, source: KernelSource | None, options: OptionsView) -> Exporter | None:
        """Returns what exports a kernel, or for None a package for a target, with its plugin; None if nobody does."""
        arguments = {"target": target, "source": source, "options": options}
        found = self._first("litz_select_exporter", arguments, of_type(Exporter))
        return None if found is None else replace(found[1], plugin=found[0])

    def select_saver(self, options: OptionsView) -> Saver | None:
        """Returns what compiles what torch is to save; None if nobody does."""
        found = self._first("litz_select_saver", {"options": options}, _callable)
        return None if found is None else found[1]

    # ------------------------------------------------------------------------------------------------ hooks: observers

    def watch_graph(self, name: str, options: OptionsView, read: bool = False) -> list[Watcher]:
        """Returns what plugins are told of a graph; each of their functions is the plugin's to blame."""
        hook = "litz_watch_graph"
        if not self.has(hook):
            return []
        arguments = {"name": name, "options": options, "read": read, "slow": lambda: self.slow_call}
        return [owned_watcher(self, *found) for found in self._each(hook, arguments, of_type(Watcher))]

    def compile_started(self, graph: Graph, options: OptionsView) -> None:
        """Tells every plugin that a graph is about to be compiled."""
        self._each("litz_compile_started", {"graph": graph, "options": options}, anything)

    def pass_finished(self, pass_: Pass, before: Noun, after: Noun, seconds: float) -> None:
        """Tells every plugin that a pass has run, in ``seconds``."""
        arguments = {"pass_": pass_, "before": before, "after": after, "seconds": seconds}
        self._each("litz_pass_finished", arguments, anything)
        self._told_of = after

    def compile_failed(self, graph: Graph, failure: Exception, options: OptionsView) -> str | None:
        """Returns the command of the first plugin that knows how to see a failure again; None if no plugin knows."""
        arguments = {"graph": graph, "failure": failure, "options": options}
        found = self._first("litz_compile_failed", arguments, of_type(str))
        return None if found is None else found[1]

    def compile_finished(self, report: Report, options: OptionsView) -> None:
        """Tells every plugin that a graph is compiled, and forgets the snapshots."""
        self._each("litz_compile_finished", {"report": report, "options": options}, anything)
        self._snapshots.clear()
        self._stale.clear()
        self._told_of = None

    # ------------------------------------------------------------------------------------------------------- the whole

    def run_passes(
        self,
        stage: Stage,
        noun: Noun,
        options: OptionsView,
        *,
        note: Callable[[Decision], None] = lambda decision: None,
        verify: Callable[[Noun], None] | None = None,
        verify_builtin: bool = True,
        accept: Callable[[str, Noun, Noun], Noun] | None = None,
        passes: Sequence[Pass] | None = None,
        target_of: TargetOf = unknown_target,
        ask: Ask | None = None,
        gate: Gate | None = None,
        attach: Callable[[str, str], None] = no_attachment,
        watch: Callable[[Pass, Noun, Noun, float], None] = lambda pass_, before, after, seconds: None,
    ) -> Noun:
        """Runs a stage's passes over ``noun`` and returns what the last one returns.

        note: takes the decisions that passes record. verify: called with each result that is another noun; what it
        raises is blamed on that pass. verify_builtin: the built-in passes' results too. accept: called with a plugin's
        name, what its pass was given and what it returned, where that is another noun; gives the noun to go on with,
        and raises for one that promises something else. passes: to save asking again, what `passes(options, stage)`
        returned. target_of, ask, attach: for the passes' context. gate: the decisions that must not be taken, passes
        among them. watch: told of each pass what the hook `litz_pass_finished` tells plugins.

        Errors: PluginHookError naming plugin and pass; PassOrderError.
        """
        estimate, gate = functools.partial(self.estimate_runtime, options=options), gate or Gate()
        self._doubt_changeable()
        for pass_ in self.passes(options, stage) if passes is None else passes:
            if self._sources[pass_.plugin].status == "failed":  # dropped while this loop was running
                continue
            if gate.forbids(pass_.name):
                note(Decision(stage, f"pass {pass_.name}", "not run", VETOED, plugin=pass_.plugin))
                continue
            known: dict[str, Any] = {"target_of": target_of, "ask": ask, "gate": gate, "attach": attach}
            context = PassContext(options, stage, pass_.name, pass_.plugin, estimate, note, **known)
            builtin, result = self.is_builtin(pass_.plugin), noun
            what, handed = f"pass {pass_.name!r} ({stage} stage)", () if builtin else self.snapshots([noun], deep=True)
            begun = time.perf_counter()
            with Call(self, pass_.plugin, what, handed, goes_on=True, seconds=0.0 if builtin else None) as call:
                result = call.result = pass_.run(noun, context)
                if type(result) is not type(noun):
                    problem = f"returned {_article(result)}; a pass of this stage returns a {type(noun).__name__}, the "
                    raise TypeError(f"{problem}one it was given if nothing changed")
                if accept is not None and not builtin and result is not noun:
                    result = call.result = accept(pass_.plugin, noun, result)
                if verify is not None and (verify_builtin or (not builtin and result is not noun)):
                    verify(result)
            if call.failed:
                continue  # without the plugin: the noun as it was before the pass
            seconds = time.perf_counter() - begun
            self.pass_finished(pass_, noun, result, seconds)
            watch(pass_, noun, result, seconds)
            if result is not noun:
                gate.take(pass_.name)
            noun = result
        self._doubt_changeable()
        return noun

    def sources(self) -> tuple[Source, ...]:
        """Returns the sources of all plugins, blocked and failed ones included."""
        return tuple(self._sources.values())

    def names(self) -> tuple[str, ...]:
        """Returns the names of the plugins that are in use, in registration order."""
        return tuple(n for n in self._rank_order() if self._sources[n].status in ("builtin", "external"))

    def listing(self, options: OptionsView | None = None) -> list[PluginInfo]:
        """Returns a row per plugin, blocked and failed ones included. ``options``: to list passes too."""
        specs = self.options()
        passes, faults = ({}, {}) if options is None else self._passes_by_plugin(options)
        rows = []
        for source in self._sources.values():
            running = source.obj is not None and source.status != "failed"
            rows.append(
                PluginInfo(
                    name=source.name,
                    status=source.status,
                    dist=source.dist,
                    version=source.version,
                    hooks=tuple(sorted(set(self._hooks.get(source.name, {}).values()))) if running else (),
                    options=tuple(s.name for s in specs.get(source.name, ())) if running else (),
                    passes=tuple(p.name for p in passes.get(source.name, ())),
                    error=source.error.what if source.error is not None else faults.get(source.name, ""),
                )
            )
        return rows

    def _passes_by_plugin(self, options: OptionsView) -> tuple[dict[str, tuple[Pass, ...]], dict[str, str]]:
        """Passes by plugin, and faults by plugin: the listing must work to find out which plugin to leave out."""
        passes: dict[str, tuple[Pass, ...]] = {}
        faults: dict[str, str] = {}
        for impl in self._implementations("litz_register_passes"):
            try:
                given = sequence_of(Pass)(impl.function(*[options for _ in impl.arguments]) or ())
                passes[impl.plugin] = tuple(replace(p, plugin=impl.plugin) for p in given)
            except Exception as cause:
                faults[impl.plugin] = describe(cause)
        everything = [p for given in passes.values() for p in given]
        for plugin, given in passes.items():
            try:
                strict.pass_order(given if not self.is_builtin(plugin) else (), everything)
            except strict.WrongName as error:
                faults[plugin] = str(error)
        try:
            sort_passes(everything)
        except PassOrderError as error:
            faults |= dict.fromkeys(error.plugins, error.what)
        return passes, faults

    def missing(self) -> dict[str, str]:
        """Returns the plugins that are installed, and left out or failed, with what to do about each: for who names an
        option of one."""
        found = {}
        for source in self._sources.values():
            if source.error is not None:
                found[source.name] = f"its plugin {source.name!r} failed, and is left out: {source.error.what}"
            elif source.status == "blocked" and source.dist:
                found[source.name] = (
                    f"its plugin {source.name!r} ({source.origin}) is left out by LITZ_DISABLE_PLUGINS or the option "
                    "disable_plugins"
                )
        return found

    def errors(self) -> list[PluginError]:
        """Returns the errors of the plugins that failed, which exist only with ``on_plugin_error="disable"``."""
        return [s.error for s in self._sources.values() if s.error is not None]


def _article(result: Any) -> str:
    """Returns "None", "a Schedule"."""
    return "None" if result is None else f"a {type(result).__name__}"


def _callable(result: Any) -> Any:
    if not callable(result):
        raise TypeError(f"returned {_article(result)}; a callable, or None, is expected")
    return result


def _target(result: Any) -> Target | None:
    return None if result is None else of_type(Target)(result)


def _templates(result: Any) -> tuple[TemplateSpec, ...]:
    specs = sequence_of(TemplateSpec)(result)
    strict.templates(specs)
    return specs
