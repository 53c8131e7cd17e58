"""Canonical names: p0, p1, ... for buffers, s0, ... for sizes, x0, r0, ... for loop variables.

Two kernels that differ only in what their buffers and sizes are called thus have the same text and are built once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from litz.ir import Loop
from litz.ir.index import Expr, Symbol, is_placeholder
from litz.ir.operation import expressions

from .tiling import Tiling


@dataclass(frozen=True)
class Names:
    """Buffer name -> p0, ...; loop variable -> x0, ...; size symbol -> s0, ... in the order of the arguments."""

    buffers: Mapping[str, str]
    variables: Mapping[Symbol, str]
    sizes: Mapping[Symbol, str]

    @property
    def index_names(self) -> dict[Symbol, str]:
        return {**self.variables, **self.sizes}


def index_expressions(loop: Loop) -> Iterator[Expr]:
    """Every expression of a loop: extents, then those of its nodes and stores."""
    yield from (r.size for r in loop.all_ranges)
    for node in loop.nodes:
        yield from expressions(node)
    for store in loop.stores:
        yield from store.index


def make_names(loop: Loop, tiling: Tiling, limits: Iterable[Expr] = ()) -> Names:
    """Names in order of first use. The sizes are those of the loop and of `limits`, which the launcher checks."""
    touched = [node.buffer for node in loop.loads] + [store.buffer for store in loop.stores]
    buffers = {name: f"p{number}" for number, name in enumerate(dict.fromkeys(touched))}
    variables = {r.var: f"{axis.name}{number}" for axis in tiling.axes for number, r in enumerate(axis.ranges)}
    sizes: dict[Symbol, str] = {}
    for expr in (*index_expressions(loop), *limits):
        for symbol in sorted(expr.free_symbols, key=lambda s: s.name):
            if symbol not in variables and symbol not in sizes and not is_placeholder(symbol):
                sizes[symbol] = f"s{len(sizes)}"
    return Names(buffers, variables, sizes)
