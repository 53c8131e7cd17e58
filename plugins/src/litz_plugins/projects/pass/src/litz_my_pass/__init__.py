"""A plugin of litz: one pass over the Program and one option. `x / 8` becomes `x * 0.125`."""

from __future__ import annotations

from litz_plugins import OptionSpec, Pass, hookimpl


@hookimpl
def litz_register_options():
    """Registers the option `inexact`: options={"my_pass.inexact": True}, or LITZ_MY_PASS_INEXACT=1."""
    return [OptionSpec("inexact", bool, False, "multiply by reciprocals that are rounded, too")]


@hookimpl
def litz_register_passes(options):
    # Here, since `litz plugins` and the like load the plugin and need no compiler.
    from .reciprocals import multiply_by_reciprocals

    return [Pass("my_pass_reciprocals", "program", multiply_by_reciprocals, before=("inline_pointwise",))]
