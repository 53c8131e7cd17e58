"""The plugin API of litz. A plugin is a module with hooks, offered by an entry point of group ``litz``::

    from litz_plugins import Pass, hookimpl

    @hookimpl
    def litz_register_passes(options):
        return [Pass("my_pass", "program", run)]

`litz_plugins.hookspecs` documents every hook, `litz_plugins.records` what they return, `litz_plugins.testing` helps to
test a plugin, and ``litz plugins new NAME`` writes a working one to start from. Nothing here imports litz or torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import pluggy

from litz_plugins.errors import (
    DuplicatePluginError,
    DuplicateRegistrationError,
    HookSignatureError,
    LitzError,
    PassOrderError,
    PluginError,
    PluginHookError,
    PluginLoadError,
    PluginWarning,
    UnknownHookError,
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
    Estimate,
    FewRows,
    JoiningCodegen,
    KernelSource,
    LayoutNeed,
    LayoutPlan,
    OptionSpec,
    Pass,
    PassContext,
    Share,
    Stage,
    Target,
    TargetOf,
    TargetSpec,
    TemplateSpec,
    Uncacheable,
    unknown_target,
)
from litz_plugins.vetoes import VETOED, Gate, Vetoes

__version__ = "0.1.0"

__all__ = [
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
    "Estimate",
    "FewRows",
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
    "PluginError",
    "PluginHookError",
    "PluginInfo",
    "PluginLoadError",
    "PluginWarning",
    "Plugins",
    "Share",
    "Stage",
    "Target",
    "TargetOf",
    "TargetSpec",
    "TemplateSpec",
    "Uncacheable",
    "UnknownHookError",
    "Vetoes",
    "__version__",
    "hookimpl",
    "make_plugins",
    "unknown_target",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_marker = pluggy.HookimplMarker("litz")


@overload
def hookimpl(function: _F) -> _F: ...


@overload
def hookimpl(
    *, tryfirst: bool = False, trylast: bool = False, optionalhook: bool = False, specname: str | None = None
) -> Callable[[_F], _F]: ...


def hookimpl(
    function: Any = None,
    *,
    tryfirst: bool = False,
    trylast: bool = False,
    optionalhook: bool = False,
    specname: str | None = None,
) -> Any:
    """Mark a function as the implementation of the hook of its name (or of ``specname``).

    tryfirst, trylast: ask this plugin before, or after, the others. optionalhook: no error in a litz that does not have
    the hook (yet).
    """
    return cast(
        Any,
        _marker(function, tryfirst=tryfirst, trylast=trylast, optionalhook=optionalhook, specname=specname),
    )
