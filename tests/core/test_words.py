"""The words of core's that `litz_plugins` knows are core's."""

from __future__ import annotations

from litz.cli.main import main
from litz.driver.builtin import builtin_plugins
from litz.lower import core_lowerings
from litz.options import core_options, make_options
from litz_autotune.offers import KINDS
from litz_plugins import make_plugins, words


def test_passes_and_plugins() -> None:
    plugins = make_plugins(builtin_plugins(), entry_points=())
    passes = {item.name: item.stage for freezing in (False, True) for item in plugins.passes(_options(freezing))}
    assert passes == words.CORE_PASSES
    assert tuple(name for name, _ in builtin_plugins()) == words.CORE_PLUGINS


def test_kinds_of_contractions() -> None:
    offered = make_plugins(builtin_plugins(), entry_points=()).templates(_options(False))
    kinds = {kind for spec in offered for kind in spec.kinds} | set(KINDS)
    contractions = {op for op, rule in core_lowerings().items() if rule.__module__ == "litz.lower.contraction"}
    kinds |= {op._opname.removeprefix("_") for op in contractions}  # type: ignore[union-attr]
    assert kinds <= set(words.TEMPLATE_KINDS)


def test_commands_and_variables() -> None:
    assert set(main.commands) == set(words.CORE_COMMANDS)
    assert tuple(sorted({name for row in core_options() for name in row.env})) == words.CORE_VARIABLES


def _options(freezing: bool) -> object:
    return make_options(None, {"freezing": freezing})
