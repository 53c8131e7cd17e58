"""Which operation must come before which: read and write sets in, a dependence graph out.

Two operations that touch the same memory, one of them writing, keep their order; memory is the same when an Extern's
output aliases a buffer. So do effects among themselves, collectives among themselves, and whoever needs a size with the
Extern that finds it out and with the Checks of it. An input is not written before the assertions that stand before the
write: they may end the run, and the caller would see it. A wait follows the collective that it waits for; core leaves
it where it stands. Collectives and other effects (random numbers, asserts) know nothing of each other.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import sympy

from litz.ir import Buffer, Check, Collective, Extern, Loop, Wait
from litz.ir.communication import flights
from litz.ir.operation import sizes_in, storage_roots

from .schedule import Kernel

Work = Loop | Extern | Kernel


def dependences(
    operations: Sequence[Work],
    buffers: Mapping[str, Buffer],
    roots: Mapping[str, str] | None = None,
    *,
    waits_stay: bool = True,
    collectives_stay: bool = True,
) -> list[set[int]]:
    """Returns, for each operation, by position, the positions of the operations that it must directly follow.

    The positions are all smaller than its own, so the graph has no cycle. roots: what `storage_roots` says of all
    operations, where these are a part of them. waits_stay: waits keep their place among the collectives and waits;
    False allows what is legal, which is for passes that know what moving a wait is good for. collectives_stay: False
    lets go of the order of the collectives too, for passes that give them a new one, the same on every rank.
    """
    roots = storage_roots(operations) if roots is None else roots
    writer: dict[str, set[int]] = defaultdict(set)
    """The last to write each piece of memory."""
    readers: dict[str, set[int]] = defaultdict(set)
    """Those that have read it since."""
    last: dict[str, set[int]] = defaultdict(set)
    """The last assertion, effect and communication."""
    before: list[set[int]] = [set() for _ in operations]
    sizes = _SizeUses(operations, buffers, roots)
    ended = flights(operations, roots).ended
    for position, operation in enumerate(operations):
        own = before[position]
        reads = [roots.get(name, name) for name in operation.reads]
        writes = [roots.get(name, name) for name in operation.writes]
        if isinstance(operation, Wait):
            # Until here the communication reads and writes its tensors; whoever touches them comes after.
            reads += [roots.get(name, name) for started in ended.get(position, ()) for name in started.reads]
            writes += [roots.get(name, name) for name in operation.reads]
        for name in reads:
            own |= writer[name]
        for name in writes:
            own |= writer[name] | readers[name]
            writer[name], readers[name] = {position}, set()
        for name in reads:
            readers[name].add(position)
        if last["assertion"] and any(name in buffers and buffers[name].kind == "input" for name in writes):
            own |= last["assertion"]
        if isinstance(operation, Extern):
            if operation.effect and not operation.writes:
                last["assertion"] = {position}
            if operation.effect and not isinstance(operation, Collective):
                own |= last["effect"]
                last["effect"] = {position}
            if collectives_stay and isinstance(operation, (Collective, Wait) if waits_stay else Collective):
                own |= last["communication"]
                last["communication"] = {position}
        own.update(sizes.definitions_before(position, operation))
        own.discard(position)
    return before


class _SizeUses:
    """The operations that need sizes that an Extern finds out, and that must follow the Checks of those. Costs nothing
    where there are none."""

    def __init__(self, operations: Sequence[Work], buffers: Mapping[str, Buffer], roots: Mapping[str, str]) -> None:
        self.buffers, self.roots = buffers, roots
        self.defined: dict[sympy.Symbol, list[int]] = defaultdict(list)
        self.vouched: dict[str, list[int]] = defaultdict(list)
        """Memory that is as large as planned only if these Checks hold: a size that must be 4 reads 4 everywhere."""
        made: dict[sympy.Symbol, list[str]] = {}
        for position, operation in enumerate(operations):
            if not isinstance(operation, Extern):
                continue
            for item in operation.unbacked:
                self.defined[item.symbol].append(position)
                made[item.symbol] = [roots.get(name, name) for name in operation.outputs if name is not None]
            if isinstance(operation, Check):
                symbols = sizes_in(operation.args)
                for symbol in (symbols & made.keys()) or symbols:
                    self.defined[symbol].append(position)
                    for name in made.get(symbol, ()):
                        self.vouched[name].append(position)

    def definitions_before(self, position: int, operation: Work) -> set[int]:
        if not self.defined:
            return set()
        used: set[sympy.Symbol] = set()
        if isinstance(operation, Extern):
            used.update(sizes_in((operation.args, operation.kwargs)))
        else:
            loops = operation.loops if isinstance(operation, Kernel) else (operation,)
            used.update(symbol for loop in loops for symbol in loop.free_symbols)
        needed: set[int] = set()
        for name in (*operation.reads, *operation.writes):
            if name in self.buffers:
                used.update(self.buffers[name].layout.free_symbols)
            needed.update(self.vouched.get(self.roots.get(name, name), ()))
        needed.update(at for symbol in used for at in self.defined.get(symbol, ()))
        return {at for at in needed if at < position}


def topological(
    before: Sequence[set[int]],
    cost: Callable[[int], int] = lambda position: 0,
    changed: Callable[[int], Iterable[int]] = lambda position: (),
) -> list[int]:
    """Returns the positions in an order that respects `before`. Of those that may come next, the one of least cost
    does, and among equals the first.

    changed: called with the position that comes next; returns the positions whose cost differs from there on.
    """
    missing = [len(names) for names in before]
    after: list[list[int]] = [[] for _ in before]
    for position, names in enumerate(before):
        for name in names:
            after[name].append(position)
    ready: dict[int, int] = {}
    heap: list[tuple[int, int]] = []

    def offer(position: int) -> None:
        ready[position] = cost(position)
        heapq.heappush(heap, (ready[position], position))

    for position, count in enumerate(missing):
        if count == 0:
            offer(position)
    order: list[int] = []
    while ready:
        asked, position = heapq.heappop(heap)
        if ready.get(position) != asked:
            continue  # it costs something else by now, or has been taken
        del ready[position]
        order.append(position)
        others = changed(position)
        for follower in after[position]:
            missing[follower] -= 1
            if missing[follower] == 0:
                offer(follower)
        for other in others:
            if other in ready and cost(other) != ready[other]:
                offer(other)
    if len(order) != len(before):
        raise AssertionError("the dependence graph has a cycle")
    return order
