"""Reductions that own their ranges: text in and out, what verifies, and what the interpreter makes of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from litz.ir import Program, Range, build
from litz.ir.index import loop_var, reduction_var, to_expr
from litz.ir.interpret import interpret
from litz.ir.structure import structure_of
from litz.ir.verify import IllegalProgram, verify
from litz_testing.parse import parse_program
from litz_testing.parse.cursor import ParseError

F32, F64 = torch.float32, torch.float64
R0, R1 = reduction_var(0), reduction_var(1)

MATMUL = """program p
  input a: f64 [5, 7] cpu
  input b: f64 [7, 3] cpu
  loop op0 [i0<5, i1<3] cpu
    v0: f64 = load a[i0, r0]
    v1: f64 = load b[r0, i1]
    v2: f64 = reduce[r0<7] dot v0, v1
    store o[i0, i1] = v2  # f64 [5, 3]
  return o[5, 3]"""
SOFTMAX_OF_PRODUCT = """program p
  input a: f64 [5, 7] cpu
  input b: f64 [7, 6] cpu
  loop op0 [i0<5, i1<6] cpu
    v0: f64 = load a[i0, r0]
    v1: f64 = load b[r0, i1]
    v2: f64 = reduce[r0<7] dot v0, v1
    v3: f64 = load b[r0, r1]
    v4: f64 = reduce[r0<7] dot v0, v3
    v5: f64 = reduce[r1<6] max v4
    v6: f64 = sub v2, v5
    v7: f64 = exp v6
    v8: f64 = sub v4, v5
    v9: f64 = exp v8
    v10: f64 = reduce[r1<6] sum v9
    v11: f64 = div v7, v10
    store o[i0, i1] = v11  # f64 [5, 6]
  return o[5, 6]"""
CONVOLUTION = """program p
  input a: f64 [2, 3, 5, 6] cpu
  input b: f64 [4, 3, 3, 2] cpu
  loop op0 [i0<2, i1<4, i2<3, i3<6] cpu
    v0: i64 = index i3 + r2 - 1
    v1: bool = ge v0, 0:i64
    v2: f64 = load a[i0, r0, i2 + r1, i3 + r2 - 1] if v1
    v3: f64 = load b[i1, r0, r1, r2]
    v4: f64 = reduce[r0<3, r1<3, r2<2] dot v2, v3
    store o[i0, i1, i2, i3] = v4  # f64 [2, 4, 3, 6]
  return o[2, 4, 3, 6]"""
LAYER_NORM = """program p
  size s0 about 5
  input a: f64 [s0, 7] cpu
  input b: f64 [7] cpu
  loop op0 [i0<s0, i1<7] cpu
    v0: f64 = load a[i0, i1]
    v1: f64 = load a[i0, r0]
    v2: f64 = reduce[r0<7] sum v1
    v3: f64 = div v2, 7.0:f64
    v4: f64 = sub v0, v3
    v5: f64 = sub v1, v3
    v6: f64 = mul v5, v5
    v7: f64 = reduce[r0<7] sum v6
    v8: f64 = div v7, 7.0:f64
    v9: f64 = add v8, 1e-05:f64
    v10: f64 = rsqrt v9
    v11: f64 = mul v4, v10
    v12: f64 = load b[i1]
    v13: f64 = mul v11, v12
    store o[i0, i1] = v13  # f64 [s0, 7]
  return o[s0, 7]"""
ATTENTION = """program p
  input a: f64 [5, 4] cpu
  input b: f64 [7, 4] cpu
  input c: f64 [7, 3] cpu
  loop op0 [i0<5, i1<3] cpu
    v0: i64 = index i0 - r0
    v1: bool = ge v0, 0:i64
    v2: f64 = load a[i0, r1]
    v3: f64 = load b[r0, r1]
    v4: f64 = reduce[r1<4] dot v2, v3
    v5: f64 = where v1, v4, -inf:f64
    v6: f64 = load c[r0, i1]
    v7: f64 = reduce[r0<7] weighted_softmax v5, v6
    store o[i0, i1] = v7  # f64 [5, 3]
  return o[5, 3]"""
POSITIONS = """program p
  input a: f64 [3, 4, 5] cpu
  loop op0 [i0<4] cpu
    v0: f64 = load a[r1, i0, r0]
    v1: i64 = reduce[r0<5, r1<3] argmax v0
    store o[i0] = v1  # i64 [4]
  return o[4]"""
MIXED = """program p
  input a: f64 [5, 7] cpu
  input b: f64 [6] cpu
  loop op0 [i0<5 | r0<7] cpu
    v0: f64 = load a[i0, r0]
    v1: f64 = load b[r1]
    v2: f64 = mul v0, v1
    v3: f64 = reduce[r1<6] max v2
    v4: f64 = reduce sum v3
    store o[i0] = v4  # f64 [5]
  return o[5]"""

INSIDE = """program p
  input a: f64 [5, 7] cpu
  input b: f64 [6] cpu
  loop op0 [i0<5 | r0<7] cpu
    v0: f64 = load a[i0, r0]
    v1: f64 = reduce sum v0
    v2: f64 = load b[r1]
    v3: f64 = mul v1, v2
    v4: f64 = reduce[r1<6] max v3
    store o[i0] = v4  # f64 [5]
  return o[5]"""
BESIDE = """program p
  input a: f64 [5, 7] cpu
  input b: f64 [6] cpu
  loop op0 [i0<5 | r0<7] cpu
    v0: f64 = load a[i0, r0]
    v1: f64 = load b[r1]
    v2: f64 = mul v0, v1
    v3: f64 = reduce[r1<6] max v2
    v4: f64 = reduce sum v0
    v5: f64 = sub v3, v4
    store o[i0, r0] = v5  # f64 [5, 7]
  return o[5, 7]"""


def convolved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.pad(a, (1, 0)), b)


def attended(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    hidden = torch.ones(5, 7).tril().logical_not()
    return (a @ b.T).masked_fill(hidden, -torch.inf).softmax(-1) @ c


MEANINGS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "matmul": (MATMUL, torch.matmul),
    "softmax of a product": (SOFTMAX_OF_PRODUCT, lambda a, b: (a @ b).softmax(-1)),
    "convolution": (CONVOLUTION, convolved),
    "layer norm": (LAYER_NORM, lambda a, b: F.layer_norm(a, (7,), b)),
    "causal attention": (ATTENTION, attended),
    "positions": (POSITIONS, lambda a: a.permute(1, 2, 0).reshape(4, 15).argmax(-1)),
    "around the loop's own": (INSIDE, lambda a, b: (a.sum(-1, keepdim=True) * b).amax(-1)),
    "beside the loop's own": (BESIDE, lambda a, b: (a[..., None] * b).amax(-1) - a.sum(-1, keepdim=True)),
    "inside of the loop's own": (MIXED, lambda a, b: (a[..., None] * b).amax(-1).sum(-1)),
}


def inputs(program: Program) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    sizes = [[program.hint(n) for n in program.buffers[name].layout.size] for name in program.input_buffers]
    return [torch.randn(size, generator=generator, dtype=F64) for size in sizes]


@pytest.mark.parametrize("name", MEANINGS)
def test_a_nested_reduction_means_what_torch_computes(name: str) -> None:
    text, meaning = MEANINGS[name]
    program = parse_program(text)
    verify(program)
    assert str(program) == text
    given = inputs(program)
    (found,) = interpret(program, given)
    torch.testing.assert_close(found, meaning(*given))


def test_ranges_of_its_own_or_of_the_loop_are_one_meaning() -> None:
    own = parse_program(MATMUL)
    shared = parse_program(MATMUL.replace("i1<3]", "i1<3 | r0<7]").replace("reduce[r0<7]", "reduce"))
    verify(shared)
    assert torch.equal(*interpret(own, inputs(own)), *interpret(shared, inputs(shared)))
    assert own != shared and structure_of(own.loops, own) != structure_of(shared.loops, shared)
    assert structure_of(own.loops, own) == structure_of(parse_program(MATMUL).loops, own)


def test_ranges_are_part_of_a_node() -> None:
    value = build.load("x", (R0,), F32)
    whole, seven, eight = (
        build.reduce("sum", value, over=over) for over in ((), (Range(R0, to_expr(7)),), (Range(R0, to_expr(8)),))
    )
    assert len({whole, seven, eight}) == 3 and whole.attrs == ("sum",) and whole.over == ()
    assert build.reduce("sum", value, over=(Range(R0, to_expr(7)),)) is seven
    assert pickle.loads(pickle.dumps(seven)) is seven


def test_a_value_varies_with_what_its_reduction_does_not_own() -> None:
    (loop,) = parse_program(ATTENTION).loops
    i0, i1 = loop_var(0), loop_var(1)
    score, weighted = (node for node in loop.nodes if node.op == "reduce")
    assert loop.variables[score] == {i0, R0} and loop.variables[weighted] == {i0, i1}
    assert {r.var for r in loop.nested} == {R0, R1} and loop.depths[weighted] == 2
    assert not loop.is_reduction and not any(loop.levels.values())


WRONG = {
    "a variable outside": (
        MATMUL.replace("    store", "    v3: f64 = add v0, v2\n    store").replace("= v2 ", "= v3 "),
        "the store into o uses r0, which only the values of a reduction know",
    ),
    "a variable in a store": (MATMUL.replace("o[i0, i1]", "o[i0, r0]"), "the store into o uses r0"),
    "a variable of the loop": (MATMUL.replace("i1<3]", "i1<3 | r0<7]"), None),
    "another extent": (SOFTMAX_OF_PRODUCT.replace("v4: f64 = reduce[r0<7]", "v4: f64 = reduce[r0<6]"), "two ranges"),
    "one variable twice": (MATMUL.replace("[r0<7]", "[r0<7, r0<7]"), "two ranges of one variable"),
    "an output variable": (MATMUL.replace("reduce[r0<7]", "reduce[r0<7, i1<3]"), None),
    "an extent that varies": (MATMUL.replace("[r0<7]", "[r0<i0 + 1]"), "the extent of r0<i0 + 1 is no number or size"),
    "a variable without a range": (MATMUL.replace("[r0<7]", "[r1<7]"), "r0, which has no range"),
    "one value of two": (MATMUL.replace("dot v0, v1", "dot v0"), "takes 2 values, has 1"),
    "outside of its buffer": (MATMUL.replace("[r0<7]", "[r0<8]"), "reads a of 7 elements along dimension 1"),
    "a scan inside": (
        MIXED.replace("max v2", "max v5").replace("    v3:", "    v5: f64 = scan sum v2\n    v3:"),
        "owns its ranges and takes a scan",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_rules_of_nesting(name: str) -> None:
    text, message = WRONG[name]
    assert text not in (MATMUL, SOFTMAX_OF_PRODUCT, MIXED)
    if message is None:
        verify_fails(text, "a loop variable has two ranges")
    else:
        verify_fails(text, message)


def verify_fails(text: str, message: str) -> None:
    with pytest.raises(IllegalProgram) as error:
        verify(parse_program(text))
    assert message in str(error.value)


@pytest.mark.parametrize("line", ["reduce[] dot", "reduce[r0] dot", "reduce[7] dot", "reduce[r0<7 dot"])
def test_ranges_that_cannot_be_read(line: str) -> None:
    with pytest.raises(ParseError):
        parse_program(MATMUL.replace("reduce[r0<7] dot", line))
