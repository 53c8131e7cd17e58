"""Checks of a plugin's hook functions before they are registered, each with an error that says what to write instead.

pluggy checks less and later: an unknown hook only when asked to (`check_pending`), and a parameter with a default value
not at all (it silently keeps the default).
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from operator import is_, itemgetter
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import pluggy

from litz_plugins import deprecations, hookspecs, places
from litz_plugins.deprecations import current_hook, warn_of, why_gone
from litz_plugins.errors import HookSignatureError, PluginLoadError, UnknownHookError, nearest

Signatures = Mapping[str, tuple[str, ...]]


def _hook_signatures() -> dict[str, tuple[str, ...]]:
    """Returns the parameters of each hook, by the hook's name, read from the specs."""
    return {
        name: tuple(inspect.signature(spec).parameters)
        for name, spec in vars(hookspecs).items()
        if name.startswith("litz_") and hasattr(spec, f"{hookspecs.PROJECT}_spec")
    }


HOOKS: Signatures = _hook_signatures()
_OF_EVERY = frozenset((*dir(object), *dir(ModuleType)))
"""Attributes of every object or module, none of them a hook. Most of a small plugin's are, and a look takes long."""
_DATA = frozenset((str, int, float, bool, type(None), tuple, list, dict, set, frozenset))
_HOLDERS = frozenset((FunctionType, type, ModuleType))
"""Types of attributes that are no hook, and no hook without its marker."""
_CHECKED: MutableMapping[ModuleType, tuple[list[Any], dict[str, str]]] = WeakKeyDictionary()
"""What `check_hooks` has found right in a module with these names and values: each compile asks about each plugin."""
_OF_WRAPPERS = frozenset(("__wrapped__", "__signature__"))
"""Attributes of functions whose parameters are said to be others."""


def check_hooks(manager: pluggy.PluginManager, plugin: str, obj: object, dist: str) -> dict[str, str]:
    """Returns the hook that each attribute of ``obj`` implements, by the attribute's name. Errors: PluginLoadError if
    ``obj`` is a class; UnknownHookError; HookSignatureError."""
    if inspect.isclass(obj):
        raise PluginLoadError(
            plugin,
            dist,
            f"it names the class {obj.__name__}; a plugin is a module or an instance, e.g. {obj.__name__}()",
        )
    if type(obj) is not ModuleType or deprecations.DEPRECATIONS:
        return _checked_hooks(manager, plugin, obj, dist)
    now, (before, known) = [*vars(obj), *vars(obj).values()], _CHECKED.get(obj, ([], {}))
    if len(now) != len(before) or not all(map(is_, now, before)):
        known = _checked_hooks(manager, plugin, obj, dist)
        _CHECKED[obj] = now, known
    return known.copy()


def _checked_hooks(manager: pluggy.PluginManager, plugin: str, obj: object, dist: str) -> dict[str, str]:
    found = {}
    for attribute in _candidates(obj):
        try:
            marker = manager.parse_hookimpl_opts(obj, attribute)
        except Exception:  # an attribute that cannot even be read is no hook
            continue
        if marker is None:
            _check_forgotten_marker(plugin, obj, attribute, dist)
            continue
        hook = marker.get("specname") or attribute
        if hook not in HOOKS:
            if marker.get("optionalhook"):  # the author says: only in a litz that has it
                continue
            raise UnknownHookError(plugin, hook, HOOKS, dist=dist, gone=why_gone(hook))
        if marker.get("wrapper") or marker.get("hookwrapper"):
            raise HookSignatureError(
                plugin, hook, "is a wrapper, which litz does not support: each result has one author", dist=dist
            )
        _check_parameters(plugin, hook, getattr(obj, attribute), dist)
        _warn_of_deprecated(plugin, obj, attribute, hook, dist)
        found[attribute] = hook
    return found


def _candidates(obj: object) -> Iterable[str]:
    """The attributes of which one may be a hook, or lack a hook's marker: of a module few, and each compile asks."""
    if type(obj) is not ModuleType:
        return dir(obj)
    marker, listed = f"{hookspecs.PROJECT}_impl", sorted(vars(obj).items(), key=itemgetter(0))
    return [
        name
        for name, value in listed
        if name in HOOKS or not (type(value) in _DATA or (type(value) in _HOLDERS and marker not in vars(value)))
    ]


class _Held:
    """The hook functions of a plugin. pluggy takes two plugins that are equal for one and the same, and two
    SimpleNamespaces of equal content are; two of these never are."""

    def __init__(self, obj: object, attributes: Iterable[str]) -> None:
        vars(self).update({name: getattr(obj, name) for name in attributes})

    def __dir__(self) -> Iterable[str]:
        """The names of the functions alone: pluggy looks at each."""
        return vars(self)


class Registry(pluggy.PluginManager):
    """pluggy's registry, in which a function with a deprecated hook's name is an implementation of the hook that took
    its place."""

    def admit(self, obj: object, name: str, attributes: Iterable[str]) -> None:
        """Registers the hooks that `check_hooks` has found in a plugin, whatever other plugin it is equal to."""
        self.register(_Held(obj, attributes), name=name)

    def check_known(self) -> None:
        """Raises UnknownHookError for a function of no hook, though `check_hooks` lets none through."""
        try:
            self.check_pending()
        except pluggy.PluginValidationError as cause:
            raise UnknownHookError(self.get_name(cause.plugin) or "?", str(cause), HOOKS) from cause

    def asked(self, hook: str) -> Sequence[Any]:
        """Returns the functions of a hook in calling order."""
        return places.asked(self._as_registered(hook))

    def misplaced(self, dists: Mapping[str, str]) -> HookSignatureError | None:
        """Returns the error of a plugin whose place among those of a hook cannot be; None where all can be. dists: of
        all plugins, by name."""
        for hook in HOOKS:
            wrong = places.misplaced(self._as_registered(hook), dists)
            if wrong is not None:
                return HookSignatureError(wrong[0], hook, wrong[1], dist=dists[wrong[0]])
        return None

    def _as_registered(self, hook: str) -> list[Any]:
        return getattr(self.hook, hook).get_hookimpls()[::-1]  # pluggy calls the last one first

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Returns the options of a hook implementation, with a renamed hook's present name; None for a function without
        the marker."""
        unmarked = name in _OF_EVERY or _seen_unmarked(plugin, name, f"{hookspecs.PROJECT}_impl")
        options = None if unmarked else super().parse_hookimpl_opts(plugin, name)
        return None if options is None else {**options, "specname": current_hook(options.get("specname") or name)}

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        """Returns the options of a hook's specification; None for what is none."""
        marker, spec = f"{hookspecs.PROJECT}_spec", vars(module_or_class).get(name)
        return vars(spec).get(marker) if isinstance(spec, FunctionType) else None


def _is_plain(function: Any, allowed: Collection[str]) -> bool:
    """Returns whether each parameter of a function is allowed by its name, and none has a default. False where only
    `inspect.signature`, which takes long, can say."""
    inner = getattr(function, "__func__", function)
    if type(inner) is not FunctionType or not _OF_WRAPPERS.isdisjoint(vars(inner)):
        return False
    code, names = inner.__code__, inner.__code__.co_varnames
    taken = names[inner is not function : code.co_argcount + code.co_kwonlyargcount]
    gathers = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return not gathers and not inner.__defaults__ and not inner.__kwdefaults__ and set(taken) <= set(allowed)


def _seen_unmarked(holder: object, name: str, marker: str) -> bool:
    """Returns whether `name` is a function, class or module without a marker in a module: most of what a plugin's
    module has. pluggy takes longer to say so, of hundreds of names in each compile."""
    value = vars(holder).get(name) if type(holder) is ModuleType else None
    return isinstance(value, (FunctionType, type, ModuleType)) and marker not in vars(value)


def _warn_of_deprecated(plugin: str, obj: object, attribute: str, hook: str, dist: str) -> None:
    if not deprecations.DEPRECATIONS:
        return
    function = getattr(obj, attribute)
    by = f"plugin {plugin!r} ({dist})" if dist else f"plugin {plugin!r}"
    named = getattr(function, f"{hookspecs.PROJECT}_impl").get("specname") or attribute
    warn_of("hook", named, by)
    for parameter in inspect.signature(function).parameters:
        warn_of("parameter", f"{hook}.{parameter}", by)


def spec_text(hook: str) -> str:
    """Returns a hook's signature as an author would write it: "litz_register_passes(options)"."""
    return f"{hook}({', '.join(HOOKS[hook])})"


def _check_forgotten_marker(plugin: str, obj: object, attribute: str, dist: str) -> None:
    # A function with a hook's name and no @hookimpl would never be called, and nobody would say so.
    if attribute not in HOOKS:
        return
    function = getattr(obj, attribute, None)
    if inspect.isroutine(function) and not hasattr(function, f"{hookspecs.PROJECT}_spec"):
        raise HookSignatureError(plugin, attribute, "lacks its marker: write @hookimpl above it", dist=dist)


def _check_parameters(plugin: str, hook: str, function: Any, dist: str) -> None:
    allowed = HOOKS[hook]
    if _is_plain(function, allowed):
        return
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            problem = f"takes {parameter}, but arguments are passed by name"
        elif name not in allowed:
            near = nearest(name, allowed)
            problem = f"has a parameter {name!r} that the hook does not" + (
                f" (did you mean {near!r}?)" if near else ""
            )
        elif parameter.default is not parameter.empty:
            problem = f"gives its parameter {name!r} a default value, which would hide the argument"
        else:
            continue
        raise HookSignatureError(plugin, hook, problem, spec=spec_text(hook), dist=dist)
