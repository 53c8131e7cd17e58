"""Every error that loading, ordering or calling plugins can end in.

Each takes structured fields (strings, so that an error can be pickled to a parent process or another rank) and builds
one message that says what happened, who did it and what to do. The original exception, where there is one, is chained
as ``__cause__``; it does not travel through pickle, its text does.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = [
    "DuplicatePluginError",
    "DuplicateRegistrationError",
    "HookSignatureError",
    "LitzError",
    "PassOrderError",
    "PluginError",
    "PluginHookError",
    "PluginLoadError",
    "PluginWarning",
    "UnknownHookError",
    "describe",
    "nearest",
]


class LitzError(Exception):
    """Base of every error that litz raises on purpose.

    what: one sentence saying what went wrong. where: the plugin, op, file or stage, if known. todo: what to do about
    it, if something can be done. All three are attributes; ``str(error)`` joins them, one per line. origin: what in
    the user's model it is about, "layers.3.mlp.fc1 (model.py:41)", once it is known (``set_origin``). reproduce: the
    command that shows the error again, once it is known (``set_reproduction``).
    """

    def __init__(self, what: str, *, where: str = "", todo: str = "") -> None:
        self.what = what
        self.where = where
        self.todo = todo
        self.origin = ""
        self.reproduce = ""
        super().__init__(self._message())

    def set_origin(self, origin: str) -> None:
        """Add to the message what in the user's model the error is about."""
        self.origin = origin
        self.args = (self._message(),)

    def set_reproduction(self, command: str) -> None:
        """Add the command that shows the error again to the message."""
        self.reproduce = command
        # In the message and not a note: dynamo passes on nothing but the message.
        self.args = (self._message(),)

    def _message(self) -> str:
        parts = (("from", self.origin), ("where", self.where), ("to do", self.todo), ("reproduce", self.reproduce))
        return "\n".join([self.what, *(f"  {name}: {text}" for name, text in parts if text)])

    def __reduce__(self) -> tuple[Any, ...]:
        # The default rebuilds an exception by calling its class with `args`, which fails for any class whose __init__
        # takes other arguments. Fields are restored as they are instead, so that no subclass has to think of it.
        return (_rebuild, (type(self), self.args, dict(vars(self))))


def _rebuild(cls: type[LitzError], args: tuple[Any, ...], fields: dict[str, Any]) -> LitzError:
    error = cls.__new__(cls)
    error.args = args
    vars(error).update(fields)
    return error


class PluginWarning(UserWarning):
    """A plugin was left out or went wrong, and litz goes on without it (``on_plugin_error="disable"``)."""


class PluginError(LitzError):
    """Base of the errors that a plugin is to blame for. ``plugin`` is its name."""

    def __init__(self, plugin: str, what: str, *, where: str = "", todo: str = "") -> None:
        self.plugin = plugin
        super().__init__(what, where=where, todo=todo)


class PluginLoadError(PluginError):
    """An entry point could not be imported, or what it names is no plugin."""

    def __init__(self, plugin: str, dist: str, cause: BaseException | str, *, entry_point: str = "") -> None:
        self.dist = dist
        self.cause = describe(cause)
        self.entry_point = entry_point
        super().__init__(
            plugin,
            f"plugin {plugin!r} could not be loaded: {self.cause}",
            where=f"{dist}" + (f", entry point {entry_point}" if entry_point else ""),
            todo=f"repair or uninstall {dist}, or go on without it: LITZ_DISABLE_PLUGINS={plugin}",
        )


class DuplicatePluginError(PluginError):
    """Two dists offer a plugin of the same name; ``dists`` names them."""

    def __init__(self, plugin: str, dists: Sequence[str]) -> None:
        self.dists = tuple(dists)
        super().__init__(
            plugin,
            f"two plugins have the name {plugin!r}: from {' and from '.join(self.dists)}",
            todo=f"uninstall one of them, or go on without both: LITZ_DISABLE_PLUGINS={plugin}",
        )


class UnknownHookError(PluginError):
    """A function is marked as a hook that litz does not have. ``suggestion`` is the nearest name, or ''."""

    def __init__(self, plugin: str, hook: str, known: Iterable[str], *, dist: str = "") -> None:
        self.hook = hook
        self.dist = dist
        self.suggestion = nearest(hook, known)
        hint = f"did you mean {self.suggestion!r}? " if self.suggestion else ""
        super().__init__(
            plugin,
            f"plugin {plugin!r} implements the hook {hook!r}, which litz does not have",
            where=dist,
            todo=f"{hint}`litz_plugins.hookspecs` lists every hook; to go on without it: LITZ_DISABLE_PLUGINS={plugin}",
        )


class HookSignatureError(PluginError):
    """A hook function has parameters that its spec does not allow. ``problem`` says which."""

    def __init__(self, plugin: str, hook: str, problem: str, *, spec: str = "", dist: str = "") -> None:
        self.hook = hook
        self.problem = problem
        self.dist = dist
        super().__init__(
            plugin,
            f"plugin {plugin!r}: {hook} {problem}",
            where=dist,
            todo=(f"write it as {spec} (parameters may be left out); " if spec else "")
            + f"to go on without it: LITZ_DISABLE_PLUGINS={plugin}",
        )


class PluginHookError(PluginError):
    """A plugin's hook or pass raised, or returned what its spec does not allow, in the middle of a compile.

    builtin: it is one of core's own.
    """

    def __init__(
        self, plugin: str, hook: str, cause: BaseException | str, *, dist: str = "", builtin: bool = False
    ) -> None:
        self.hook = hook
        self.cause = describe(cause)
        self.dist = dist
        self.builtin = builtin
        if builtin:
            todo = "this is a bug in litz; please report it. To go on without litz: options={'fallback': 'eager'}"
        else:
            todo = (
                f"report it to the plugin's authors; to go on without it: LITZ_DISABLE_PLUGINS={plugin}, or "
                "options={'on_plugin_error': 'disable'}"
            )
        super().__init__(plugin, f"plugin {plugin!r} failed in {hook}: {self.cause}", where=dist, todo=todo)


class PassOrderError(LitzError):
    """Passes cannot be put in order. ``passes`` names the ones in a cycle or of one name, ``plugins`` their owners."""

    def __init__(self, problem: str, passes: Sequence[str], plugins: Sequence[str] = ()) -> None:
        self.passes = tuple(passes)
        self.plugins = tuple(plugins)
        external = sorted({p for p in plugins if p})
        super().__init__(
            problem,
            where=f"plugins {', '.join(external)}" if external else "",
            todo="change `after` or `before` of one of these passes (or its name), or leave its plugin out with "
            "LITZ_DISABLE_PLUGINS",
        )


class DuplicateRegistrationError(LitzError):
    """Two plugins registered the same thing: an op's lowering, a device's code generator, an option, a template."""

    def __init__(self, kind: str, name: str, plugins: Sequence[str]) -> None:
        self.kind = kind
        self.name = name
        self.plugins = tuple(plugins)
        first, second = self.plugins[0], self.plugins[-1]
        if first == second:
            what = f"plugin {first!r} registers the {kind} {name} twice"
        else:
            what = f"plugins {first!r} and {second!r} both register the {kind} {name}"
        super().__init__(what, todo=f"leave one of them out, e.g. LITZ_DISABLE_PLUGINS={second}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The one of ``known`` that is spelt most like ``name``, or '' when none is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else ""


def describe(cause: BaseException | str) -> str:
    """An exception as "Type: message", or only its type when it has no message; a string as it is."""
    if isinstance(cause, str):
        return cause
    text = str(cause).strip()
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__
