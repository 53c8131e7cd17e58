"""Who takes part, and how they are called: in, the sources of plugins; out, what their hook functions return, which are
called one by one, so that each failure is one plugin's.

pluggy keeps the registry and the calling order. Functions are called from here rather than through its multicall, so
that a hook that runs thousands of times a compile costs one Python call per plugin that has it.

`litz_plugins.manager.Plugins` is a `Roster` with a typed method per hook. What plugins hand over to be called later
(lowerings, templates, code generators) is called through `blamed` and `blaming`. With ``on_plugin_error="disable"`` a
plugin that fails is left out for the rest of the process; who was making something with it begins anew, since
`failures` has grown.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

from litz_plugins import hookspecs, quarantine, strict, threads
from litz_plugins.blame import Blamed, Call, Called
from litz_plugins.errors import (
    DuplicatePluginError,
    DuplicateRegistrationError,
    LitzError,
    PassOrderError,
    PluginError,
    PluginHookError,
    PluginLoadError,
    PluginWarning,
)
from litz_plugins.ledger import Ledger
from litz_plugins.loading import Source
from litz_plugins.nouns import Noun, OptionsView
from litz_plugins.raised import package_of
from litz_plugins.records import OptionSpec
from litz_plugins.unchanged import FieldsSnapshot, Snapshot, take
from litz_plugins.validate import Registry, check_hooks
from litz_plugins.watchdog import SLOW

LOGGER = logging.getLogger("litz.plugins")
"""Says which plugin takes long."""

T = TypeVar("T")
OnError = Literal["raise", "disable"]

SECONDS = 600.0
"""The seconds that one call of a plugin may take, unless the option `plugin_seconds` says otherwise."""
STORE_SECONDS = 90.0
"""The seconds that one call of a store may take: more than a rank waits for another's kernel."""
MEASURING = frozenset({"litz_partition", "litz_select_choice", "litz_tune"})
"""Hooks that may take as long as they like: what is measured takes its time, and has limits of its own."""
HANDED = {
    "litz_compile_started": ("graph",),
    "litz_compile_failed": ("graph",),
    "litz_pass_finished": ("before", "after"),
    "litz_select_choice": ("context",),
    "litz_select_layout": ("graph",),
    "litz_estimate_runtime": ("operation", "program"),
}
"""The nouns that a hook is handed, by the names of its parameters; of a context, what hangs on it."""
WITHIN = {"context": ("operation", "program")}
"""The nouns that hang on a parameter that is none itself."""
OFTEN = frozenset({"litz_estimate_runtime", "litz_select_choice"})
"""Hooks that are called for each operation: of a noun that these are handed only its own fields are compared."""
QUESTION = ("operation", "program")
"""The parameters of most hooks that are asked about an operation."""
REMEMBERED = 8
"""Snapshots that are kept. A Program, which is handed over with each of its operations, is among them, and has one."""
Handed: TypeAlias = dict[tuple[str, ...], Sequence[Snapshot]]
"""The state of nouns, by the names of the parameters under which a plugin is handed them."""


@dataclass(frozen=True)
class _Impl:
    """One plugin's function for one hook. arguments: the parameters it takes, in order. handed: those of them that are
    nouns, which it must leave as they are."""

    plugin: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    handed: tuple[str, ...]
    rank: int  # its place where plugins are taken in registration order: built-ins, then the others as they are asked
    builtin: bool

    @functools.cached_property
    def given(self) -> Callable[[Mapping[str, Any]], Iterable[Any]]:
        """Takes the arguments of this function, in order, from those of the hook. In C where there are several."""
        names = self.arguments
        return operator.itemgetter(*names) if len(names) > 1 else lambda known: [known[name] for name in names]


class Roster:
    """The plugins of one process or test, and calls of them.

    Not safe for use by several threads while plugins may still be disabled; reading hooks concurrently is.
    """

    def __init__(self, sources: Sequence[Source], on_plugin_error: OnError = "raise", seconds: float = SECONDS) -> None:
        self._on_error = on_plugin_error
        self.seconds = seconds
        self.failures = 0
        """The number of plugins left out since this was made."""
        self.ledger = Ledger()
        """The time that the calls took."""
        self.watchers: list[Callable[[Called], None]] = []
        """Told of each call of a plugin when it has ended, and of passes of core's; after the ledger."""
        self.slow_call = ""
        """The call of a plugin that has been running for more than a second, in words."""
        self.traced = False
        """True if watchers are told of core's hooks, too."""
        self._manager = Registry(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._sources: dict[str, Source] = {}
        self._hooks: dict[str, dict[str, str]] = {}
        """By plugin: the hook that each of its attributes implements."""
        self._impls: dict[str, tuple[_Impl, ...]] = {}
        self._taken: dict[str, dict[tuple[str, ...], Callable[[Mapping[str, Any]], Sequence[Snapshot]]]] = {}
        self._option_specs: dict[str, tuple[OptionSpec, ...]] | None = None
        self._known: dict[tuple[str, int], tuple[Any, list[Any]]] = {}
        self._ruled: dict[tuple[str, bool], tuple[list[tuple[str, Mapping[Any, Any]]], dict[Any, Any]]] = {}
        self._snapshots = OrderedDict[tuple[int, bool], tuple[Noun, Snapshot]]()
        self._stale = set[tuple[int, bool]]()
        self._told_of: Noun = None
        for source in sources:
            self._admit(source)
        self._register()

    # ------------------------------------------------------------------------------------------------------- loading

    def _admit(self, source: Source) -> None:
        other = self._sources.get(source.name)
        if other is not None and "blocked" not in (other.status, source.status):
            raise DuplicatePluginError(source.name, [other.origin, source.origin])
        error, tried = source.error, source.status == "failed" and source.tried
        if self._on_error == "disable" and source.obj is not None and source.status != "builtin":
            found = quarantine.reason(source.obj)
            error, tried = found, found is not None
        if source.obj is not None and not tried:
            try:
                same = next((other for other in self._sources.values() if other.obj is source.obj), None)
                if same is not None:
                    problem = f"its object is that of plugin {same.name!r} ({same.origin}) already"
                    repair = "" if source.dist else "pass in one object for each name"
                    raise PluginLoadError(source.name, source.origin, problem, repair=repair)
                self._hooks[source.name] = check_hooks(self._manager, source.name, source.obj, source.origin)
            except PluginError as caught:
                error = caught
        if error is not None:
            if self._on_error == "raise" or source.status == "builtin":
                raise error
            if not tried:
                self._warn(error)
                if source.obj is not None:
                    quarantine.add(source.obj, error)
            source = replace(source, obj=None, status="failed", error=error)
        self._sources[source.name] = source

    def _register(self) -> None:
        # pluggy calls the plugin that was registered last first. Registering backwards makes the calling order: plugins
        # passed in, then by name, then core's own in the order given.
        loaded = [s for s in self._sources.values() if s.obj is not None]
        order = [s for s in loaded if s.status != "builtin"] + [s for s in loaded if s.status == "builtin"]
        for source in reversed(order):
            self._manager.admit(source.obj, source.name, self._hooks[source.name])
        self._manager.check_known()
        while (wrong := self._manager.misplaced({s.name: s.dist for s in self._sources.values()})) is not None:
            if self._on_error == "raise":
                raise wrong
            self._drop(wrong.plugin, wrong)

    def _warn(self, error: PluginError) -> None:
        warnings.warn(f"litz goes on without a plugin: {error.warning}", PluginWarning, stacklevel=3)

    # ------------------------------------------------------------------------------------------------------- calling

    def _implementations(self, hook: str) -> tuple[_Impl, ...]:
        """The functions of a hook in calling order."""
        impls = self._impls.get(hook)
        if impls is None:
            ranks = {name: i for i, name in enumerate(self._rank_order())}
            found = self._manager.asked(hook)
            impls = tuple(
                _Impl(
                    i.plugin_name,
                    i.function,
                    tuple(i.argnames),
                    () if self.is_builtin(i.plugin_name) else tuple(n for n in HANDED.get(hook, ()) if n in i.argnames),
                    ranks[i.plugin_name] if self.is_builtin(i.plugin_name) else len(ranks) + place,
                    self.is_builtin(i.plugin_name),
                )
                for place, i in enumerate(found)
            )
            self._impls[hook] = impls
            self._taken[hook] = {impl.handed: self._taker(hook, impl.handed) for impl in impls if impl.handed}
        return impls

    def _rank_order(self) -> list[str]:
        builtin = [s.name for s in self._sources.values() if s.status == "builtin"]
        return builtin + [s.name for s in self._sources.values() if s.status != "builtin"]

    def answering(self, hook: str) -> frozenset[str]:
        """Returns the names of the plugins that have a hook, and calls none."""
        return frozenset(impl.plugin for impl in self._implementations(hook))

    def _each(
        self,
        hook: str,
        arguments: Mapping[str, Any],
        check: Callable[[Any], T],
        *,
        by_rank: bool = False,
        builtin: bool | None = None,
    ) -> list[tuple[str, T]]:
        """(plugin, checked result) of every plugin that has the hook and returns something. builtin: of the built-in
        ones alone, or of the others alone."""
        impls = [impl for impl in self._implementations(hook) if builtin is None or impl.builtin == builtin]
        asked = self._by_rank(impls, by_rank)
        nouns = self._handed(hook, arguments)
        place, found = 0, list[tuple[str, T]]()
        while place < len(asked):
            place, result = self._ask_on(asked, place, hook, arguments, check, nouns)
            if result is not None:
                found.append(result)
        return found

    def _first(
        self, hook: str, arguments: Mapping[str, Any], check: Callable[[Any], T], builtin: bool = True
    ) -> tuple[str, T] | None:
        """(plugin, checked result) of the first plugin whose result is not None. builtin: built-in ones too."""
        impls = self._implementations(hook)
        nouns = self._handed(hook, arguments)
        place, found = 0, None
        while place < len(impls) and found is None:
            if impls[place].builtin and not builtin:
                place += 1
            else:
                place, found = self._ask_on(impls, place, hook, arguments, check, nouns)
        return found

    def _ask_on(
        self,
        impls: Sequence[_Impl],
        place: int,
        hook: str,
        arguments: Mapping[str, Any],
        check: Callable[[Any], T],
        nouns: Handed,
    ) -> tuple[int, tuple[str, T] | None]:
        """As `_ask`, of the plugins from a place on, until one answers, fails or is built in; with the place of the
        next. One guarded call makes all their calls, as one for each would take longer than most plugins."""
        impl, found = impls[place], None
        if impl.builtin:
            return place + 1, self._ask(impl, hook, arguments, check, nouns)
        seconds = 0.0 if hook in MEASURING else None
        with Call(self, impl.plugin, hook, nouns[impl.handed], goes_on=True, seconds=seconds) as call:
            while True:
                place += 1
                result = call.result = impl.function(*impl.given(arguments))
                if result is not None:
                    found = impl.plugin, check(result)
                    break
                if place == len(impls) or impls[place].builtin:
                    break
                impl = impls[place]
                call.turn(impl.plugin, nouns[impl.handed])
        return place, None if call.failed else found

    @staticmethod
    def _by_rank(impls: Sequence[_Impl], by_rank: bool) -> Sequence[_Impl]:
        return sorted(impls, key=lambda impl: impl.rank) if by_rank else impls

    def _ask(
        self,
        impl: _Impl,
        hook: str,
        arguments: Mapping[str, Any],
        check: Callable[[Any], T],
        nouns: Handed,
    ) -> tuple[str, T] | None:
        """(plugin, checked result) of one plugin; None where it returns None, or fails and is left out. nouns: what
        those that it may be handed were."""
        given = impl.given(arguments)
        if impl.builtin and not self.traced:
            try:
                result = impl.function(*given)
                return None if result is None else (impl.plugin, check(result))
            except Exception as cause:
                self.failed(impl.plugin, hook, cause)
        seconds, found = 0.0 if impl.builtin or hook in MEASURING else None, None
        with Call(self, impl.plugin, hook, nouns[impl.handed], goes_on=True, seconds=seconds) as call:
            result = call.result = impl.function(*given)
            if result is not None:
                found = impl.plugin, check(result)
        return None if call.failed else found

    def _from_store(
        self, impl: _Impl, hook: str, arguments: Mapping[str, Any], check: Callable[[Any], T | None]
    ) -> T | None:
        """Returns what a plugin's store has, checked; None where the call fails, which costs the store, and no more.
        Any thread may call this, and the plugin runs in another, which is left behind where it hangs."""
        source, begun, failed = self._sources[impl.plugin], time.perf_counter(), False
        if quarantine.is_closed(source.obj):
            return None
        limit, found = min(self.seconds or STORE_SECONDS, STORE_SECONDS), None
        try:
            result = threads.within(limit, lambda: impl.function(*impl.given(arguments)))
            found = None if result is None else check(result)
        except (Exception, SystemExit) as cause:
            failed = True
            quarantine.close_store(source.obj)
            error = self._hook_error(source, hook, cause)
            warnings.warn(f"litz goes on without what a plugin keeps: {error.warning}", PluginWarning, stacklevel=3)
        seconds = time.perf_counter() - begun
        self.ledger.in_turn(hook, [(impl.plugin, begun, seconds)], failed)
        for watcher in self.watchers:
            watcher(Called(impl.plugin, hook, begun, seconds, found, failed))
        return found

    def _handed(self, hook: str, arguments: Mapping[str, Any]) -> Handed:
        """Returns the snapshots of the nouns that the hook's plugins are handed."""
        found: Handed = {(): ()}
        for handed, taker in self._taken[hook].items():
            found[handed] = taker(arguments)
        return found

    def _taker(self, hook: str, handed: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Sequence[Snapshot]]:
        """Returns a function that takes the snapshots of the nouns of these names: made once, for all questions."""
        if handed == QUESTION and hook in OFTEN:
            # An operation is asked about once, or is another by then: its snapshot is not worth remembering.
            return lambda known: (FieldsSnapshot(known["operation"]), self._snapshot(known["program"], False))

        def taken(known: Mapping[str, Any]) -> Sequence[Snapshot]:
            nouns: list[Noun] = []
            for name in handed:
                if name in WITHIN:
                    nouns += [getattr(known[name], within, None) for within in WITHIN[name]]
                # What was the result of the pass before was looked at when that had ended.
                elif not (name == "before" and known[name] is self._told_of):
                    nouns.append(known[name])
            return self.snapshots(nouns, deep=hook not in OFTEN)

        return taken

    def snapshots(self, nouns: Iterable[Noun], *, deep: bool) -> list[Snapshot]:
        """Returns snapshots of nouns that a plugin is about to be handed. A noun that is None has none."""
        return [self._snapshot(noun, deep) for noun in nouns if noun is not None]

    def _snapshot(self, noun: Noun, deep: bool) -> Snapshot:
        key = id(noun), deep
        known = self._snapshots.get(key)
        if key in self._stale:
            self._stale.remove(key)
            # Most are as they were, and to look takes a quarter of the time of a new snapshot.
            if known is not None and known[1].change():
                del self._snapshots[key]
                known = None
        if known is None:
            known = self._snapshots[key] = noun, take(noun, deep=deep)  # with the noun, whose id it is
            if len(self._snapshots) > REMEMBERED:  # the one that was asked for longest ago
                self._snapshots.popitem(last=False)
        else:
            self._snapshots.move_to_end(key)
        return known[1]

    def _doubt_changeable(self) -> None:
        """Snapshots of nouns that are not frozen (an FX graph) are looked at before they are used again: outside of a
        stage's passes, which are pure, such a noun may be changed by whom it belongs to."""
        self._stale |= {key for key, (noun, _) in self._snapshots.items() if hasattr(type(noun), "snapshot")}

    def blaming(
        self, plugin: str, what: str, *, nouns: Sequence[Noun] = (), seconds: float | None = None, node: str = ""
    ) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which a plugin's function is called, and what it returned is checked: a failure inside
        is that plugin's. PluginHookError, or `litz_plugins.blame.LeftOut` where the plugin is left out instead. Nothing
        for a built-in plugin. what, node, seconds: as of `litz_plugins.blame.Call`."""
        if self.is_builtin(plugin):
            return contextlib.nullcontext()
        return Call(self, plugin, what, self.snapshots(nouns, deep=True), seconds=seconds, node=node)

    def blamed(
        self,
        plugin: str,
        what: str,
        function: Callable[..., Any],
        passes: tuple[type[BaseException], ...] = (),
        check: Callable[[Any], Any] | None = None,
        handed: Callable[..., Sequence[Snapshot]] | None = None,
    ) -> Callable[..., Any]:
        """Returns a plugin's function as `Blamed`, to be called later; a built-in plugin's function as it is."""
        return function if self.is_builtin(plugin) else Blamed(self, plugin, what, function, passes, check, handed)

    def failed(self, plugin: str, what: str, cause: BaseException, node: str = "") -> None:
        """Raises an error that names the plugin that failed, or leaves the plugin out and returns."""
        source = self._sources[plugin]
        if source.status == "builtin" and isinstance(cause, LitzError):
            raise cause  # core's own errors already say what happened
        error = self._hook_error(source, what, cause, node)
        if self._on_error == "raise" or source.status == "builtin":
            raise error
        if source.status != "failed":
            self._drop(plugin, error)

    @staticmethod
    def _hook_error(source: Source, what: str, cause: BaseException, node: str = "") -> PluginHookError:
        known: dict[str, Any] = {"dist": source.origin, "builtin": source.status == "builtin", "node": node}
        known |= {"package": package_of(source.obj), "repair": _repair(source, cause)}
        error = PluginHookError(source.name, what, cause, **known)
        error.__cause__ = cause
        return error

    def slow(self, plugin: str, what: str) -> None:
        """Names a call of more than a second, while it runs, in the log and to whoever shows progress."""
        self.slow_call = f"plugin {plugin}: {what}"
        level = logging.INFO if what in MEASURING else logging.WARNING
        LOGGER.log(level, "plugin %r (%s) has been in %s for %g s", plugin, self.source_of(plugin).origin, what, SLOW)

    def slow_ended(self, plugin: str, what: str, seconds: float) -> None:
        """Notes in the log that a slow call has ended, after `seconds`."""
        self.slow_call = ""
        LOGGER.info("plugin %r was in %s for %.1f s", plugin, what, seconds)

    def error_of(self, plugin: str) -> PluginError:
        """Returns why a plugin was left out. Raises KeyError for a plugin that was not."""
        error = self._sources[plugin].error
        if error is None:
            raise KeyError(plugin)
        return error

    def source_of(self, plugin: str) -> Source:
        """Returns where a plugin comes from. Raises KeyError for a name that no plugin has."""
        return self._sources[plugin]

    @property
    def goes_on(self) -> bool:
        """Returns whether plugins that fail are left out, in place of an error."""
        return self._on_error == "disable"

    def is_builtin(self, plugin: str) -> bool:
        """Returns whether a plugin is core's own. So is whoever decides under a name that no plugin has ("core")."""
        source = self._sources.get(plugin)
        return source is None or source.status == "builtin"

    def leave_out_failed(self) -> None:
        """Leaves out the plugins that have failed elsewhere in this process meanwhile."""
        if self._on_error == "disable" and quarantine.size():
            for source in list(self._sources.values()):
                error = quarantine.reason(source.obj) if source.status == "external" else None
                if error is not None:
                    self._drop(source.name, error, warn=False)

    def _drop(self, plugin: str, error: PluginError, *, warn: bool = True) -> None:
        if warn:
            self._warn(error)
        source = self._sources[plugin]
        if source.obj is not None:
            quarantine.add(source.obj, error)
            self._manager.unregister(name=plugin)
        self._sources[plugin] = replace(source, obj=None, status="failed", error=error)
        self._impls.clear()
        self._taken.clear()
        self._known.clear()
        self.failures += 1

    # --------------------------------------------------------------------------------------------- what is registered

    def _registered(
        self, hook: str, check: Callable[[Any], T], options: OptionsView | None = None
    ) -> list[tuple[str, T]]:
        """Returns what every plugin registers, in registration order. Asked once, and once more for other options."""
        key = hook, id(options)
        if key not in self._known:
            results = self._each(hook, {"options": options}, check, by_rank=True)
            self._known[key] = options, results  # with the options, so that no others get their id
        return self._known[key][1]

    def _registered_rules(self, hook: str, check: Callable[[Any], T], core: bool) -> list[tuple[str, T]]:
        """As `_registered`, but core's own are asked each time, and if `core`: torch defines some ops when they are
        first used, and core's tables grow by those."""
        if (hook, 0) not in self._known:
            self._known[hook, 0] = None, self._each(hook, {}, check, by_rank=True, builtin=False)
        own = self._each(hook, {}, check, by_rank=True, builtin=True) if core else []
        return [*own, *self._known[hook, 0][1]]

    def _rules(
        self,
        hook: str,
        kind: str,
        check: Callable[[Any], Mapping[Any, Any]],
        passes: tuple[type[BaseException], ...],
        core: bool,
    ) -> dict[Any, Callable[..., Any]]:
        """Op -> function of the plugin that registers one, whose failures name the plugin. core: core's, too. Each
        graph asks several times for the same thousand, which are checked and merged once."""
        before, table = self._ruled.get((hook, core), ([], {}))

        def checked(given: Mapping[Any, Any]) -> Mapping[Any, Any]:
            return given if any(given == known for _, known in before) else check(given)

        def merged() -> tuple[list[tuple[str, Mapping[Any, Any]]], dict[Any, Any]]:
            results = self._registered_rules(hook, checked, core)
            if results == before:
                return before, table
            if not core:
                found = self._merge(f"{kind} of", results)
                return results, {op: rule(op, *registered) for op, registered in found.items()}
            own = [(name, given) for name, given in results if self.is_builtin(name)]
            united: dict[Any, Any] = {}
            for _, given in own if len(own) < 2 or self._merge(f"{kind} of", own) else ():
                united.update(given)  # from a dict, without a look at the hash of each of a thousand ops
            return results, united | self._rules(hook, kind, check, passes, core=False)

        def rule(op: Any, plugin: str, function: Any) -> Any:
            return function and self.blamed(plugin, f"{kind} of {op}", function, passes)

        self._ruled[hook, core] = self._joined(hook, merged)
        return self._ruled[hook, core][1]

    def _narrowed(
        self,
        hook: str,
        kind: str,
        registered: dict[Any, T],
        options: OptionsView | None,
        passes: tuple[type[BaseException], ...] = (),
    ) -> dict[Any, T]:
        """Returns what plugins leave for a compile of what is registered, by the hook; all of it where no options are
        given. The plugins are asked again only where something else is registered, which is another dict then."""
        impls = self._implementations(hook) if options is not None else ()
        if not impls:
            return registered
        asked = f"{hook} {kind}", id(options)
        known = self._known.get(asked)
        if known is not None and known[1][0] is registered:
            return known[1][1]
        left = registered
        for impl in impls:
            before = left

            def checked(given: Any, before: dict[Any, T] = before) -> Mapping[Any, Any]:
                return strict.narrowed(given, before, kind)

            arguments = {"kind": kind, "registered": MappingProxyType(before), "options": options}
            found = self._ask(impl, hook, arguments, checked, {(): ()})
            if found is not None:
                own: dict[Any, Any] = {
                    key: value if value is before[key] else self.blamed(impl.plugin, f"{kind} of {key}", value, passes)
                    for key, value in found[1].items()
                }
                left = own
        self._known[asked] = options, [registered, left]
        return left

    def _joined(self, hook: str, make: Callable[[], T]) -> T:
        """Returns what `make` makes of what all plugins register. Where two clash, with "disable", the later one is
        left out, and it is made again."""
        while True:
            try:
                return make()
            except (DuplicateRegistrationError, PassOrderError) as clash:
                blamed = [name for name in clash.plugins if name and not self.is_builtin(name)]
                if self._on_error == "raise" or not blamed:
                    raise
                last = max(blamed, key=self._rank_order().index)
                self.failed(last, hook, clash)

    def _merge(
        self, kind: str, results: Iterable[tuple[str, Mapping[Any, T]]], names: Callable[[Any], str] = str
    ) -> dict[Any, tuple[str, T]]:
        """Merge mappings by key, to (plugin, value): plugins replace built-ins, and two of a kind for one key is an
        error."""
        merged: dict[Any, tuple[str, T]] = {}
        for plugin, given in results:
            for key, value in given.items():
                known = merged.setdefault(key, new := (plugin, value))  # one look: each op takes long to hash
                if known is not new:
                    if self.is_builtin(known[0]) == self.is_builtin(plugin):
                        raise DuplicateRegistrationError(kind, names(key), [known[0], plugin])
                    merged[key] = new
        return merged


def _repair(source: Source, cause: BaseException) -> str:
    """Returns what to do about a plugin's failure, '' for its authors to know."""
    if isinstance(cause, (DuplicateRegistrationError, PassOrderError)) and len(set(cause.plugins)) > 1:
        return cause.todo  # each of the two may be right
    if isinstance(cause, LitzError) and cause.todo and package_of(type(cause)) == package_of(source.obj):
        return cause.todo  # an error that the plugin itself raises for its users
    return "" if source.dist else "mend the plugin where it is passed in"
