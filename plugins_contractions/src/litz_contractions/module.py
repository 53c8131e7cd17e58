"""A Triton module of one kernel with its launcher's settings: one place for all kernels of products and of attention.

In: the lines of a kernel, the names of its buffers and sizes, and how it is launched. Out: a `KernelSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from litz.ir import Buffer, Program
from litz.ir.dtypes import short
from litz.ir.index import Expr
from litz.targets.triton.dialect import POINTER_TYPES
from litz.targets.triton.generate import Launch, launch_settings
from litz.targets.triton.imports import import_lines
from litz.targets.triton.text import size_text
from litz.tiles.names import Names
from litz_plugins import COUNTERS, KernelSource

DEVICE_FUNCTIONS: Mapping[str, str] = {
    f"_{words}{kind}_{half}": "litz_contractions.products.bytes"
    for words in ("", "word_")
    for kind in ("nibbles", "signed", "unsigned")
    for half in ("bf16", "f16")
}
"""The functions that kernels call beside those of core, with their modules."""


def write_module(
    name: str,
    symbol: str,
    note: str,
    lines: Sequence[str],
    names: Names,
    program: Program,
    written: Collection[str],
    index: tuple[str, Iterable[Expr]],
    launch: Launch,
    pointer: Callable[[Buffer], str] = lambda buffer: POINTER_TYPES[buffer.dtype],
) -> KernelSource:
    """Returns the source of one kernel. name: the operation's. symbol: the kernel's. note: the first line of the
    header. lines: the kernel's body. written: names of buffers that it writes. index: the type of indices, and what
    must not exceed `LIMIT` where that is the kernel's argument. launch, pointer: see `launch_settings`."""
    index_type, wanted = index
    limits = [size_text(expr, names.sizes) for expr in dict.fromkeys(wanted)]
    buffers = [program.buffers[buffer] for buffer in names.buffers]
    counters = [COUNTERS] * bool(launch.get("counters"))
    parameters = [*names.buffers.values(), *("counters" for _ in counters), *names.sizes.values()]
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
    return KernelSource(name, "triton", text, symbol, (*names.buffers, *counters, *names.sizes), settings, suffix="py")
