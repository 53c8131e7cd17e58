"""What offers and kernels of products and of attention have in common.

`offer` makes an offer of a function that raises `Unsuitable` where there is none. `write_module` makes a Triton module
of one kernel: in, the lines of the kernel, the names of its buffers and sizes, and how it is launched; out, a
`KernelSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from litz.ir import Buffer, KernelCall, Operation, Program
from litz.ir.dtypes import short
from litz.schedule.inline import TooComplex
from litz.targets.triton.dialect import POINTER_TYPES
from litz.targets.triton.generate import launch_settings
from litz.targets.triton.imports import import_lines
from litz.targets.triton.print import POSITIONS
from litz.targets.triton.text import size_text
from litz.tiles.program import Nest, TileProgram
from litz_plugins import COUNTERS, Choice, ChoiceContext, KernelSource

DEVICE_FUNCTIONS: Mapping[str, str] = {
    f"_{each}_integer": "litz_contractions.products.bytes" for each in ("half", "word")
}
"""The functions that kernels call beside those of core, with their modules."""


class Unsuitable(ValueError):
    """A contraction that a kernel does not do. The message says why; "" where it is not like one that a kernel does."""


Offering = Callable[..., Sequence[Choice]]


def offer(ability: str, name: str = "", says: str = "no kernel") -> Callable[[Offering], Offering]:
    """Returns what makes an offer of a function that raises `Unsuitable` instead: it offers nothing then, and puts the
    reason on record. ability: that a target must have; "" for all. name: of what is offered, for the verdict on it.
    says: what a record begins with, where no name is given; {} is the kind
    of contraction."""

    def offering(make: Offering) -> Offering:
        @wraps(make)
        def offered(template: Any, context: ChoiceContext, **more: Any) -> Sequence[Choice]:
            if ability and ability not in context.target.abilities:
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


def position_type(index_type: str) -> str:
    """Returns the name of a type of indices that is given as text."""
    return next(name for name, text in POSITIONS.items() if text == index_type)


def counted(grid: str, static: bool) -> int | str:
    """Returns how many programs a launch has: a number where the text names no size."""
    return int(eval(grid, {})) if static else grid


def call_of(template: Operation, meaning: Any, args: Sequence[Any], outputs: Sequence[str], source: Any) -> KernelCall:
    """Returns the call of a kernel that takes the place of a contraction, by the contraction's name."""
    name, device, origins = template.name, template.device, template.origins
    return KernelCall(name, device, meaning, tuple(args), outputs=tuple(outputs), origins=origins, source=source)


def write_module(
    name: str,
    symbol: str,
    note: str,
    lines: Sequence[str],
    tiles: TileProgram,
    program: Program,
    written: Collection[str],
    recipe: Any,
    grid: int | str,
    counters: int | None = None,
    pointer: Callable[[Buffer], str] = lambda buffer: POINTER_TYPES[buffer.dtype],
) -> KernelSource:
    """Returns the source of one kernel. name: the operation's. symbol: the kernel's. note: the first line of the
    header. lines: the kernel's body, which was printed from `tiles`. program: has the buffers. written: names of
    buffers that the kernel writes. recipe: has the warps and stages of a program. grid, counters, pointer: see
    `launch_settings`."""
    names, index_type = tiles.names, POSITIONS[tiles.positions]
    limits = [size_text(expr, names.sizes) for expr in dict.fromkeys(tiles.limits)]
    buffers = [program.buffers[buffer] for buffer in names.buffers]
    launch: dict[str, Any] = {"num_warps": recipe.warps, "num_stages": recipe.stages, "grid": grid}
    launch |= {} if counters is None else {"counters": counters}
    counted = [COUNTERS] * bool(counters)
    parameters = [*names.buffers.values(), *("counters" for _ in counted), *names.sizes.values()]
    parameters += ["INDEX: tl.constexpr"] * bool(limits)
    fixed = ["    INDEX: tl.constexpr = tl.int32"] * (index_type == "INDEX" and not limits)
    body = "\n".join([*fixed, *lines])
    uses = (
        (text, buffer, "written" if buffer.name in written else "read")
        for text, buffer in zip(names.buffers.values(), buffers)
    )
    header = [f"# {note}", *(f"#   {text}: {short(buffer.dtype)}, {use}" for text, buffer, use in uses)]
    kernel = ["", "", "@triton.jit", f"def {symbol}({', '.join(parameters)}):", body, ""]
    settings = launch_settings(buffers, program.is_unaligned, launch, len(names.sizes), limits, body, pointer)
    text = "\n".join([*header, *import_lines(body, DEVICE_FUNCTIONS), *kernel])
    arguments = (*names.buffers, *counted, *names.sizes)
    return TiledSource(name, "triton", text, symbol, arguments, settings, suffix="py", tiles=(tiles,))
