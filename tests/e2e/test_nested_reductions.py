"""A plugin makes one Loop of a whole attention, and the compiler makes kernels of the Loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from litz.backend import backend_with
from litz.ir import Loop, Program, Range, Store, Template, build
from litz.ir.index import loop_var, reduction_var
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz_plugins import Pass, PassContext, hookimpl
from litz_testing.fuzz.owning import nested
from litz_testing.parse.programs import parse_program


def product_loop(template: Template, program: Program) -> Loop:
    """A product of two whole buffers, as a Loop."""
    left, right = template.refs
    (name,) = template.writes
    rows, depth, columns = (Range(var, size) for var, size in zip(
        (loop_var(0), reduction_var(0), loop_var(1)), (*left.layout.size, right.layout.size[1]), strict=True
    ))  # fmt: skip
    a = build.load(left.buffer, (rows.var, depth.var), program.buffers[left.buffer].dtype)
    b = build.load(right.buffer, (depth.var, columns.var), program.buffers[right.buffer].dtype)
    store = Store(name, (rows.var, columns.var), build.reduce("dot", a, b))
    return Loop(template.name, template.device, (rows, columns), (depth,), (store,), template.origins)


class Nesting:
    """Makes Loops of products, and nests all reductions."""

    def __init__(self) -> None:
        self.made: list[Program] = []

    @hookimpl
    def litz_register_passes(self) -> Sequence[Pass]:
        return [Pass("nest", "program", self._nest, before=("separate_reductions",))]

    def _nest(self, program: Program, context: PassContext) -> Program:
        operations = (product_loop(op, program) if isinstance(op, Template) else op for op in program.operations)
        self.made.append(nested(replace(program, operations=tuple(operations))))
        return self.made[-1]


def test_attention_as_one_loop_is_compiled() -> None:
    nesting, generator = Nesting(), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(size, generator=generator) for size in ((3, 2), (2, 4), (4, 2)))

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k * 0.5, -1) @ v

    torch._dynamo.reset()
    options = {"graph_cache": False, "debug": True}
    found = torch.compile(attention, backend=backend_with(nesting=nesting), options=options)(q, k, v)
    torch.testing.assert_close(found.double(), attention(q.double(), k.double(), v.double()), rtol=1e-5, atol=1e-6)
    (program,) = nesting.made
    assert program.externs == () and len(program.loops[-1].nested) == 4  # weights and values; scores, maximum and sum


def test_a_sum_of_a_part_of_a_buffer_is_not_nested() -> None:
    """s56g:1379: zeros and a sum made one buffer; what reads both has no value of the sum alone."""
    program = parse_program("""
program p
  input x: f32 [2, 3] cpu
  loop op0 [i0<4] cpu
    store buf0[i0] = 0.0:f32  # f32 [4]
  loop op1 [i0<2 | r0<3] cpu
    v0: f32 = load x[i0, r0]
    v1: f32 = reduce sum v0
    store buf0[i0] = v1  # f32 [4]
  loop op2 [i0<4] cpu
    v0: f32 = load buf0[i0]
    store buf1[i0] = v0  # f32 [4]
  return buf1[4]
""")
    made = nested(program)
    verify(made)
    x = torch.arange(6.0).reshape(2, 3)
    (found,) = interpret(made, [x])
    assert made.loops[1].nested and torch.equal(found, torch.cat([x.sum(1), torch.zeros(2)]))
