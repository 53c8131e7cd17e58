"""Loops of a nest: what threads share, what lanes are, and which node is made at which depth.

In: a `Tiling`. `Writer` is what `pointwise` and `reduction` share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from litz.ir.node import Node
from litz.ir.operation import Range
from litz.target import figures_of
from litz.tiles.program import Each, Line, Operand
from litz_plugins import Target

from .body import Body
from .figures import CppFigures
from .tiling import Tiling


def joined(one: tuple[Line, ...], other: tuple[Line, ...]) -> tuple[Line, ...]:
    """Returns the lines of two nests, one after the other within the loops that both have around all their lines."""
    loops = [lines[0] for lines in (one, other) if len(lines) == 1 and isinstance(lines[0], Each)]
    if len(loops) < 2 or any(each.vector for each in loops) or replace(loops[0], body=()) != replace(loops[1], body=()):
        return (*one, *other)
    return (replace(loops[0], body=joined(loops[0].body, loops[1].body)),)


class Writer:
    """A tiling and the body that is being made for it. `threads`: that share the work."""

    def __init__(self, tiling: Tiling, body: Body, target: Target) -> None:
        self.tiling, self.body, self.put, self.index = tiling, body, body.put, body.index
        self.threads, self.limits = target.units, figures_of(target, CppFigures)
        self.loop = tiling.loop
        self.final = tiling.stages.final
        self.roots = [root for store in self.final for root in store.roots]
        """The values that the stores after all walks need."""
        self.checks = any(node.op == "bounded" for node in self.loop.nodes)
        self.combines = any(store.mode != "set" for store in self.loop.stores)
        body.atomic = self.threaded
        self.scratch: dict[Node, Operand] = {}
        """Where values are that a later walk needs again."""

    @property
    def threaded(self) -> bool:
        """Returns whether threads may share the work. With symbolic sizes the kernel decides when it runs."""
        work = self.tiling.work
        return bool(self.loop.ranges) and (not work.is_Integer or int(work) >= self.limits.parallel_values)

    # ------------------------------------------------------------------ loops

    def level(self, r: Range, chunk: str = "") -> Each:
        """Returns a loop over a range, or over the block of the range that is named `chunk`."""
        return Each(self.index.names[r.var], r.size, within=chunk)

    def vector(self, r: Range, chunk: str = "", vector: bool = True, checks: bool | None = None) -> Each:
        """Returns a loop whose iterations are lanes, if `vector`: they are independent, as those of a Loop are. checks:
        whether the loop brings failed checks together; by default, if the kernel has any."""
        checks = self.checks if checks is None else checks
        return replace(self.level(r, chunk), vector=vector, checks=vector and checks)

    def chunks(self, r: Range, step: int, name: str) -> Each:
        """Returns a loop over blocks of `step` elements of a range: the variable `name` is where the block starts,
        `name_end` where it ends."""
        return Each(name, r.size, step=step)

    def nest(self, levels: Sequence[Each], nodes: Sequence[Node], inside: Callable[[], None], shared: int = 0) -> None:
        """Makes the loops, each node in the outermost one that has all its variables, and `inside` innermost.

        Where there is work enough the threads share the first `shared` loops, which have nothing between them then.
        """
        together = shared if self.threaded else 0
        if together:
            levels = [replace(levels[0], shared=together, checks=self.checks), *levels[1:]]
        groups: list[list[Node]] = [[] for _ in range(len(levels) + 1)]
        for node in nodes:
            variables = self.body.axes(node, {})
            inner = (n + 1 for n, level in enumerate(levels) if not level.step and level.axis in variables)
            depth = max(inner, default=0)
            groups[max(depth, together) if depth else 0].append(node)
        self.body.write(groups[0])
        with ExitStack() as loops:
            for level, own in zip(levels, groups[1:], strict=True):
                loops.enter_context(self.body.each(level))
                self.body.write(own)
            inside()
