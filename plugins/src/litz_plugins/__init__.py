"""The plugin API of litz.

A plugin is a module with hooks, offered by an entry point of group ``litz``::

    from litz_plugins import Pass, hookimpl

    @hookimpl
    def litz_register_passes(options):
        return [Pass("my_pass", "program", run)]

`litz_plugins.hookspecs` documents every hook, `litz_plugins.records` what they return, `litz_plugins.testing` helps to
test a plugin, and ``litz plugins new NAME`` writes a working one to start from. Nothing here imports litz or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import pluggy

from litz_plugins import deprecations, hookspecs
from litz_plugins.deprecations import PluginDeprecationWarning
from litz_plugins.errors import (
    DuplicatePluginError,
    DuplicateRegistrationError,
    HookSignatureError,
    LitzError,
    PassOrderError,
    PluginError,
    PluginHookError,
    PluginLoadError,
    PluginVersionError,
    PluginWarning,
    UnknownHookError,
    UnknownPluginError,
)
from litz_plugins.manager import PluginInfo, Plugins, make_plugins
from litz_plugins.nouns import OptionsView
from litz_plugins.records import (
    COUNTERS,
    SHARES,
    STAGES,
    Ask,
    Choice,
    ChoiceContext,
    Codegen,
    CodegenContext,
    Conversion,
    Decision,
    Entry,
    EntryFacts,
    Estimate,
    Exporter,
    Figures,
    Function,
    JoiningCodegen,
    KernelSource,
    LayoutNeed,
    LayoutPlan,
    OptionSpec,
    Pass,
    PassContext,
    PreparingCodegen,
    Saver,
    Secret,
    Share,
    Stage,
    Target,
    TargetOf,
    TargetSpec,
    TemplateSpec,
    TunableCodegen,
    Uncacheable,
    Verdict,
    Watcher,
    unknown_target,
)
from litz_plugins.versions import API_VERSION, VERSION
from litz_plugins.vetoes import VETOED, Gate, Preferences, Vetoes, Weighed

__version__ = VERSION

__all__ = [
    "API_VERSION",
    "COUNTERS",
    "SHARES",
    "STAGES",
    "VETOED",
    "Ask",
    "Choice",
    "ChoiceContext",
    "Codegen",
    "CodegenContext",
    "Conversion",
    "Decision",
    "DuplicatePluginError",
    "DuplicateRegistrationError",
    "Entry",
    "EntryFacts",
    "Estimate",
    "Exporter",
    "Figures",
    "Function",
    "Gate",
    "HookSignatureError",
    "JoiningCodegen",
    "KernelSource",
    "LayoutNeed",
    "LayoutPlan",
    "LitzError",
    "OptionSpec",
    "OptionsView",
    "Pass",
    "PassContext",
    "PassOrderError",
    "PluginDeprecationWarning",
    "PluginError",
    "PluginHookError",
    "PluginInfo",
    "PluginLoadError",
    "PluginVersionError",
    "PluginWarning",
    "Plugins",
    "Preferences",
    "PreparingCodegen",
    "Saver",
    "Secret",
    "Share",
    "Stage",
    "Target",
    "TargetOf",
    "TargetSpec",
    "TemplateSpec",
    "TunableCodegen",
    "Uncacheable",
    "UnknownHookError",
    "UnknownPluginError",
    "Verdict",
    "Vetoes",
    "Watcher",
    "Weighed",
    "__version__",
    "hookimpl",
    "make_plugins",
    "unknown_target",
]


def __getattr__(name: str) -> Any:
    """Returns what is deprecated among the names above, for as long as it works."""
    row = deprecations.find("name", name)
    if row is None or not row.works():
        because = f": {row.instead}" if row is not None else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{because}")
    deprecations.warn_of("name", name)
    return globals()[row.new]


_F = TypeVar("_F", bound=Callable[..., Any])
_marker = pluggy.HookimplMarker("litz")


@overload
def hookimpl(function: _F) -> _F: ...


@overload
def hookimpl(
    *,
    tryfirst: bool = False,
    trylast: bool = False,
    optionalhook: bool = False,
    specname: str | None = None,
    after: Sequence[str] = (),
    before: Sequence[str] = (),
) -> Callable[[_F], _F]: ...


def hookimpl(
    function: Any = None,
    *,
    tryfirst: bool = False,
    trylast: bool = False,
    optionalhook: bool = False,
    specname: str | None = None,
    after: Sequence[str] = (),
    before: Sequence[str] = (),
) -> Any:
    """Marks a function as the implementation of the hook of its name (or of ``specname``).

    tryfirst, trylast: ask this plugin before, or after, the others. optionalhook: no error in a litz that does not have
    the hook (yet). after, before: names of plugins that are asked before this one, or after it, wherever they ask to
    be; a name that ends in "?" need not be there.
    """
    mark = _marker(tryfirst=tryfirst, trylast=trylast, optionalhook=optionalhook, specname=specname)

    def marked(function: Any) -> Any:
        vars(mark(function))[f"{hookspecs.PROJECT}_impl"].update(after=tuple(after), before=tuple(before))
        return function

    return marked if function is None else marked(function)
