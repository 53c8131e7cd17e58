"""Which schedule runs for which sizes. In: the values that dynamic sizes were compiled for. Out: where each one's ends.

Along each dynamic size a call belongs to the nearest value by ratio: the border between neighbours is their geometric
mean. Several dynamic sizes make a grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt, prod

from litz.ir.index import Symbol


@dataclass(frozen=True)
class SizeGrid:
    """axes: for each dynamic size the values that are compiled for, two or more, ascending, all of them 1 or more."""

    axes: tuple[tuple[Symbol, tuple[int, ...]], ...]

    @property
    def count(self) -> int:
        """Returns the number of combinations of sizes that are compiled for."""
        return prod(len(values) for _, values in self.axes)

    @cached_property
    def points(self) -> tuple[Mapping[Symbol, int], ...]:
        """Returns every combination of values, the last size's running fastest."""
        symbols = [symbol for symbol, _ in self.axes]
        return tuple(dict(zip(symbols, values)) for values in itertools.product(*(values for _, values in self.axes)))

    def borders(self, symbol: Symbol) -> tuple[int, ...]:
        """Returns, for each value of a dynamic size but the last, the greatest size that belongs to it."""
        values = dict(self.axes)[symbol]
        return tuple(isqrt(low * high) for low, high in itertools.pairwise(values))

    def number(self, sizes: Mapping[Symbol, int]) -> int:
        """Returns the position in `points` of the point that a call with these sizes belongs to."""
        found = 0
        for symbol, values in self.axes:
            found = found * len(values) + sum(sizes[symbol] > border for border in self.borders(symbol))
        return found

    def where(self, numbers: Sequence[int]) -> str:
        """Returns, in words, which calls belong to these points: "s0 <= 181", "181 < s0 <= 1448 and s1 <= 30"."""
        if len(self.axes) > 1:
            places = [[values.index(self.points[n][symbol]) for symbol, values in self.axes] for n in numbers]
            return " or ".join(" and ".join(map(self._part, self.axes, place, place)) for place in places)
        runs: list[list[int]] = []  # of neighbours
        for number in numbers:
            if runs and number == runs[-1][1] + 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        return " or ".join(self._part(self.axes[0], first, last) for first, last in runs)

    def _part(self, axis: tuple[Symbol, tuple[int, ...]], first: int, last: int) -> str:
        symbol, borders = axis[0], self.borders(axis[0])
        low = f"{borders[first - 1]} < " if first > 0 else ""
        high = f" <= {borders[last]}" if last < len(borders) else ""
        return f"{low}{symbol}{high}"

    def at(self, number: int) -> str:
        """Returns the text of a point, such as "s0 = 64 and s1 = 8"."""
        return " and ".join(f"{symbol} = {value}" for symbol, value in self.points[number].items())
