"""Every error that loading, ordering or calling plugins can end in.

Each takes structured fields (strings, so that an error can be pickled to a parent process or another rank) and builds
one message that says what happened, who did it and what to do. The original exception, where there is one, is chained
as ``__cause__``; it does not travel through pickle, its text does.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from litz_plugins.raised import raised_at

__all__ = [
    "DuplicatePluginError",
    "DuplicateRegistrationError",
    "HookSignatureError",
    "LitzError",
    "PassOrderError",
    "PluginError",
    "PluginHookError",
    "PluginLoadError",
    "PluginVersionError",
    "PluginWarning",
    "UnknownHookError",
    "UnknownPluginError",
    "describe",
    "go_on_without",
    "in_short",
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
        """Adds to the message which part of the user's model the error is about."""
        self.origin = origin
        self.args = (self._message(),)

    def set_reproduction(self, command: str) -> None:
        """Adds to the message the command that shows the error again."""
        self.reproduce = command
        # In the message and not a note: dynamo passes on nothing but the message.
        self.args = (self._message(),)

    def _message(self, todo: str | None = None) -> str:
        todo = self.todo if todo is None else todo
        parts = (("from", self.origin), ("where", self.where), ("to do", todo), ("reproduce", self.reproduce))
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
    """Base of the errors that a plugin is to blame for. ``plugin`` is its name.

    todo: what to do about the fault. without: how to go on without the plugin; the message has both, in ``todo``.
    """

    def __init__(self, plugin: str, what: str, *, where: str = "", todo: str = "", without: str = "") -> None:
        self.plugin = plugin
        self.repair = todo
        super().__init__(what, where=where, todo="; ".join(filter(None, (todo, without))))

    @property
    def warning(self) -> str:
        """Returns the message for who goes on without the plugin already: how to do that is left out."""
        return self._message(self.repair)


class PluginLoadError(PluginError):
    """An entry point could not be imported, or what it names is no plugin. repair: what to do about it, where that is
    known."""

    def __init__(
        self, plugin: str, dist: str, cause: BaseException | str, *, entry_point: str = "", repair: str = ""
    ) -> None:
        self.dist = dist
        self.cause = describe(cause)
        self.entry_point = entry_point
        super().__init__(
            plugin,
            f"plugin {plugin!r} could not be loaded: {self.cause}",
            where=f"{dist}" + (f", entry point {entry_point}" if entry_point else ""),
            todo=repair or f"repair or uninstall {dist}",
            without=go_on_without(plugin),
        )


class PluginVersionError(PluginError):
    """A plugin's dist asks for another version of litz-plugins. needs: a specifier (">=1.4"); has: the version here."""

    def __init__(self, plugin: str, dist: str, needs: str, has: str) -> None:
        self.dist = dist
        self.needs = needs
        self.has = has
        super().__init__(
            plugin,
            f"plugin {plugin!r} needs litz-plugins {needs}, has {has}",
            where=dist,
            todo=f"pip install 'litz-plugins{needs}', with litz and its dists of that version",
            without=go_on_without(plugin),
        )


class DuplicatePluginError(PluginError):
    """Two dists offer a plugin of the same name; ``dists`` names them."""

    def __init__(self, plugin: str, dists: Sequence[str]) -> None:
        self.dists = tuple(dists)
        super().__init__(
            plugin,
            f"two plugins have the name {plugin!r}: from {' and from '.join(self.dists)}",
            todo=f"uninstall one of them, or give one that is passed in another name; to go on without both: "
            f"LITZ_DISABLE_PLUGINS={plugin}",
        )


class UnknownPluginError(PluginError):
    """A name in LITZ_DISABLE_PLUGINS, or in the option `disable_plugins`, that no plugin has. ``suggestion`` is the
    nearest name, or ''."""

    def __init__(self, plugin: str, known: Iterable[str]) -> None:
        names = sorted(known)
        self.suggestion = nearest(plugin, names)
        hint = f"did you mean {self.suggestion!r}? " if self.suggestion else ""
        super().__init__(
            plugin,
            f"there is no plugin {plugin!r} to leave out",
            where="LITZ_DISABLE_PLUGINS or disable_plugins",
            todo=f"{hint}plugins are {', '.join(names)}",
        )


class UnknownHookError(PluginError):
    """A function is marked as a hook that litz does not have. ``suggestion`` is the nearest name, or ''; ``gone`` says
    what took the place of a hook that litz had once."""

    def __init__(self, plugin: str, hook: str, known: Iterable[str], *, dist: str = "", gone: str = "") -> None:
        self.hook = hook
        self.dist = dist
        self.gone = gone
        self.suggestion = nearest(hook, known)
        hint = f"did you mean {self.suggestion!r}? " if self.suggestion else ""
        super().__init__(
            plugin,
            f"plugin {plugin!r} implements the hook {hook!r}, which litz does not have" + (f": {gone}" if gone else ""),
            where=dist,
            todo=f"{hint}`litz_plugins.hookspecs` lists every hook",
            without=go_on_without(plugin),
        )


class HookSignatureError(PluginError):
    """A hook function has parameters that its spec does not allow, or a place among the others that it cannot have.
    ``problem`` says which."""

    def __init__(self, plugin: str, hook: str, problem: str, *, spec: str = "", dist: str = "") -> None:
        self.hook = hook
        self.problem = problem
        self.dist = dist
        super().__init__(
            plugin,
            f"plugin {plugin!r}: {hook} {problem}",
            where=dist,
            todo=f"write it as {spec} (parameters may be left out)" if spec else "",
            without=go_on_without(plugin),
        )


class PluginHookError(PluginError):
    """A plugin's hook or pass raised, or returned what its spec does not allow, in the middle of a compile.

    hook: what of the plugin's was called ("litz_register_passes", "pass 'fuse' (program stage)"). builtin: it is one of
    core's own. node: of the graph that it was called for, '' where it was for none. inputs_whole: what a call at run
    time was given is as it was, so that the graph may run anew on it. raised: where in the plugin's code
    ("litz_gentle/ops.py:41, in lower_gelu"), '' where litz refused what it returned. package: of the plugin's code.
    repair: what to do about the fault, where that is not for the plugin's authors.
    """

    def __init__(
        self,
        plugin: str,
        hook: str,
        cause: BaseException | str,
        *,
        dist: str = "",
        builtin: bool = False,
        node: str = "",
        inputs_whole: bool = True,
        package: str = "",
        repair: str = "",
    ) -> None:
        self.hook = hook
        self.inputs_whole = inputs_whole
        self.cause = describe(cause)
        self.dist = dist
        self.builtin = builtin
        self.node = node
        self.raised = "" if builtin else raised_at(cause, package)
        if builtin:
            todo = "this is a bug in litz; please report it. To go on without litz: options={'fallback': 'eager'}"
            without = ""
        else:
            todo = repair or "report it to the plugin's authors"
            without = f"{go_on_without(plugin)}, or options={{'on_plugin_error': 'disable'}}"
        parts = (dist, f"node {node}" if node else "", f"raised in {self.raised}" if self.raised else "")
        what, where = f"plugin {plugin!r} failed in {hook}: {self.cause}", ", ".join(filter(None, parts))
        super().__init__(plugin, what, where=where, todo=todo, without=without)


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
            todo = f"register it once; {go_on_without(first)}"
        else:
            what = f"plugins {first!r} and {second!r} both register the {kind} {name}"
            todo = f"leave one of them out, e.g. LITZ_DISABLE_PLUGINS={second}"
        super().__init__(what, todo=todo)


def go_on_without(plugin: str) -> str:
    """Returns what to do to go on without a plugin, as messages end."""
    return f"to go on without it: LITZ_DISABLE_PLUGINS={plugin}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the one of ``known`` that is spelt most like ``name``, or '' when none is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else ""


def describe(cause: BaseException | str) -> str:
    """Returns an exception as "Type: message", or only its type when it has no message; a string as it is. Of a
    LitzError the first sentence: what to do about it is for who reads it alone."""
    if isinstance(cause, str):
        return cause
    text = (cause.what if isinstance(cause, LitzError) else str(cause)).strip()
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def in_short(error: BaseException) -> str:
    """Returns what litz said, in a line, of whatever torch.compile raised: without torch's words around it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, LitzError):
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    if cause is not None:
        return cause.what
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
