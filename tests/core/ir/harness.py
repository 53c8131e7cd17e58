"""What the tests of the IR share: programs of one loop."""

from __future__ import annotations

import sympy
import torch

from litz.ir import Buffer, Layout, Loop, Program, Range, Store, TensorRef
from litz.ir.index import loop_var, reduction_var

I0, I1, R0 = loop_var(0), loop_var(1), reduction_var(0)
S0 = sympy.Symbol("s0", integer=True, positive=True)
CPU = torch.device("cpu")
F32 = torch.float32


def n(value: int) -> sympy.Integer:
    return sympy.Integer(value)


def program(stores: tuple[Store, ...], ranges: dict, reduction: dict, inputs: dict, outputs: dict) -> Program:
    """A program of one loop; inputs and outputs map names to (size, dtype)."""
    buffers = {k: Buffer(k, dtype, CPU, Layout.contiguous(size), "input") for k, (size, dtype) in inputs.items()}
    buffers |= {k: Buffer(k, dtype, CPU, Layout.contiguous(size)) for k, (size, dtype) in outputs.items()}
    loop = Loop(
        "loop0",
        CPU,
        tuple(Range(var, n(size)) for var, size in ranges.items()),
        tuple(Range(var, n(size)) for var, size in reduction.items()),
        stores,
    )
    refs = tuple(TensorRef(name, buffers[name].layout) for name in outputs)
    return Program("test", tuple(inputs), buffers, (loop,), refs)
