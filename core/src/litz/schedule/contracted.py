"""The dependence graph while operations are fused: groups with edges, and who comes before whom.

In: the direct dependences of a program's operations. Two groups may be contracted into one where that makes no cycle;
the test and the update are cheap, as there are thousands of each. Ancestors are bit sets in Python integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .dependences import topological


class ContractedGraph:
    """Groups of operations, by number, and the dependences between them. A contracted pair goes on under the number of
    its first group."""

    def __init__(self, before: Sequence[set[int]]) -> None:
        self.before = [set(names) for names in before]
        self.after: list[set[int]] = [set() for _ in before]
        self.alive = [True] * len(before)
        self._own = [1 << n for n in range(len(before))]
        """The bits of a group: one for each operation in it, so that ancestors need not be renamed."""
        self.ancestors: list[int] = []
        """The operations before each group, a bit each."""
        for position, names in enumerate(before):
            above = 0
            for name in names:
                self.after[name].add(position)
                above |= self.ancestors[name] | self._own[name]
            self.ancestors.append(above)

    def precedes(self, first: int, second: int) -> bool:
        """Returns whether there is a path from the first group to the second."""
        return bool(self._own[first] & self.ancestors[second])

    def is_contractible(self, first: int, second: int) -> bool:
        """Returns whether two groups can become one without a cycle. `second` must not precede `first`."""
        above = self.ancestors[second]
        return not any(self._own[other] & above for other in self.after[first] if other != second)

    def order(self, priority: Mapping[int, int] | None = None) -> list[int]:
        """Returns the groups that are left, in an order that respects the dependences. Among groups that may come next
        the least number is first; `priority` has other numbers for some groups."""
        alive = [n for n, living in enumerate(self.alive) if living]
        place = {n: k for k, n in enumerate(alive)}
        before = [{place[earlier] for earlier in self.before[n]} for n in alive]
        places = [(priority or {}).get(n, n) for n in alive]
        return [alive[k] for k in topological(before, places.__getitem__)]

    def contract(self, first: int, second: int) -> None:
        """Merges the second group into the first."""
        own = self._own[first] | self._own[second]
        above = (self.ancestors[first] | self.ancestors[second]) & ~own
        # Whoever follows the first has the first's ancestors, whoever follows the second has both's or the second's.
        spreads = above & ~(self.ancestors[first] & self.ancestors[second])
        self._own[first], self.ancestors[first] = own, above
        self.alive[second] = False
        for edges, back in ((self.before, self.after), (self.after, self.before)):
            for other in edges[second]:
                back[other].discard(second)
                if other != first:
                    back[other].add(first)
            edges[first] = (edges[first] | edges[second]) - {first, second}
            edges[second] = set()
        if spreads:
            for other, living in enumerate(self.alive):
                if living and other != first and self.ancestors[other] & own:
                    self.ancestors[other] |= above
