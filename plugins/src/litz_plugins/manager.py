"""The plugin manager: in, built-in plugins and entry points; out, `Plugins`, with one typed method per hook.

There is no global manager. `make_plugins` gives one and whoever compiles passes it on; tests make their own.

pluggy keeps the registry and the calling order. Hook functions are called one by one from here rather than through
pluggy's multicall, so that whatever goes wrong is known to be one plugin's, and so that a hook that runs thousands of
times a compile costs one Python call per plugin that has it.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, Literal, TypeVar

import pluggy

from litz_plugins import hookspecs
from litz_plugins.errors import (
    DuplicatePluginError,
    DuplicateRegistrationError,
    LitzError,
    PassOrderError,
    PluginError,
    PluginHookError,
    PluginLoadError,
    PluginWarning,
    UnknownHookError,
    describe,
)
from litz_plugins.loading import Source, Status, installed_entry_points, load_entry_points
from litz_plugins.nouns import Graph, Noun, Operation, OpOverload, OptionsView, Program, Report
from litz_plugins.passes import sort_passes
from litz_plugins.records import (
    Ask,
    Choice,
    ChoiceContext,
    Decision,
    Estimate,
    LayoutNeed,
    LayoutPlan,
    OptionSpec,
    Pass,
    PassContext,
    Stage,
    Target,
    TargetOf,
    TargetSpec,
    TemplateSpec,
    Uncacheable,
    unknown_target,
)
from litz_plugins.validate import HOOKS, check_hooks
from litz_plugins.vetoes import VETOED, Gate

T = TypeVar("T")


def _takes_any(node: Any, argument: Any) -> LayoutNeed:
    """What is said of layout needs where nobody knows any."""
    return "any"


OnError = Literal["raise", "disable"]

DECIDING = (
    "litz_register_decompositions",
    "litz_register_lowerings",
    "litz_register_passes",
    "litz_register_templates",
    "litz_register_layout_needs",
    "litz_register_targets",
    "litz_estimate_runtime",
    "litz_select_choice",
    "litz_select_layout",
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


@dataclass(frozen=True)
class _Impl:
    """One plugin's function for one hook. arguments: the parameters it takes, in order."""

    plugin: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    rank: int  # place of its plugin in registration order: built-ins, then the others by name


def make_plugins(
    builtins: Sequence[tuple[str, object]] = (),
    *,
    extra: Sequence[tuple[str, object]] = (),
    disable: Collection[str] = (),
    entry_points: Iterable[EntryPoint] | None = None,
    on_plugin_error: OnError = "raise",
) -> Plugins:
    """Load and check every plugin.

    builtins: (name, object) of core's own plugins; asked last. extra: (name, object) of plugins that the caller brings
    along (tests, a notebook); asked first. disable: names to leave out, built-in or not. entry_points: what to load;
    None for the installed ones of group "litz". on_plugin_error: "raise", or "disable" to go on without a plugin that
    fails, with one PluginWarning.

    Errors ("raise"): PluginLoadError, UnknownHookError, HookSignatureError. In both modes: DuplicatePluginError, since
    nobody can say which of the two is meant.
    """
    disabled = frozenset(disable)
    points = installed_entry_points() if entry_points is None else entry_points
    sources = [Source(name, obj, "builtin") for name, obj in builtins]
    sources += [Source(name, obj, "external") for name, obj in extra]
    sources += load_entry_points(points, disabled)
    sources = [replace(s, obj=None, status="blocked") if s.name in disabled else s for s in sources]
    known = {s.name for s in sources}
    sources += [Source(name, None, "blocked") for name in sorted(disabled - known)]  # shown in the listing
    return Plugins(sources, on_plugin_error)


class Plugins:
    """The plugins of one process or test, and the hooks. Make it with `make_plugins`.

    Not safe for use by several threads while plugins may still be disabled; reading hooks concurrently is.
    """

    def __init__(self, sources: Sequence[Source], on_plugin_error: OnError = "raise") -> None:
        self._on_error = on_plugin_error
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._sources: dict[str, Source] = {}
        self._hooks: dict[str, tuple[str, ...]] = {}
        self._impls: dict[str, tuple[_Impl, ...]] = {}
        self._option_specs: dict[str, tuple[OptionSpec, ...]] | None = None
        for source in sources:
            self._admit(source)
        self._register()

    # ------------------------------------------------------------------------------------------------------- loading

    def _admit(self, source: Source) -> None:
        other = self._sources.get(source.name)
        if other is not None and "blocked" not in (other.status, source.status):
            raise DuplicatePluginError(source.name, [other.origin, source.origin])
        error = source.error
        if source.obj is not None:
            try:
                if self._manager.get_name(source.obj) is not None or any(
                    s.obj is source.obj for s in self._sources.values()
                ):
                    raise PluginLoadError(source.name, source.origin, "the same object is already another plugin")
                self._hooks[source.name] = check_hooks(self._manager, source.name, source.obj, source.origin)
            except PluginError as caught:
                error = caught
        if error is not None:
            if self._on_error == "raise" or source.status == "builtin":
                raise error
            self._warn(error)
            source = replace(source, obj=None, status="failed", error=error)
        self._sources[source.name] = source

    def _register(self) -> None:
        # pluggy calls the plugin that was registered last first. Registering backwards makes the calling order: plugins
        # passed in, then by name, then core's own in the order given.
        loaded = [s for s in self._sources.values() if s.obj is not None]
        order = [s for s in loaded if s.status != "builtin"] + [s for s in loaded if s.status == "builtin"]
        for source in reversed(order):
            self._manager.register(source.obj, name=source.name)
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as cause:  # nothing gets here that check_hooks lets through
            name = self._manager.get_name(cause.plugin) or "?"
            raise UnknownHookError(name, str(cause), HOOKS) from cause

    def _warn(self, error: LitzError) -> None:
        warnings.warn(f"litz goes on without a plugin: {error}", PluginWarning, stacklevel=3)

    # ------------------------------------------------------------------------------------------------------- calling

    def _implementations(self, hook: str) -> tuple[_Impl, ...]:
        """The functions of a hook in calling order."""
        impls = self._impls.get(hook)
        if impls is None:
            ranks = {name: i for i, name in enumerate(self._rank_order())}
            found = reversed(getattr(self._manager.hook, hook).get_hookimpls())
            impls = tuple(_Impl(i.plugin_name, i.function, tuple(i.argnames), ranks[i.plugin_name]) for i in found)
            self._impls[hook] = impls
        return impls

    def _rank_order(self) -> list[str]:
        builtin = [s.name for s in self._sources.values() if s.status == "builtin"]
        return builtin + [s.name for s in self._sources.values() if s.status != "builtin"]

    def _each(
        self, hook: str, arguments: Mapping[str, Any], check: Callable[[Any], T], *, by_rank: bool = False
    ) -> list[tuple[str, T]]:
        """(plugin, checked result) of every plugin that has the hook and returns something."""
        impls = self._implementations(hook)
        results = []
        for impl in sorted(impls, key=lambda i: i.rank) if by_rank else impls:
            try:
                result = impl.function(*[arguments[name] for name in impl.arguments])
                if result is not None:
                    results.append((impl.plugin, check(result)))
            except Exception as cause:
                self._failed(impl.plugin, hook, cause)
        return results

    def _first(
        self, hook: str, arguments: Mapping[str, Any], check: Callable[[Any], T], builtin: bool = True
    ) -> tuple[str, T] | None:
        """(plugin, checked result) of the first plugin whose result is not None. builtin: built-in ones too."""
        for impl in self._implementations(hook):
            if not builtin and self._is_builtin(impl.plugin):
                continue
            try:
                result = impl.function(*[arguments[name] for name in impl.arguments])
                if result is not None:
                    return impl.plugin, check(result)
            except Exception as cause:
                self._failed(impl.plugin, hook, cause)
        return None

    def _failed(self, plugin: str, where: str, cause: Exception) -> None:
        """A plugin raised. Raise an error that names it, or drop the plugin and return."""
        source = self._sources[plugin]
        if source.status == "builtin" and isinstance(cause, LitzError):
            raise cause  # core's own errors already say what happened
        error = PluginHookError(plugin, where, cause, dist=source.origin, builtin=source.status == "builtin")
        error.__cause__ = cause
        if self._on_error == "raise" or source.status == "builtin":
            raise error
        if source.status != "failed":
            self._drop(plugin, error)

    def _drop(self, plugin: str, error: PluginError) -> None:
        self._warn(error)
        self._manager.unregister(name=plugin)
        self._sources[plugin] = replace(self._sources[plugin], status="failed", error=error)
        self._impls.clear()

    def _merge(
        self, kind: str, results: Iterable[tuple[str, Mapping[Any, T]]], names: Callable[[Any], str] = str
    ) -> dict[Any, T]:
        """Merge mappings by key: plugins replace built-ins, and two of a kind for one key is an error."""
        merged: dict[Any, T] = {}
        owners: dict[Any, str] = {}
        for plugin, mapping in results:
            for key, value in mapping.items():
                owner = owners.get(key)
                if owner is not None and self._is_builtin(owner) == self._is_builtin(plugin):
                    raise DuplicateRegistrationError(kind, names(key), [owner, plugin])
                merged[key] = value
                owners[key] = plugin
        return merged

    def _is_builtin(self, plugin: str) -> bool:
        return self._sources[plugin].status == "builtin"

    # ------------------------------------------------------------------------------------------- hooks: what there is

    def options(self) -> dict[str, tuple[OptionSpec, ...]]:
        """Option specs by plugin, their names with the plugin's in front ("autotune.seconds"). Asked once."""
        if self._option_specs is None:
            results = self._each("litz_register_options", {}, _sequence_of(OptionSpec), by_rank=True)
            specs = {}
            for plugin, given in results:
                named = tuple(replace(spec, name=f"{plugin}.{spec.name}") for spec in given)
                names = [spec.name for spec in named]
                for name in names:
                    if names.count(name) > 1:
                        raise DuplicateRegistrationError("option", name, [plugin, plugin])
                specs[plugin] = named
            self._option_specs = specs
        return {plugin: specs for plugin, specs in self._option_specs.items() if self._sources[plugin].obj is not None}

    def option_specs(self) -> tuple[OptionSpec, ...]:
        """All plugins' option specs, names with the plugin's in front, in registration order."""
        return tuple(spec for specs in self.options().values() for spec in specs)

    def decompositions(self) -> dict[OpOverload, Callable[..., Any]]:
        """Op overload -> decomposition. Errors: DuplicateRegistrationError."""
        results = self._each("litz_register_decompositions", {}, _mapping, by_rank=True)
        return self._merge("decomposition of", results)

    def lowerings(self) -> dict[OpOverload, Callable[..., Any]]:
        """Op overload -> lowering. Errors: DuplicateRegistrationError."""
        results = self._each("litz_register_lowerings", {}, _mapping, by_rank=True)
        return self._merge("lowering of", results)

    def lowering_owner(self, op: str) -> str:
        """Whose lowering of an op ("aten.add.Tensor") is used, to know whom to blame; '' if it is a built-in one."""
        results = self._each("litz_register_lowerings", {}, _mapping, by_rank=True)
        owners = (plugin for plugin, rules in results if not self._is_builtin(plugin) and op in map(str, rules))
        return next(owners, "")

    def passes(self, options: OptionsView, stage: Stage | None = None) -> tuple[Pass, ...]:
        """The passes of a stage (all stages if None) in running order, each with its plugin filled in.

        Errors: PassOrderError.
        """
        results = self._each("litz_register_passes", {"options": options}, _sequence_of(Pass), by_rank=True)
        ordered = sort_passes([replace(p, plugin=plugin) for plugin, passes in results for p in passes])
        return tuple(p for p in ordered if stage is None or p.stage == stage)

    def templates(self, options: OptionsView) -> tuple[TemplateSpec, ...]:
        """All kernel templates, each with its plugin filled in. Errors: DuplicateRegistrationError."""
        results = self._each("litz_register_templates", {"options": options}, _sequence_of(TemplateSpec), by_rank=True)
        owners: dict[str, str] = {}
        for plugin, specs in results:
            for spec in specs:
                if spec.name in owners:
                    raise DuplicateRegistrationError("template", spec.name, [owners[spec.name], plugin])
                owners[spec.name] = plugin
        return tuple(replace(spec, plugin=plugin) for plugin, specs in results for spec in specs)

    def layout_needs(self) -> dict[OpOverload, LayoutNeed | Mapping[str, LayoutNeed]]:
        """Op overload -> how it takes its tensors. Errors: DuplicateRegistrationError."""
        return self._merge("layout needs of", self._each("litz_register_layout_needs", {}, _mapping, by_rank=True))

    def targets(self, options: OptionsView) -> dict[str, TargetSpec]:
        """Device type -> target, each with its plugin filled in. Errors: DuplicateRegistrationError."""
        results = self._each("litz_register_targets", {"options": options}, _sequence_of(TargetSpec), by_rank=True)
        named = [(plugin, {spec.type: replace(spec, plugin=plugin)}) for plugin, specs in results for spec in specs]
        return self._merge("target for device", named, repr)

    def commands(self) -> dict[str, Any]:
        """Name -> click command. Errors: DuplicateRegistrationError."""
        return self._merge("command", self._each("litz_register_commands", {}, _mapping, by_rank=True))

    # -------------------------------------------------------------------------------- hooks: what it costs, what to do

    def estimate_runtime(
        self, operation: Operation, target: Target, program: Program, options: OptionsView | None = None
    ) -> Estimate | None:
        """How long an operation of ``program`` runs, from the first plugin that knows; None if nobody does."""
        found = self.estimate_runtime_from(operation, target, program, options)
        return None if found is None else found[1]

    def estimate_runtime_from(
        self, operation: Operation, target: Target, program: Program, options: OptionsView | None = None
    ) -> tuple[str, Estimate] | None:
        """As `estimate_runtime`, with the name of the plugin that answered."""
        arguments = {"operation": operation, "target": target, "program": program, "options": options}
        return self._first("litz_estimate_runtime", arguments, _one(Estimate))

    def asker(self, options: OptionsView) -> Ask | None:
        """What asks the plugins other than the built-in ones how long an operation runs; None if no such plugin has
        the hook."""

        def ask(operation: Operation, target: Target, program: Program) -> tuple[str, Estimate] | None:
            arguments = {"operation": operation, "target": target, "program": program, "options": options}
            return self._first("litz_estimate_runtime", arguments, _one(Estimate), builtin=False)

        impls = self._implementations("litz_estimate_runtime")
        return None if all(self._is_builtin(impl.plugin) for impl in impls) else ask

    def select_choice(self, choices: Sequence[Choice], context: ChoiceContext) -> tuple[str, Choice] | None:
        """(plugin, choice) of the first plugin with an opinion; None if nobody has one."""
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
    ) -> tuple[str, LayoutPlan] | None:
        """(plugin, plan) of the first plugin with an opinion; None if nobody has one. needs, target_of: as the hook
        documents."""
        arguments = {"graph": graph, "options": options, "needs": needs, "target_of": target_of}
        return self._first("litz_select_layout", arguments, _one(LayoutPlan))

    # ------------------------------------------------------------------------------------------- hooks: what is cached

    def deciders(self) -> tuple[Source, ...]:
        """The plugins, other than the built-in ones, that may change what a graph becomes, by name."""
        names = {impl.plugin for hook in DECIDING for impl in self._implementations(hook)}
        found = (self._sources[name] for name in sorted(names))
        return tuple(source for source in found if source.status != "builtin")

    def cache_fingerprints(self, options: OptionsView) -> dict[str, str | Uncacheable]:
        """What plugins say that their results hang on, by name; those that have the hook and say nothing, with ''."""
        found: dict[str, str | Uncacheable] = {i.plugin: "" for i in self._implementations("litz_cache_fingerprint")}
        return found | dict(self._each("litz_cache_fingerprint", {"options": options}, _fingerprint))

    # ------------------------------------------------------------------------------------------------ hooks: observers

    def compile_started(self, graph: Graph, options: OptionsView) -> None:
        """Tell every plugin that a graph is about to be compiled."""
        self._each("litz_compile_started", {"graph": graph, "options": options}, _anything)

    def pass_finished(self, pass_: Pass, before: Noun, after: Noun, seconds: float) -> None:
        """Tell every plugin that a pass has run, in ``seconds``."""
        arguments = {"pass_": pass_, "before": before, "after": after, "seconds": seconds}
        self._each("litz_pass_finished", arguments, _anything)

    def compile_finished(self, report: Report) -> None:
        """Tell every plugin that a graph is compiled."""
        self._each("litz_compile_finished", {"report": report}, _anything)

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
        passes: Sequence[Pass] | None = None,
        target_of: TargetOf = unknown_target,
        ask: Ask | None = None,
        gate: Gate | None = None,
    ) -> Noun:
        """Run a stage's passes over ``noun`` and return what the last one returns.

        note: takes the decisions that passes record. verify: called with each result; what it raises is blamed on that
        pass. verify_builtin: the built-in passes' results too. passes: to save asking again, what
        `passes(options, stage)` returned. target_of, ask: for the
        passes' context. gate: the decisions that must not be taken, passes among them.

        Errors: PluginHookError naming plugin and pass; PassOrderError.
        """
        estimate, gate = functools.partial(self.estimate_runtime, options=options), gate or Gate()
        for pass_ in self.passes(options, stage) if passes is None else passes:
            if self._sources[pass_.plugin].status == "failed":  # dropped while this loop was running
                continue
            if gate.forbids(pass_.name):
                note(Decision(stage, f"pass {pass_.name}", "not run", VETOED, plugin=pass_.plugin))
                continue
            known: dict[str, Any] = {"target_of": target_of, "ask": ask, "gate": gate}
            context = PassContext(options, stage, pass_.name, pass_.plugin, estimate, note, **known)
            start = time.perf_counter()
            try:
                result = pass_.run(noun, context)
                if result is None:
                    raise TypeError(f"returned None; a pass returns a {stage}, the one it was given if nothing changed")
                if verify is not None and (verify_builtin or not self._is_builtin(pass_.plugin)):
                    verify(result)
            except Exception as cause:
                self._failed(pass_.plugin, f"pass {pass_.name!r} ({stage} stage)", cause)
                continue  # without the plugin: the noun as it was before the pass
            self.pass_finished(pass_, noun, result, time.perf_counter() - start)
            if result is not noun:
                gate.take(pass_.name)
            noun = result
        return noun

    def names(self) -> tuple[str, ...]:
        """Names of the plugins that are in use, in registration order."""
        return tuple(n for n in self._rank_order() if self._sources[n].status in ("builtin", "external"))

    def listing(self, options: OptionsView | None = None) -> list[PluginInfo]:
        """One row per plugin, blocked and failed ones included. ``options``: to list passes too (they depend on it)."""
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
                    hooks=self._hooks.get(source.name, ()) if running else (),
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
                given = _sequence_of(Pass)(impl.function(*[options for _ in impl.arguments]) or ())
                passes[impl.plugin] = tuple(replace(p, plugin=impl.plugin) for p in given)
            except Exception as cause:
                faults[impl.plugin] = describe(cause)
        try:
            sort_passes([p for given in passes.values() for p in given])
        except PassOrderError as error:
            faults |= dict.fromkeys(error.plugins, error.what)
        return passes, faults

    def errors(self) -> list[PluginError]:
        """Why plugins failed, for those that did (only with ``on_plugin_error="disable"``)."""
        return [s.error for s in self._sources.values() if s.error is not None]


# -------------------------------------------------------------------------------------------------- checks of results


def _anything(result: Any) -> Any:
    return result


def _fingerprint(result: Any) -> str | Uncacheable:
    if not isinstance(result, (str, Uncacheable)):
        raise TypeError(f"returned {type(result).__name__}; a text, Uncacheable or None is expected")
    return result


def _mapping(result: Any) -> Mapping[Any, Any]:
    if not isinstance(result, Mapping):
        raise TypeError(f"returned {type(result).__name__}; a mapping is expected")
    return result


@functools.cache
def _one(kind: type[T]) -> Callable[[Any], T]:
    def check(result: Any) -> T:
        if not isinstance(result, kind):
            raise TypeError(f"returned {type(result).__name__}; {kind.__name__} or None is expected")
        return result

    return check


@functools.cache
def _sequence_of(kind: type[T]) -> Callable[[Any], tuple[T, ...]]:
    def check(result: Any) -> tuple[T, ...]:
        items = (result,) if isinstance(result, (str, bytes, kind)) else tuple(result)
        for item in items:
            if not isinstance(item, kind) or item is result:
                raise TypeError(f"returned {type(item).__name__}; a list of {kind.__name__} is expected")
        return items

    return check
