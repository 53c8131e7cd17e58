"""Lowering of `torch.associative_scan` with a pointwise function: one loop with a scan.

The function is a region (`litz.regions`): a Program whose loops compute what a state and a later one make. A number
that the function takes from outside is a part of the state, and stays what it is. Where the function is anything but
pointwise, the call runs the region step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from litz.ir import Node, Program, Region, TensorRef, build
from litz.ir.combined import combined_kinds, leaf
from litz.ir.dtypes import SUPPORTED, compute_dtype
from litz.ir.index import substitute
from litz.ir.node import rewrite
from litz.lower import LoweringContext, Tensor, View

Index = tuple[Any, ...]


def associative_scan(
    ctx: LoweringContext, region: Any, xs: Sequence[Tensor], others: Sequence[Any]
) -> tuple[View, ...]:
    """Returns each of xs, scanned along its first dimension by the region. NotImplementedError where the region is not
    pointwise."""
    if not isinstance(region, Region):
        raise NotImplementedError("its function is not compiled")
    lengths = [sympy.Eq(one, other) for x in xs for one, other in zip(x.size, xs[0].size, strict=True)]
    if not all(map(ctx.decide, lengths)) or any(x.dtype not in SUPPORTED for x in xs):
        raise NotImplementedError("values of several sizes, or of types that loops do not hold")
    program = ctx.regions[region.name]
    inputs = [*xs, *xs, *others]
    (length, *outer), size = xs[0].size, xs[0].size[1:]
    indices = ctx.indices(tuple(size))
    at = (*ctx.reduction_indices((length,)), *indices)
    found = _Function(program, len(xs), inputs)
    made = found.outputs(tuple(indices))
    values = [build.cast(x.load(at), _held(x.dtype)) for x in xs]
    values += [build.cast(tensor.load(position), _held(tensor.dtype)) for tensor, position in found.outside]
    dtypes = [value.dtype for value in values]
    outside = [leaf("o", number, dtypes[number]) for number in range(len(xs), len(values))]
    kinds = combined_kinds((*made, *outside), dtypes)
    stores, results = [], []
    for number, (x, kind) in enumerate(zip(xs, kinds)):
        results.append(View.whole(ctx.new_buffer(x.size, x.dtype, x.device, output=number)))
        stores.append(ctx.store(results[-1], at, build.cast(build.scan(kind, *values), x.dtype)))
    ctx.add_loop(xs[0].device, tuple(outer), (length,), stores)
    return tuple(results)


def _held(dtype: torch.dtype) -> torch.dtype:
    """The type in which a scan holds values: no target scans bools or integers of less than 32 bits."""
    computed = compute_dtype(dtype)
    return torch.int32 if computed.itemsize < 4 else computed


class _Function:
    """The nodes of a region's results, over leaves for the parts of two states. outside: what else the region loads."""

    def __init__(self, program: Program, count: int, inputs: Sequence[Tensor]) -> None:
        self.program, self.count = program, count
        given = enumerate(zip(program.inputs, inputs, strict=True))
        self.inputs = {str(name): (number, x) for number, (name, x) in given if isinstance(x, Tensor)}
        self.outside: list[tuple[Tensor, Index]] = []
        self.known: dict[tuple[str, Index], Node] = {}
        self.stores = {store.buffer: store for loop in program.loops for store in loop.stores}

    def outputs(self, position: Index) -> tuple[Node, ...]:
        """Returns what each result is at a position of the slices, in the types that a scan holds."""
        made = []
        for output in self.program.outputs:
            if not isinstance(output, TensorRef) or not output.is_all_of(self.program.buffers[output.buffer]):
                raise NotImplementedError("its function returns what is no tensor of its own")
            made.append(self.value(output.buffer, position, position))
        return tuple(build.cast(node, _held(node.dtype)) for node in made)

    def value(self, buffer: str, index: Index, position: Index) -> Node:
        """Returns an element of a buffer of the region."""
        found = self.known.get((buffer, index))
        if found is None:
            found = self.known[buffer, index] = self.computed(buffer, index, position)
        return found

    def computed(self, buffer: str, index: Index, position: Index) -> Node:
        """Returns an element of a buffer of the region, asked for the first time."""
        if buffer in self.inputs:
            return self.given(buffer, index, position)
        store = self.stores.get(buffer)
        if store is None or store.mode != "set" or store.indirect or store.mask is not None:
            raise NotImplementedError("its function is not pointwise")
        mapping = {var: at for var, at in zip(store.index, index, strict=True) if isinstance(var, sympy.Symbol)}

        def change(node: Node, args: tuple[Node, ...]) -> Node:
            if node.op == "load" and not args:
                return self.value(node.buffer, tuple(substitute(at, mapping) for at in node.index), position)
            if node.op == "const":
                return build.const(node.attrs[0], compute_dtype(node.dtype))
            if node.op == "cast":
                return build.cast(args[0], compute_dtype(node.dtype))
            try:
                return build.call(node.op, *args)
            except ValueError:  # more than an op on values: a position, a check, a reduction
                raise NotImplementedError(f"its function has {node.op}") from None

        return rewrite((store.value,), change)[0]

    def given(self, buffer: str, index: Index, position: Index) -> Node:
        """Returns an element of what the region is given: of a state, or of a tensor from outside."""
        number, tensor = self.inputs[buffer]
        side, part = ("s", number) if number < self.count else ("o", number - self.count)
        if number >= 2 * self.count:
            if (tensor, index) not in self.outside:
                self.outside.append((tensor, index))
            part = self.count + self.outside.index((tensor, index))
        elif index != position:
            raise NotImplementedError("its function mixes elements of a slice")
        held = leaf(side, part, _held(tensor.dtype))
        return held if held.dtype == compute_dtype(tensor.dtype) else build.cast(held, tensor.dtype)


LOWERINGS = {"higher_order.associative_scan": associative_scan}
