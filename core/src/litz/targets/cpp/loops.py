"""Loops as C++ text: nests, pragmas, and which node is written at which depth.

In: a `Tiling`. `Writer` is what `pointwise` and `reduction` share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from litz.ir.index import Symbol
from litz.ir.node import Node
from litz.ir.operation import Range
from litz.target import figures_of
from litz_plugins import Target

from .body import Body
from .figures import CppFigures
from .tiling import Tiling, reads_conditionally


@dataclass(frozen=True)
class Level:
    """One loop of a nest. `first` are lines that stand at the start of its body."""

    header: tuple[str, ...]
    var: Symbol | None = None
    first: tuple[str, ...] = ()


class Writer:
    """A tiling and the body that is being written for it. `threads`: that share the work. team: within a parallel
    region, whose threads share its loops and need not wait for each other at their ends."""

    def __init__(self, tiling: Tiling, body: Body, target: Target, team: bool = False) -> None:
        self.tiling, self.body, self.lines, self.index, self.team = tiling, body, body.lines, body.index, team
        self.threads, self.limits = target.units, figures_of(target, CppFigures)
        self.line_values = target.line_bytes // 4
        """Lanes of four bytes in a line of the cache."""
        self.loop = tiling.loop
        self.final = tiling.stages.final
        self.roots = [root for store in self.final for root in store.roots]
        """The values that the stores after all walks need."""
        self.checks = any(node.op == "bounded" for node in self.loop.nodes)
        self.atomic = any(store.mode != "set" for store in self.loop.stores)
        body.threads = self.threaded

    # ------------------------------------------------------------------ pragmas

    @property
    def threaded(self) -> bool:
        """Returns whether threads may share the work. With symbolic sizes the kernel decides when it runs."""
        work = self.tiling.work
        return bool(self.loop.ranges) and (not work.is_Integer or int(work) >= self.limits.parallel_values)

    def parallel(self, loops: int, simd: bool = False) -> tuple[str, ...]:
        """Returns the pragma for `loops` nested loops that the threads share. Where there is too little work for
        threads, returns the pragma of a vector loop if `simd`, else no line."""
        if not self.threaded:
            return self.simd() if simd else ()
        text = "#pragma omp for" if self.team else "#pragma omp parallel for"
        if simd:
            text += " simd"
        if loops > 1:
            text += f" collapse({loops})"
        text += " schedule(static)"
        text += " nowait" if self.team else self.worth_it()
        return (text + self.check_clause(True),)

    def worth_it(self) -> str:
        """Returns the clause of a parallel region that checks at run time whether there is enough work for threads; ""
        if the sizes are numbers."""
        work = self.tiling.work
        return "" if work.is_Integer else f" if ({self.index.text(work)} >= {self.limits.parallel_values})"

    def simd(self, checks: bool | None = None, clauses: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns the pragma of a vector loop, which asserts that iterations are independent, as those of a Loop are.
        checks: whether the loop brings failed checks together; by default, if the loop has any. clauses: texts of
        reductions."""
        text = "#pragma omp simd" + "".join(f" reduction({clause})" for clause in clauses)
        return (text + self.check_clause(self.checks if checks is None else checks),)

    def check_clause(self, wanted: bool) -> str:
        """Returns the OpenMP clause that brings failed checks together, '' if unwanted or if the loop checks
        nothing."""
        return " reduction(max : bad)" if wanted and self.checks else ""

    def one_by_one(self, nodes: Sequence[Node], unrolled: Sequence[Range]) -> tuple[str, ...]:
        """Returns the line that begins the body of an unrolled loop whose loads must stay apart, so that no loop around
        it is vectorized; no line for other loops. See `reads_conditionally`."""
        return ("ONE_BY_ONE;",) if reads_conditionally(nodes, unrolled) else ()

    # ------------------------------------------------------------------ loops

    def header(self, r: Range, start: str = "0", stop: str | None = None) -> str:
        """Returns the head of a loop, such as `for (int i0 = 0; i0 < 64; ++i0)`."""
        name = self.index.names[r.var]
        stop = stop or self.index.text(r.size)
        return f"for ({self.index.var_type(r.size)} {name} = {start}; {name} < {stop}; ++{name})"

    def level(self, r: Range, pragma: Sequence[str] = (), first: Sequence[str] = (), chunk: str = "") -> Level:
        """Returns a loop over a range, or over the chunk of the range that is named `chunk` and ends at `{chunk}_end`.
        pragma: lines above the loop. first: lines at the start of its body."""
        header = self.header(r, chunk, f"{chunk}_end") if chunk else self.header(r)
        return Level((*pragma, header), r.var, tuple(first))

    def chunks(self, r: Range, step: int, name: str) -> Level:
        """Returns a loop over chunks of `step` elements of a range: the variable `name` is where the chunk starts,
        `name_end` where it ends."""
        type_, extent = self.index.var_type(r.size), self.index.text(r.size)
        header = f"for ({type_} {name} = 0; {name} < {extent}; {name} += {step})"
        if r.size.is_Integer and int(r.size) % step == 0:
            end = f"const {type_} {name}_end = {name} + {step};"
        else:
            end = f"const {type_} {name}_end = {extent} - {name} < {step} ? {extent} : {name} + {step};"
        return Level((header,), None, (end,))

    def nest(self, levels: Sequence[Level], nodes: Sequence[Node], inside: Callable[[], None], shared: int = 0) -> None:
        """Writes the loops, each node in the outermost one that has all its variables, and `inside` innermost.

        Where there is work enough the threads share the first `shared` loops, which have nothing between them then, as
        `collapse` needs.
        """
        together = shared if self.threaded else 0
        if together:
            starts = tuple(line for level in levels[:together] for line in level.first)
            bare = [replace(level, first=()) for level in levels[:together]]
            bare[0] = replace(bare[0], header=(*self.parallel(together), *bare[0].header))
            bare[-1] = replace(bare[-1], first=starts)
            levels = [*bare, *levels[together:]]
        groups: list[list[Node]] = [[] for _ in range(len(levels) + 1)]
        for node in nodes:
            variables = self.body.variables[node]
            depth = max((n + 1 for n, level in enumerate(levels) if level.var in variables), default=0)
            if 0 < depth < together:
                depth = together
            groups[depth].append(node)
        self.body.write(groups[0])
        self._open(levels, groups, inside, 0)

    def _open(
        self, levels: Sequence[Level], groups: Sequence[Sequence[Node]], inside: Callable[[], None], depth: int
    ) -> None:
        if depth == len(levels):
            inside()
            return
        with self.body.scope(*levels[depth].header):
            self.lines.add(*levels[depth].first)
            self.body.write(groups[depth + 1])
            self._open(levels, groups, inside, depth + 1)
