"""How each op of torch's core set is compiled: `python -m litz_testing.coverage` prints the table.

In: torch's registry, the decompositions and lowerings of core and of the installed plugins. Out: for each op tagged
`torch.Tag.core`, how.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._ops import OpOverload

from litz.driver.builtin import builtin_plugins
from litz_plugins import make_plugins

LIBRARY: Mapping[str, tuple[str, ...]] = {
    "sorting": ("sort.default", "topk.default", "randperm.default"),
    "FFT": ("_fft_r2c.default", "_fft_c2r.default"),
    "sizes that depend on the data": ("nonzero.default", "_local_scalar_dense.default", "_embedding_bag.default"),
    "changes the storage itself": ("resize_.default",),
}
"""Ops that a library computes, and why that is their nature. (The bags of `_embedding_bag` have any number of rows.)"""

NO_KERNEL: Mapping[str, tuple[str, ...]] = {
    "a size, known while compiling": ("sym_numel.default", "sym_storage_offset.default"),
    "removed by functionalization": ("atan2.out",),
}
CONTRACTIONS = ("mm", "bmm", "addmm", "convolution", "convolution_backward")
"""The ops whose lowering makes a call of the library that templates may replace."""


def core_ops() -> list[OpOverload]:
    """Returns the ATen ops that torch tags as core."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and hasattr(torch.ops.aten, packet):
            op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if isinstance(op, OpOverload) and torch.Tag.core in op.tags:
                found.append(op)
    return sorted(found, key=str)


def coverage() -> dict[str, str]:
    """Returns op name -> "native", "decomposed", "library: why", "no kernel: why", or "missing"."""
    plugins = make_plugins(builtin_plugins())
    lowerings, rules = plugins.lowerings(), plugins.decompositions()
    reasons = {
        f"aten.{name}": f"{kind}: {why}"
        for kind, table in (("library", LIBRARY), ("no kernel", NO_KERNEL))
        for why, names in table.items()
        for name in names
    }
    reasons |= {f"aten.{name}.default": "library: contraction or convolution" for name in CONTRACTIONS}

    def how(op: OpOverload) -> str:
        if str(op) in reasons:
            return reasons[str(op)]
        return "native" if op in lowerings else "decomposed" if op in rules else "missing"

    return {str(op): how(op) for op in core_ops()}


def table() -> str:
    """Returns Markdown: a row for each way, with how many ops and, but for the two common ways, which."""
    groups: dict[str, list[str]] = {}
    for name, way in coverage().items():
        groups.setdefault(way, []).append(name.removeprefix("aten.").removesuffix(".default"))
    rows = [
        f"| {way} | {len(names)} | {', '.join(f'`{n}`' for n in names) if ':' in way or way == 'missing' else ''} |"
        for way, names in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
    return "\n".join(["| how | ops | which |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())
