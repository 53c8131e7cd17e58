"""KernelPlan: what a kernel walks, loads, reduces and stores, before a device has a say.

In: a Kernel of the schedule and its Program. Out: a `KernelPlan`, which a code generator adds a tiling to (what lies
along lanes, blocks and threads) and prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from litz.ir import Buffer, Loop, Program, Range
from litz.ir.accesses import Access
from litz.ir.index import Expr, Symbol, is_canonical, is_placeholder
from litz.ir.printer import OVER, buffer_text, loop_lines, node_names, size_text, symbols_of, word
from litz.ir.stages import Stages, find_stages, one_walk_sums
from litz.ir.transform import collapse, flatten
from litz.logs.units import likely_value

from .named_sizes import name_sizes

if TYPE_CHECKING:
    from litz.schedule.schedule import Kernel

PIECES = 0
"""The group of the ranges that are combined over, in `collapse`."""


@dataclass(frozen=True)
class KernelPlan:
    """Everything about a kernel that no device changes.

    loops: what the kernel runs, flat and collapsed: its own loop, then those that combine what that one has stored.
    pieces: output ranges of the first that the others combine over. buffers: the arguments, in order. sizes: the size
    symbols that the loops name, in order. host: what some of these stand for; the host computes it. starts: buffer ->
    the element that every access counts from at least, where that is not the first. inplace: see
    `litz.schedule.schedule.Kernel`. unaligned: buffers whose memory may start anywhere. hints: see `litz.ir.Program`.
    settings: what the code generator is to choose otherwise, see `Kernel`.
    """

    name: str
    device: torch.device
    loops: tuple[Loop, ...]
    buffers: Mapping[str, Buffer]
    pieces: tuple[Range, ...] = ()
    sizes: tuple[Symbol, ...] = ()
    host: Mapping[Symbol, Expr] = field(default_factory=dict)
    starts: Mapping[str, int] = field(default_factory=dict)
    inplace: Mapping[str, str] = field(default_factory=dict)
    unaligned: frozenset[str] = frozenset()
    hints: Mapping[Symbol, int] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)

    @property
    def origins(self) -> tuple[str, ...]:
        """Returns the names of the graph's nodes that the loops come from, each once."""
        return tuple(dict.fromkeys(name for loop in self.loops for name in loop.origins))

    @property
    def accesses(self) -> Iterator[Access]:
        """Returns the loads and stores of all loops."""
        return (access for loop in self.loops for access in loop.accesses)

    def hint(self, expr: Expr) -> int:
        """Returns a likely value of a size, for decisions about speed only."""
        return likely_value(expr, self.hints)

    def stages(self, loop: Loop, one_walk: bool = False) -> Stages:
        """Returns the stages of one of the loops, or of a part of one. one_walk: puts reductions on one walk that a
        target may compute so, though one depends on the other."""
        return find_stages(loop, self.inplace, one_walk_sums(loop) if one_walk else None)

    def values(self, sizes: Sequence[Symbol]) -> tuple[Expr, ...]:
        """Returns what the host passes for some size symbols: expressions over the sizes of the graph."""
        return tuple(self.host.get(size, size) for size in sizes)

    def __str__(self) -> str:
        settings = "".join(f", {word(name)}={value}" for name, value in self.settings.items())
        lines = [f"kernel {word(self.name)} on {self.device}{settings}"]
        for kind, each in (*(("symbol", s) for s in self._other_symbols()), *(("size", s) for s in self.sizes)):
            value = f" = {self.host[each]}" if each in self.host else ""
            lines.append(f"  {kind} {size_text(each, self.hints)}{value}")
        for name, buffer in self.buffers.items():
            notes = [f"{OVER} {word(self.inplace[name])}"] if name in self.inplace else []
            notes += [f"from element {self.starts[name]}"] if name in self.starts else []
            notes += ["unaligned"] if name in self.unaligned else []
            kind = "buffer" if buffer.kind == "temporary" else buffer.kind
            lines.append(f"  {kind} {buffer_text(buffer)}{''.join(f', {note}' for note in notes)}")
        if self.pieces:
            lines.append(f"  pieces {', '.join(map(str, self.pieces))}")
        for loop in self.loops:
            lines += ["  " + line for line in loop_lines(loop)]
            lines += ["    " + line for line in self._stage_lines(loop)]
        return "\n".join(lines)

    def _other_symbols(self) -> list[Symbol]:
        """The symbols that the text names beside `sizes`, sorted: of hints, of layouts, of what the host computes."""
        found = {symbol for buffer in self.buffers.values() for symbol in buffer.layout.free_symbols}
        found |= {*self.hints, *self.host, *(r.var for r in self.pieces)}
        found |= symbols_of([*self.host.values(), *self.loops])
        return sorted((s for s in found - {*self.sizes} if not is_canonical(s)), key=lambda symbol: str(symbol.name))

    def _stage_lines(self, loop: Loop) -> list[str]:
        names, stages = node_names(loop), self.stages(loop)
        lines = []
        for number, walk in enumerate(stages.walks):
            done = [f"reduces {names[node]}" for node in walk.reduces] + [f"stores {s.buffer}" for s in walk.stores]
            lines.append(f"walk {number}: {', '.join(done)}")
        if stages.walks and stages.final:
            lines.append(f"then: {', '.join(f'stores {store.buffer}' for store in stages.final)}")
        return lines + [f"one walk: {names[total]} with {names[top]}" for total, top in one_walk_sums(loop).items()]


def plan_kernel(kernel: Kernel, program: Program) -> KernelPlan:
    """Returns the plan of a kernel. Kernels beside it have plans of their own."""
    named, buffers, host = name_sizes((kernel.loop, *kernel.finish), program.buffers)
    flat = [flatten(loop, buffers) for loop in named]
    loops, pieces = _aligned(flat) if len(flat) > 1 else ((collapse(flat[0]),), ())
    touched = dict.fromkeys(access.buffer for loop in loops for access in loop.accesses)
    return KernelPlan(
        kernel.name,
        kernel.device,
        loops,
        {name: buffers[name] for name in touched},
        pieces,
        sizes_of(loops),
        host,
        _starts(loops),
        kernel.inplace,
        frozenset(name for name in touched if program.is_unaligned(name)),
        program.hints,
        kernel.settings,
    )


def sizes_of(loops: Sequence[Loop]) -> tuple[Symbol, ...]:
    """Returns the size symbols that loops name, in order of first use."""
    own = {var for loop in loops for var in loop.extents}
    exprs = (expr for loop in loops for expr in loop.expressions)
    found = dict.fromkeys(symbol for expr in exprs for symbol in sorted(expr.free_symbols - own, key=lambda s: s.name))
    return tuple(symbol for symbol in found if not is_placeholder(symbol))


def _aligned(flat: Sequence[Loop]) -> tuple[tuple[Loop, ...], tuple[Range, ...]]:
    """Flat loops collapsed so that they have the same output ranges, the pieces of the first aside; and those."""
    first, *others = flat
    outputs = others[0].ranges
    pieces = {r.var: PIECES for r in first.ranges if r not in outputs}
    found = (collapse(first, pieces), *(collapse(other) for other in others))
    if len({frozenset(r for r in loop.ranges if r.var not in pieces) for loop in found}) > 1:
        # Ranges that are one in some of them and two in others stay two in all.
        alone = {r.var: number for number, r in enumerate(outputs, PIECES + 1)}
        found = (collapse(first, pieces | alone), *(collapse(other, alone) for other in others))
    combined = {r.var for r in found[1].ranges}
    return found, tuple(r for r in found[0].ranges if r.var not in combined)


def _starts(loops: Sequence[Loop]) -> Mapping[str, int]:
    starts: dict[str, int] = {}
    for access in (access for loop in loops for access in loop.accesses):
        constant = access.offset.as_coeff_Add()[0]
        start = int(constant) if constant.is_Integer and int(constant) > 0 else 0
        starts[access.buffer] = min(starts.get(access.buffer, start), start)
    return {name: start for name, start in starts.items() if start}
