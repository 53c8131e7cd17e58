"""The choice by size, in the wrapper: which of several functions a call's sizes belong to.

_cases = (call_1, call_1, call_2)

def call(args):
    s0 = args[1]
    return _cases[(s0 > 90) + (s0 > 724)](args)
"""

from __future__ import annotations

from litz.execution import ExecutionPlan
from litz.ir import Program
from litz.ir.index import Symbol
from litz.schedule.schedule import Cases


def size_source(program: Program, symbol: Symbol) -> str | None:
    """Returns the text that reads a size from the inputs, `args`: an input that is the size, else a dimension of a
    tensor. None if no input has the size as it is."""
    for position, item in enumerate(program.inputs):
        if item == symbol:
            return f"args[{position}]"
    for position, item in enumerate(program.inputs):
        if isinstance(item, str):
            size = program.buffers[item].layout.size
            if symbol in size:
                return f"args[{position}].size({size.index(symbol)})"
    return None


def dispatch_lines(cases: Cases[ExecutionPlan], functions: list[str]) -> list[str]:
    """Returns the wrapper's lines that choose a case by the sizes of a call: a table of functions, and `call`.
    functions: names, by position in `cases.distinct`."""
    lines = [f"_cases = ({', '.join(functions[number] for number in cases.numbers)})", "", "", "def call(args):"]
    program = cases.each[0].program
    position = ""
    for symbol, values in cases.grid.axes:
        lines.append(f"    {symbol} = {size_source(program, symbol)}")
        steps = " + ".join(f"({symbol} > {border})" for border in cases.grid.borders(symbol))
        position = f"({position}) * {len(values)} + {steps}" if position else steps
    return [*lines, f"    return _cases[{position}](args)"]
