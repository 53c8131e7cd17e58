"""Canonical names: p0, p1, ... for buffers, s0, ... for sizes, x0, r0, ... (or piece0, ...) for loop variables.

Two kernels that differ only in what their buffers and sizes are called thus have the same text and are built once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def make_names(tiled: Sequence[tuple[Loop, Tiling]], limits: Iterable[Expr] = ()) -> tuple[Names, ...]:
    """Names in order of first use, for each of the loops of one kernel; what they share has one name. The sizes are
    those of the loops and of `limits`, which the launcher checks."""
    touched = [
        name for loop, _ in tiled for name in (*(n.buffer for n in loop.loads), *(s.buffer for s in loop.stores))
    ]
    buffers = {name: f"p{number}" for number, name in enumerate(dict.fromkeys(touched))}
    variables = [_variables(tiling) for _, tiling in tiled]
    sizes: dict[Symbol, str] = {}
    for expr in (*(expr for loop, _ in tiled for expr in index_expressions(loop)), *limits):
        for symbol in sorted(expr.free_symbols, key=lambda s: s.name):
            if symbol not in sizes and not is_placeholder(symbol) and not any(symbol in own for own in variables):
                sizes[symbol] = f"s{len(sizes)}"
    return tuple(Names(buffers, own, sizes) for own in variables)


def _variables(tiling: Tiling) -> dict[Symbol, str]:
    walked = {r.var: f"{axis.name}{number}" for axis in tiling.axes for number, r in enumerate(axis.ranges)}
    return walked | {r.var: f"piece{number}" for number, r in enumerate(tiling.pieces)}
