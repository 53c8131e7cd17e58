"""A plugin without a package: a pass and an option, handed to the compiler by hand.

    python examples/plugin_pass.py

The same two functions in an installed package that names itself as an entry point of group "litz" need none of the
lines below `main`: every torch.compile(..., backend="litz") finds them. `litz plugins new NAME` writes such a package;
docs/plugins.md goes through it.
"""

import math
import sys
from dataclasses import replace
from functools import partial

import torch

from litz import report
from litz.builtin import builtin_plugins
from litz.ir import Loop
from litz.ir.build import call, const
from litz.ir.node import with_args
from litz.ir.transform import map_stores
from litz.pipeline import compile_backend
from litz_plugins import OptionSpec, Pass, hookimpl, make_plugins


@hookimpl
def litz_register_options():
    """Set with options={"reciprocals.inexact": True}, or LITZ_RECIPROCALS_INEXACT=1 in the environment."""
    return [OptionSpec("inexact", bool, False, "multiply by reciprocals that are rounded, too")]


@hookimpl
def litz_register_passes(options):
    return [Pass("multiply_by_reciprocals", "program", multiply_by_reciprocals, before=("inline_pointwise",))]


def multiply_by_reciprocals(program, context):
    """The pass, from Program to Program: x / 8 as x * 0.125, and with the option x / 3 as x * 0.333..."""
    inexact = context.options["reciprocals.inexact"]

    def rewrite(node, args):
        # Called for each node of an expression, from the leaves up; `args` are the arguments, rewritten already.
        if node.op != "div" or args[1].op != "const" or not node.dtype.is_floating_point:
            return with_args(node, args)
        divisor = args[1].attrs[0]
        mantissa, _ = math.frexp(divisor)
        if divisor == 0 or not (inexact or abs(mantissa) == 0.5):  # 0.5 * 2**n: its reciprocal is a float
            return with_args(node, args)
        return call("mul", args[0], const(1 / divisor, node.dtype))

    operations = []
    for operation in program.operations:
        if isinstance(operation, Loop):
            stores = map_stores(operation.stores, rewrite)
            if stores != operation.stores:
                operation = replace(operation, stores=stores)
                context.record(operation.name, "rewritten", "a division as a multiplication")  # `litz explain` shows it
        operations.append(operation)
    return replace(program, operations=tuple(operations))


def main():
    # What torch.compile(backend="litz") does, but with this module among the plugins under the name "reciprocals".
    this = sys.modules[__name__]
    plugins = make_plugins(builtin_plugins(), extra=[("reciprocals", this)])
    backend = partial(compile_backend, plugins=plugins)

    def f(x):
        return x / 8 + torch.exp(x) / 3

    x = torch.randn(1000)
    with report.collect() as reports:
        y = torch.compile(f, backend=backend, options={"reciprocals.inexact": True})(x)
    torch.testing.assert_close(y, f(x))
    for decision in reports[0].decisions:
        print(f"{decision.plugin}: {decision.subject} {decision.chosen}: {decision.reason}")
    print(reports[0].plan)


if __name__ == "__main__":
    main()
