"""The options of a compile with its plugins: in, torch.compile's `mode=` and `options=`, and the plugins; out,
`Options` in which each value was checked by whoever has the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from litz.errors import InvalidOptionError
from litz.options import Options, make_options
from litz_plugins.blame import LeftOut
from litz_plugins.errors import nearest
from litz_plugins.strict import variable
from litz_plugins.vetoes import read_preferences, read_vetoes
from litz_plugins.words import CORE_PASSES

if TYPE_CHECKING:
    from litz_plugins.manager import Plugins

MAKERS = ("lower", "layout", "choose", "fuse", "kernel_settings", "plan_memory", "cuda_graphs", "keep_region")
"""The makers of decisions, beside passes, that the options `veto` and `prefer` can name."""


def plugin_options(plugins: Plugins, mode: str | None = None, user_options: Mapping[str, Any] | None = None) -> Options:
    """Returns what `make_options` does, for these plugins. Errors: those of `make_options`; InvalidOptionError for a
    veto or a preference of a decision that nobody takes."""
    options = None
    while options is None:
        try:
            options = make_options(mode, user_options, plugins.option_specs(), missing=plugins.missing())
        except LeftOut:  # a plugin's own check of a value failed: there are no options of that plugin any more
            continue
    named = {"veto": read_vetoes(options.veto).makers, "prefer": read_preferences(options.prefer).makers}
    for name, makers in named.items():
        if not makers <= {*MAKERS, *CORE_PASSES}:
            _check_makers(name, options, makers, plugins)
    return options


def _check_makers(name: str, options: Options, makers: frozenset[str], plugins: Plugins) -> None:
    """Raises InvalidOptionError if a veto or a preference names a maker of decisions that does not exist."""
    known = {*MAKERS, *CORE_PASSES, *(item.name for item in plugins.passes(options))}
    for maker in sorted(makers - known):
        near = nearest(maker, known)
        meant = f" (did you mean {near!r}?)" if near else ""
        why = f"nobody who decides is called {maker!r}{meant}"
        source = f"options= or {variable(name)}"
        raise InvalidOptionError(name, options[name], f"keys of {', '.join(sorted(known))}", source=source, why=why)
