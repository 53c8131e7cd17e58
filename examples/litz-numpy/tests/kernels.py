"""One loop run twice: by litz's interpreter, and as a NumPy kernel."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from litz.cache.disk import Cache
from litz.codegen.kernel_plan import plan_kernel
from litz.codegen.plan_rules import verify_plan
from litz.ir import Buffer, Layout, Loop, Program, Range, TensorRef, build
from litz.ir.index import loop_var, reduction_var, to_expr
from litz.ir.interpret import evaluate, interpret
from litz.options import make_options
from litz.schedule.schedule import Kernel
from litz.target import cpu_target
from litz_numpy.codegen import NumpyCodegen
from litz_plugins import CodegenContext

CPU = torch.device("cpu")
I, R = ([make(number) for number in range(4)] for make in (loop_var, reduction_var))  # noqa: E741
CACHE = Cache(Path(tempfile.gettempdir()) / "litz-numpy-tests")


def layout_of(tensor):
    return Layout(tuple(map(to_expr, tensor.shape)), tuple(map(to_expr, tensor.stride())))


def load(name, tensor, *index, **kwargs):
    """A load at a position; by default the loop variables in order."""
    position = tuple(map(to_expr, index)) if index else tuple(I[: tensor.dim()])
    return build.load(name, position, tensor.dtype, **kwargs)


def generate(program, inplace=None):
    """The source of a program whose loops are one kernel."""
    first, *others = program.operations
    kernel = Kernel("kernel", first, finish=tuple(others), inplace=inplace or {})
    plan = plan_kernel(kernel, program)
    assert not list(verify_plan(plan))
    return NumpyCodegen().generate(plan, context_of(program))


def context_of(program):
    return CodegenContext(make_options(), cpu_target(1), program, CACHE)


def check(
    ranges, stores, inputs, outputs, reduction=(), inplace=None, sizes=None, more_loops=(), wanted=None, **tolerance
):
    """A loop over `ranges` and `reduction` gives the same both ways. inputs, outputs: name -> tensor; an output that is
    an input too is combined with what is there. more_loops: those that combine what the first has stored. wanted: the
    results, where torch cannot run the loop. Returns the source."""
    sizes = sizes or {}
    own, inner = (
        tuple(Range(var, to_expr(size)) for var, size in zip(group, extents))
        for group, extents in ((I, ranges), (R, reduction))
    )
    loop = Loop("loop", CPU, own, inner, tuple(stores))
    tensors = {**inputs, **outputs}
    buffers = {
        name: Buffer(name, tensor.dtype, CPU, layout_of(tensor), "input" if name in inputs else "temporary")
        for name, tensor in tensors.items()
    }
    results = tuple(TensorRef(name, buffers[name].layout) for name in outputs)
    program = Program("test", (*inputs, *sizes), buffers, (loop, *more_loops), results)
    source = generate(program, inplace)

    memory = {name: tensor.clone() for name, tensor in inputs.items()}
    for name, tensor in outputs.items():
        if name in (inplace or {}):
            memory[name] = memory[inplace[name]]
        elif name not in memory:
            memory[name] = torch.full_like(tensor, 7)
    launch = NumpyCodegen().load(source, context_of(program))
    launch(*(memory[a].data_ptr() if isinstance(a, str) else evaluate(a, sizes) for a in source.arguments))
    if wanted is None:
        wanted = interpret(program, [*(tensor.clone() for tensor in inputs.values()), *sizes.values()])
    for name, theirs in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(
            memory[name], theirs, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}\n{source.text}", **tolerance
        )
    return source
