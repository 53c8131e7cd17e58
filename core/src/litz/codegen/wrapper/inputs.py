"""The beginning of a wrapper's function: inputs, sizes, addresses, counters and the arena."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch

from litz.execution.counters import Counters
from litz.ir import Buffer, Layout, Opaque, Program
from litz.ir.index import Expr, Symbol

from ..sizes import python_text
from .spelling import Spelling, device_name

LOWEST = 1 << 32
"""An address below which no tensor's memory lies: what begins there is an offset from no memory."""


def input_lines(spelling: Spelling, counters: Counters) -> Iterator[str]:
    """Yields the wrapper's first lines: they take `args` apart and prepare what the first step needs."""
    program = spelling.program
    names = [_input_name(position, item) for position, item in enumerate(program.inputs)]
    if names:
        yield f"{', '.join(names)}, = args"
    yield "args.clear()"
    for symbol, text in _size_sources(program):
        yield f"{symbol} = {text}"
    yield from _look_at_addresses(spelling)
    yield from _align(spelling)
    for device, count in counters.count.items():
        zeros = f"_zeros{device_name(device)}"
        yield f"{zeros} = torch.zeros({count}, dtype=torch.int32, device={device_name(device)})"
        yield f"_counters{device_name(device)} = {zeros}.data_ptr()"
    yield from _make_arena(spelling)


def _look_at_addresses(spelling: Spelling) -> Iterator[str]:
    """Read the address of each input that a kernel uses, once, and see that there is memory at it: tensors whose
    storage was freed, meta tensors among inputs of another device, and torch's zero tensor have elements and no
    memory."""
    inputs = spelling.plan.inputs
    for name in inputs.addressed:
        yield f"{spelling.address(name)} = {name}.data_ptr()"
    if inputs.addressed:
        yield from _ask_once([f"{spelling.address(name)} < {LOWEST}" for name in inputs.addressed], " or ")
        for name in inputs.addressed:
            yield f"    {name} = _present({name}, {name!r}, {name in inputs.written})"
            yield f"    {spelling.address(name)} = {name}.data_ptr()"


def _align(spelling: Spelling) -> Iterator[str]:
    """Copies of those that do not start at a multiple of 16 bytes; one question for all, as that is rare."""
    inputs = spelling.plan.inputs
    for name in inputs.aligned:
        if name in inputs.returned:
            yield f"{spelling.own(name)} = {name}"
    if inputs.aligned:
        yield from _ask_once([spelling.address(name) for name in inputs.aligned], " | ", " & 15")
        for name in inputs.aligned:
            yield f"    {name} = _aligned({name})"
            if name in spelling.addressed:
                yield f"    {spelling.address(name)} = {name}.data_ptr()"


def _ask_once(parts: Sequence[str], between: str, after: str = "") -> Iterator[str]:
    """`if`, with a condition of many parts, six a line."""
    yield "if ("
    for first in range(0, len(parts), 6):
        yield "    " + (between.lstrip() if first else "") + between.join(parts[first : first + 6])
    yield f"){after}:"


def _make_arena(spelling: Spelling) -> Iterator[str]:
    """The memory of small buffers, and its address, which is all that kernels need."""
    memory = spelling.plan.memory
    if memory.arena:
        device = spelling.program.buffers[next(iter(memory.arena))].device
        whole = Buffer("_arena_memory", torch.uint8, device, Layout.contiguous((memory.arena_bytes,)))
        yield f"{whole.name} = {spelling.fresh(whole)}"
        yield f"_arena = {whole.name}.data_ptr()"


def _input_name(position: int, item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Opaque):
        return item.name or f"unused_{position}"
    return str(item.name) if item.is_Symbol else f"size_{position}"


def _size_sources(program: Program) -> Iterator[tuple[Symbol, str]]:
    """Symbols that no input holds as such: read off the tensors' sizes and strides, or solved for."""
    known = {item for item in program.inputs if isinstance(item, sympy.Symbol)}
    for position, item in enumerate(program.inputs):
        if isinstance(item, sympy.Expr) and not item.is_Symbol:
            yield from _solve(item, f"size_{position}", known)
    for name in program.input_buffers:
        layout = program.buffers[name].layout
        for method, exprs in (("size", layout.size), ("stride", layout.stride)):
            for dim, expr in enumerate(exprs):
                yield from _solve(expr, f"{name}.{method}({dim})", known)


def _solve(expr: Expr, text: str, known: set[Symbol]) -> Iterator[tuple[Symbol, str]]:
    """`symbol = text` for an expression in one unknown symbol, linear in it; marks the symbol as known."""
    unknown = [symbol for symbol in expr.free_symbols if symbol not in known]
    if len(unknown) != 1:
        return
    symbol = unknown[0]
    if expr == symbol:
        known.add(symbol)
        yield symbol, text
        return
    slope, rest = expr.coeff(symbol, 1), expr.coeff(symbol, 0)
    if slope == 0 or symbol in slope.free_symbols or sympy.expand(slope * symbol + rest - expr) != 0:
        return
    known.add(symbol)
    yield symbol, f"({text} - {python_text(rest)}) // ({python_text(slope)})"
