"""The lines of attention's Nest that core's lines do not say (`litz.tiles.program`): which keys a block of queries
looks at, and products of matrices by BLAS. `nest_print.py` has their text."""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.index import Expr, Symbol
from litz.tiles.program import Access, Line, Operand, Other, Value


@dataclass(frozen=True)
class Listed:
    """Blocks of `length` keys that a list names. counts: how many of its entries count. entries: the block that is at
    a `place` of the list. known: does the mask hold of all their keys?"""

    counts: Access
    entries: Access
    place: Symbol
    length: int
    known: bool


@dataclass(frozen=True)
class Keys(Other):
    """The body, for one block of `step` keys after the other, from `axis` to `axis_end`: of those between the bounds of
    the queries from `block` on, and in the lists where there are any. lower, upper: expressions over a query; it looks
    at no key below one of `lower`, or above one of `upper`. value: are no others left out, for any of the queries?
    exact: do the bounds say so?"""

    axis: str
    size: Expr
    step: int
    block: str
    query: Symbol
    lower: tuple[Expr, ...]
    upper: tuple[Expr, ...]
    exact: bool
    lists: tuple[Listed, ...]
    value: Value
    body: tuple[Line, ...] = ()

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Returns what is read of memory."""
        return tuple(access for each in self.lists for access in (each.counts, each.entries))


@dataclass(frozen=True)
class When(Other):
    """The body where a condition holds, or where it does not, if `otherwise`. of: the condition, outside of lanes."""

    of: Operand
    body: tuple[Line, ...] = ()
    otherwise: bool = False


@dataclass(frozen=True)
class Matrix:
    """Rows that lie `step` elements apart, of a room or from an element of memory on."""

    of: str | Access
    step: int


@dataclass(frozen=True)
class Product(Other):
    """into[y, x] = scale * the sum over z of left[y, z] * right[z, x], added to what is there if `adds`. turned: right
    is [x, z]. sizes: of y, x and z, each a number or the block whose positions it counts."""

    into: Matrix
    left: Matrix
    right: Matrix
    sizes: tuple[str | int, str | int, str | int]
    scale: float = 1.0
    turned: bool = False
    adds: bool = False

    @property
    def matrices(self) -> tuple[tuple[Matrix, tuple[str | int, str | int]], ...]:
        """Returns the matrices, each with how many rows and columns it has: the product, then the two factors."""
        y, x, z = self.sizes
        return (self.into, (y, x)), (self.left, (y, z)), (self.right, (x, z) if self.turned else (z, x))

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Returns what is read of memory."""
        return tuple(each.of for each, _ in self.matrices if isinstance(each.of, Access))

    @property
    def rooms(self) -> tuple[str, ...]:
        """Returns the names of the rooms among the matrices."""
        return tuple(each.of for each, _ in self.matrices if isinstance(each.of, str))
