"""The question of whether a library call's result has the strides that were planned, asked where the call is.

In: a tensor's name and its planned layout. Out: Python text that is true where it has others. Nearly every result has
the planned strides, so what counts is the time to find that out: a comparison in place takes half as long as a call.
"""

from __future__ import annotations

from litz.ir import Layout

from .sizes import python_text, tuple_text


def strides_differ(name: str, layout: Layout, every: bool) -> str:
    """Returns the condition under which `name` has to be given the planned strides; "" if there is none.

    every: strides along dimensions of size 1 count too. A size that is a symbol counts, though it may be 1.
    """
    dims = [dim for dim, extent in enumerate(layout.size) if every or extent != 1]
    if len(dims) == len(layout.size):
        return f"{name}.stride() != {tuple_text(layout.stride)}" if dims else ""
    have = [f"{name}.stride()"] if len(dims) == 1 else [f"(_strides := {name}.stride())"] + ["_strides"] * len(dims)
    return " or ".join(
        f"{text}[{dim}] != {python_text(layout.stride[dim])}" for text, dim in zip(have, dims, strict=False)
    )
