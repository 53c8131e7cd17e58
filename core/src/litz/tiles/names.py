"""Canonical names: p0, p1, ... for buffers, s0, ... for sizes, x0, r0, ... (or piece0, ...) for loop variables.

Two kernels that differ only in what their buffers and sizes are called thus have the same text and are built once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from litz.codegen.kernel_plan import KernelPlan
from litz.ir.index import Expr, Symbol, is_placeholder

from .shape import Tiling


@dataclass(frozen=True)
class Names:
    """Buffer name -> p0, ...; loop variable -> x0, ...; size symbol -> s0, ... in the order of the arguments."""

    buffers: Mapping[str, str]
    variables: Mapping[Symbol, str]
    sizes: Mapping[Symbol, str]

    @property
    def index_names(self) -> dict[Symbol, str]:
        """Returns the names of loop variables and sizes, which index expressions may contain."""
        return {**self.variables, **self.sizes}


def name_all(buffers: Iterable[str], variables: Mapping[Symbol, str], exprs: Iterable[Expr]) -> Names:
    """Returns the names of a kernel's buffers, and of the sizes in expressions over loop variables and sizes."""
    symbols = (symbol for expr in exprs for symbol in sorted(expr.free_symbols, key=lambda s: s.name))
    sizes = dict.fromkeys(symbol for symbol in symbols if symbol not in variables and not is_placeholder(symbol))
    short = {name: f"p{number}" for number, name in enumerate(buffers)}
    return Names(short, variables, {symbol: f"s{number}" for number, symbol in enumerate(sizes)})


def make_names(plan: KernelPlan, tilings: Sequence[Tiling], limits: Iterable[Expr] = ()) -> tuple[Names, ...]:
    """Returns the names for each of the loops of a kernel; what the loops share has one name. The sizes are those of
    the loops and of `limits`, which the launcher checks."""
    shared = name_all(plan.buffers, {}, (*plan.sizes, *limits))
    return tuple(replace(shared, variables=_variables(tiling)) for tiling in tilings)


def _variables(tiling: Tiling) -> dict[Symbol, str]:
    walked = {r.var: f"{axis.name}{number}" for axis in tiling.axes for number, r in enumerate(axis.ranges)}
    return walked | {r.var: f"piece{number}" for number, r in enumerate(tiling.pieces)}
