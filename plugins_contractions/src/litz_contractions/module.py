"""What offers and kernels of products and of attention have in common.

`offer` makes an offer of a function that raises `Unsuitable` where there is none. `write_module` makes a Triton module
of one kernel: in, the lines of the kernel, the names of its buffers and sizes, and how it is launched; out, a
`KernelSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from litz.ir import Buffer, Program
from litz.ir.dtypes import short
from litz.ir.index import Expr, Ranges, Symbol
from litz.schedule.inline import TooComplex
from litz.targets.triton.dialect import POINTER_TYPES
from litz.targets.triton.generate import launch_settings
from litz.targets.triton.imports import import_lines
from litz.targets.triton.indices import index_type_of
from litz.targets.triton.kernel import function_lines
from litz.targets.triton.print import POSITIONS, Printer
from litz.targets.triton.text import size_text
from litz.tiles.names import Names, name_all
from litz.tiles.program import Line, Nest, TileProgram
from litz.tiles.shape import Tiling
from litz_plugins import COUNTERS, Choice, ChoiceContext, KernelSource

DEVICE_FUNCTIONS: Mapping[str, str] = {
    f"_{each}_integer": "litz_contractions.products.bytes" for each in ("half", "word")
}
"""The functions that kernels call beside those of core, with their modules."""


class Unsuitable(ValueError):
    """A contraction that a kernel does not do. The message says why; "" where it is not like one that a kernel does."""


Offering = Callable[..., Sequence[Choice]]


def offer(ability: str, name: str = "", says: str = "no kernel", of: Any = object) -> Callable[[Offering], Offering]:
    """Returns what makes an offer of a function that raises `Unsuitable` instead: it offers nothing then, and puts the
    reason on record. ability: that a target must have; "" for all. name: of what is offered, for the verdict on it.
    says: what a record begins with, where no name is given; {} is the kind
    of contraction. of: the class of the contractions that it is for."""

    def offering(make: Offering) -> Offering:
        @wraps(make)
        def offered(template: Any, context: ChoiceContext, **more: Any) -> Sequence[Choice]:
            if not isinstance(template, of) or (ability and ability not in context.target.abilities):
                return ()
            try:
                return make(template, context, **more)
            except (Unsuitable, TooComplex) as why:
                if str(why) and name:
                    context.verdict(name, str(why))
                elif str(why):
                    context.record(template.target_name, f"{says.format(template.kind)}: {why}")
                return ()

        return offered

    return offering


@dataclass(frozen=True)
class TiledSource(KernelSource):
    """A KernelSource with the TilePrograms that its text was printed from, one for each kernel of the launch, or the
    Nest of a processor's."""

    tiles: tuple[TileProgram | Nest, ...] = field(default=(), repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "tiles": ()}  # another process needs the text alone


@dataclass(frozen=True)
class Naming:
    """Names of all that a contraction's kernels touch. positions, limits: the type of positions, and what must not
    exceed 32 bits (`litz.targets.triton.indices`)."""

    names: Names
    positions: str
    limits: Sequence[Expr]

    def tiles(
        self, tiling: Tiling, program: Program, extents: Ranges, lines: tuple[Line, ...], limits: Iterable[Expr]
    ) -> TileProgram:
        """Returns the TileProgram of lines. limits: what must not exceed 32 bits either."""
        buffers, every = {name: program.buffers[name] for name in self.names.buffers}, (*self.limits, *limits)
        return TileProgram(tiling, buffers, self.names, extents, self.positions, lines, tuple(dict.fromkeys(every)))


def name_kernel(
    program: Program,
    touched: Iterable[str],
    variables: Mapping[Symbol, str],
    exprs: Iterable[Expr],
    more: Iterable[Expr],
    walked: Sequence[Expr] = (),
) -> Naming:
    """Returns the names of kernels that touch these buffers. exprs, more: expressions over sizes that they need, before
    and after those of the buffers. walked: sizes that positions may reach beside those of the buffers."""
    touched = list(dict.fromkeys(touched))
    spans = [program.buffers[name].layout.span for name in touched]
    names = name_all(touched, variables, [*exprs, *spans, *more])
    index_type, limits = index_type_of([*spans, *walked], bool(names.sizes))
    return Naming(names, next(name for name, text in POSITIONS.items() if text == index_type), limits)


def write_module(
    name: str,
    symbol: str,
    note: str,
    print_as: Callable[..., Printer],
    tiles: TileProgram,
    program: Program,
    written: Collection[str],
    recipe: Any,
    grid: int | str,
    counters: int | None = None,
    pointer: Callable[[Buffer], str] = lambda buffer: POINTER_TYPES[buffer.dtype],
) -> KernelSource:
    """Returns the source of one kernel. name: the operation's. symbol: the kernel's. note: the first line of the
    header. print_as: makes a printer of the lines. program: has the buffers. written: names of
    buffers that the kernel writes. recipe: has the warps and stages of a program. grid, counters, pointer: see
    `launch_settings`."""
    names = tiles.names
    limits = [size_text(expr, names.sizes) for expr in dict.fromkeys(tiles.limits)]
    buffers = [program.buffers[buffer] for buffer in names.buffers]
    launch: dict[str, Any] = {"num_warps": recipe.warps, "num_stages": recipe.stages, "grid": grid}
    launch |= {} if counters is None else {"counters": counters}
    counted = [COUNTERS] * bool(counters)
    parameters = [*names.buffers.values(), *("counters" for _ in counted), *names.sizes.values()]
    printer = print_as(tiles.tiling, tiles.buffers, names, tiles.extents, tiles.positions)
    printer.print(tiles.lines)
    kernel = function_lines(symbol, [*parameters, *["INDEX"] * bool(limits)], printer)
    uses = (
        (text, buffer, "written" if buffer.name in written else "read")
        for text, buffer in zip(names.buffers.values(), buffers)
    )
    header = [f"# {note}", *(f"#   {text}: {short(buffer.dtype)}, {use}" for text, buffer, use in uses)]
    settings = launch_settings(buffers, program.is_unaligned, launch, len(names.sizes), limits, kernel[-1], pointer)
    text = "\n".join([*header, *import_lines(kernel[-1], DEVICE_FUNCTIONS), "", "", *kernel, ""])
    arguments = (*names.buffers, *counted, *names.sizes)
    return TiledSource(name, "triton", text, symbol, arguments, settings, suffix="py", tiles=(tiles,))
