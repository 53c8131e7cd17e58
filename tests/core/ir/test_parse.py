"""The IR's text is whole: what is read of it is what was printed. Errors name the place and what was expected there."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

from core.schedule.programs import EXAMPLES
from litz.ir import (
    Buffer,
    Check,
    Collective,
    Extern,
    KernelCall,
    Layout,
    Loop,
    Node,
    Opaque,
    Program,
    Range,
    Store,
    Template,
    TensorRef,
    Unbacked,
    Wait,
    build,
)
from litz.ir.index import FloorDiv, Max, Min, Mod, PythonMod, loop_var, placeholder, reduction_var, to_expr
from litz.ir.node import intern
from litz.ir.operation import require
from litz.ir.printer import objects_in
from litz_contractions.attention.operation import Attention, AttentionBackward, Blocks
from litz_testing.parse.cursor import ParseError
from litz_testing.parse.programs import parse_program

GOLDEN = Path(__file__).parents[1] / "schedule" / "golden"
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
F32, I64, BOOL = torch.float32, torch.int64, torch.bool
I0, I1, R0 = loop_var(0), loop_var(1), reduction_var(0)
S0 = sympy.Symbol("s0", integer=True, positive=True)
U0 = sympy.Symbol("u0", integer=True)
aten = torch.ops.aten


def buffer(name: str, *size: Any, dtype: torch.dtype = F32, kind: Any = "temporary", device: Any = CPU) -> Buffer:
    return Buffer(name, dtype, device, Layout.contiguous(size), kind)


def ref(name: str, *size: Any) -> TensorRef:
    return TensorRef(name, Layout.contiguous(size))


def program(*operations: Any, outputs: tuple[Any, ...] = (), buffers: tuple[Buffer, ...] = (), **more: Any) -> Program:
    """A program with an input x of 4 elements; other buffers as they are given."""
    known = {each.name: each for each in (buffer("x", 4, kind="input"), *buffers)}
    return Program("p", ("x",), known, operations, outputs, **more)


def loop(*stores: Store, inner: bool = False, size: Any = 4) -> Loop:
    ranges = (Range(R0, to_expr(8)),) if inner else ()
    return Loop("op0", CPU, (Range(I0, to_expr(size)),), ranges, stores, ("mul", "add_1"))


def back(given: Program) -> Program:
    """What is read of a program's text; it is the same, and has the same text."""
    found = parse_program(str(given), objects_in(given))
    assert found == given, str(given)
    assert str(found) == str(given)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_programs_of_the_golden_files(name: str) -> None:
    make, outputs = EXAMPLES[name]
    given = make().program(*outputs, name=name)
    text, _, _ = (GOLDEN / f"{name}.txt").read_text().partition("\n\n")
    assert back(given) == parse_program(text) == given


def x(index: Any = I0, **more: Any) -> Node:
    return build.load("x", (to_expr(index),), F32, **more)


POSITION = build.load("n", (I0,), I64)
OTHER = build.load("n", (I0 + 1,), I64)
ARG0, ARG1 = placeholder(0), placeholder(1)
BODIES: dict[str, Node] = {
    "constants": build.call("add", build.const(float("inf"), F32), build.const(-0.0, F32)),
    "nan": intern(
        "where", F32, (build.const(True, BOOL), build.const(float("nan"), F32), build.const(-1e-30, F32)), ()
    ),
    "casts": build.cast(build.cast(x(), torch.float16), torch.int8),
    "bits": build.bitcast(x(), torch.int32),
    "index": build.cast(build.index(3 * FloorDiv(I0 + 1, 7) + Mod(I0, 5) - PythonMod(I0 - S0, 3)), F32),
    "a product of a sum": build.index(sympy.Mul(2, I0 + S0, evaluate=False)),
    "powers": build.index(S0**2 * I0 + Max(1, S0) - Min(S0, 4)),
    "masked": x(mask=build.call("lt", build.index(I0), build.const(3, I64))),
    "bounded": build.bounded(POSITION, S0 + 1, 'index 1 of "x"', build.call("lt", POSITION, build.const(3, I64))),
    "gathered": build.load("m", (ARG0, ARG1 + I0), F32, (POSITION, OTHER)),
    "gathered in another order": build.load("m", (ARG1, ARG0), F32, (POSITION, OTHER)),
    "gathered twice": build.load("m", (ARG0, ARG1), F32, (POSITION, POSITION)),
    "gathered at one of two": build.load("m", (ARG1, I0), F32, (POSITION, OTHER)),
    "gathered at a constant": build.load("m", (ARG0, I0), F32, (build.const(-3, I64),)),
    "reduced": build.reduce("sum", build.load("m", (I0, R0), F32)),
    "scanned": build.scan("sum", build.load("m", (I0, R0), F32)),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str) -> None:
    value = BODIES[name]
    given = (
        buffer("m", 8, 8, kind="input"),
        buffer("n", 9, dtype=I64, kind="input"),
        buffer("o", S0, dtype=value.dtype),
    )
    body = loop(Store("o", (I0,), value), inner=name in ("reduced", "scanned"), size=S0)
    made = program(body, outputs=(ref("o", S0),), buffers=given, hints={S0: 8})
    found = back(replace(made, inputs=("x", "m", "n", S0 * 2)))
    assert found.loops[0].stores[0].value is value  # nodes are interned


@pytest.mark.parametrize("mode", ["set", "add", "prod", "max", "min"])
def test_stores(mode: Any) -> None:
    where = build.load("n", (I0,), I64)
    stores = (
        Store("o", (ARG0,), x(), (where,), mode),
        Store("o", (ARG0 + ARG1,), build.const(2.0, F32), (where, where), mode, build.call("lt", where, where)),
    )
    made = (buffer("n", 9, dtype=I64, kind="input"), buffer("o", 4))
    back(replace(program(loop(*stores), buffers=made), inputs=("x", "n")))


CALLS: dict[str, Extern] = {
    "an op": Extern("op1", CPU, aten.relu.default, (ref("x", 4),), outputs=("a",), origins=("relu",)),
    "a template": Template("op1", CPU, aten.mm.default, (ref("x", 2, 2), ref("x", 2, 2)), outputs=("a",), kind="mm"),
    "a template of another kind": Template("op1", CPU, aten.mm.default, (ref("x", 4),), outputs=("a",), kind="my_mm"),
    "arguments": Extern(
        "op1",
        CPU,
        aten.cat.default,
        (
            [1, (2, ()), {"a key": -3.5, "b": None}],
            (True, 'a # "string" of x[3]', 1e300, float("inf"), -float("inf"), 2 - 3j),
            (torch.bfloat16, torch.channels_last, torch.strided, GPU, S0 * 3 - 1, U0, ref("x", 4)),
        ),
        {"dtype": torch.float64, "out": [ref("x", 2, S0)]},
        outputs=("a", None, "b"),
    ),
    "effects": Extern(
        "op1",
        GPU,
        aten.add_.Tensor,
        (ref("x", 4), 1),
        outputs=("a", "b"),
        mutates=("x", "a"),
        aliases={"a": "x", "b": "a"},
        unbacked=(Unbacked(U0, (1, ("size", 0), ("divide", 4))), Unbacked(S0, (("item",),))),
        effect=True,
        origins=("add_", "odd name"),
    ),
    "a function": Extern("op1", CPU, torch.nn.functional.gelu, (ref("x", 4), object), outputs=("a",)),
    "a lambda": KernelCall("op1", CPU, lambda a: a, (ref("x", 4),), outputs=("a",), source=object()),
    "a check": Check(
        "op1", CPU, require, (sympy.Or(sympy.Eq(U0, 4), U0 < S0),), message="x", shown=(U0, S0), error=IndexError
    ),
    "a check that never holds": Check("op1", CPU, require, (sympy.false,)),
    "a check of all": Check("op1", CPU, require, (sympy.And(sympy.Ne(U0, 4), U0 <= 8, Mod(U0, 2) >= 1),), effect=True),
    "a collective": Collective(
        "op1", CPU, aten.relu.default, (ref("x", 4),), outputs=("a",), group="0", ranks=(0, 1), effect=True
    ),
    "a wait": Wait("op1", CPU, aten.relu.default, (ref("x", 4),), outputs=("a",), aliases={"a": "x"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    made = (buffer("a", 4), buffer("b", 2, S0, dtype=torch.complex64, device=GPU))
    used = tuple(each for each in made if each.name in CALLS[name].outputs)
    given = program(CALLS[name], buffers=used)
    back(given)
    alone = replace(given, buffers={each.name: replace(each, device=GPU) for each in given.buffers.values()})
    back(alone)


def score(name: str) -> Loop:
    at = tuple(loop_var(n) for n in range(4))
    ranges = tuple(Range(var, to_expr(4)) for var in at)
    return Loop("op9", CPU, ranges, (), (Store(name, at, build.call("tanh", build.load(name, at, F32))),))


def test_attention() -> None:
    tensor = ref("x", 1, 1, 2, 2)
    blocks = Blocks(to_expr(128), to_expr(64), ref("x", 4), ref("x", 2, 2), full_counts=ref("x", 1))
    forward = Attention("op1", CPU, torch.mm, (tensor,), query=tensor, key=tensor, value=tensor, scale=0.1, kind="flex")
    forward = replace(forward, outputs=("a",), score=score("score"), blocks=blocks, nothing=float("nan"), doubled=True)
    made = program(forward, buffers=(buffer("a", 4),))
    found = parse_program(str(made), objects_in(made))
    # NaN is not itself: it is compared as text.
    assert str(found) == str(made) and "is Attention" in str(made) and "nothing = nan" in str(made)
    assert replace(found.operations[0], nothing=0.0) == replace(forward, nothing=0.0)  # type: ignore[type-var]
    own = dict.fromkeys(("query", "key", "value", "out", "logsumexp"), tensor)
    backward = AttentionBackward("op2", CPU, torch.mm, (tensor,), **own)
    back(program(replace(backward, gradient=score("gradient"), mask=score("m"), logsumexp=tensor, scale=S0)))


def test_what_a_program_has_beside_its_operations() -> None:
    odd = {
        "x": buffer("x", 4, kind="input"),
        "y z": Buffer("y z", torch.float8_e4m3fn, CPU, Layout((to_expr(4), S0), (S0, to_expr(1)), S0 + 3), "input"),
        "w": buffer("w", 3, kind="constant"),
        "one": Buffer("one", F32, CPU, Layout((to_expr(1), to_expr(4)), (to_expr(9), to_expr(1))), "input"),
        "gone": Buffer("gone", BOOL, GPU, Layout.contiguous((U0, 0)), "temporary"),
        "aside": buffer("aside", kind="input"),
    }
    noisy = sympy.Symbol("z0", real=True, zero=False)
    made = Program(
        "a program",
        ("x", S0, "y z", "one", S0 * 2, Opaque("generator"), Opaque("script", object())),
        odd,
        (),
        (
            ref("x", 4),
            None,
            3,
            -2.5,
            True,
            S0 + 1,
            noisy,
            Opaque("generator"),
            Opaque(value="text"),
            Opaque(value=object()),
        ),
        constants={"w": torch.ones(3)},
        hints={U0: 5, S0: 7},
        static_inputs=frozenset({"x", "one"}),
        dying_inputs=frozenset({"x"}),
        owned_inputs=frozenset({"x"}),
        made_inputs=frozenset({"one"}),
    )
    found = back(made)
    assert list(found.hints) == [U0, S0] and found.hints[U0] == 5
    assert "  size z0 (real, not zero)\n" in str(made) and "  input x: f32 [4] cpu static dying owned\n" in str(made)


def test_comments_and_empty_lines_say_nothing() -> None:
    given = program(loop(Store("o", (I0,), x())), outputs=(ref("o", 4),), buffers=(buffer("o", 4),))
    lines = str(given).splitlines()
    spaced = "\n".join(["# a comment", "", lines[0], "      # another", *lines[1:], "", "   "])
    assert parse_program(spaced) == given


TEXT = """\
program p
  size s0 about 8
  input x: f32 [4, s0] cpu
  loop op0 [i0<4 | r0<s0] cpu  # sum_1
    v0: f32 = load x[i0, r0]
    v1: f32 = reduce sum v0
    store o[i0] = v1  # f32 [4]
  extern op1 y = aten.relu.default(o[4])  # f32 [4]
  return y[4]
"""
ERRORS = [
    ("program p", "prog p", 1, 1, "'program'"),
    ("about 8", "about x", 2, 17, "an integer"),
    ("x: f32", "x: f33", 3, 12, "a type (f32"),
    ("[4, s0] cpu", "[4, s0] gpu!", 3, 24, "a device"),
    ("[4, s0] cpu", "[4, s1] cpu", 3, 20, "a loop's variable or a size that a line"),
    ("[4, s0] cpu", "[4, 9**9**9] cpu", 3, 23, "an exponent of at most 64"),
    ("[4, s0] cpu", "[4, s0 | 3] cpu", 3, 23, "',' or ']'"),
    ("[4, s0] cpu", "[4, FloorDiv(s0, 0)] cpu", 3, 20, "an expression that sympy can make (ZeroDivisionError"),
    ("[4, s0] cpu", "[4, __import__('os')] cpu", 3, 20, "a function of sizes"),
    ("i0<4 |", "i0 4 |", 4, 16, "'<'"),
    ("v0: f32 = load", "v0: f32 = laod", 5, 15, "a scalar op, load"),
    ("sum v0", "sum v7", 6, 26, "a value of an earlier line"),
    ("store o[i0] = v1", "store o[i0] v1", 7, 17, "'=' or one of add="),
    ("v1  # f32", "v1 x # f32", 7, 22, "the end of the line"),
    (
        "y = aten.relu.default(o[4])  # f32 [4]",
        "y = aten.relu.default(o[4])  # f32 [4]  # f32 [4]",
        8,
        56,
        "a type and a layout",
    ),
    ("aten.relu.default", "aten.reluu.default", 8, 18, "an op of torch's"),
    ("aten.relu.default", "os.system", 8, 18, "an op of torch's"),
    ("aten.relu.default", "@relu", 8, 23, "a function, which no text has: give objects={'op1': ...}"),
    ("(o[4])", "(o[4]", 8, 40, "',' or ')'"),
    ("extern op1", "external op1", 8, 3, "loop, return or one of extern"),
    ("  return y[4]\n", "", 9, 1, "return"),
    ("return y[4]", "return y[4]\n  return", 10, 3, "a region, or the end of the text"),
    (
        "y = aten.relu.default(o[4])  # f32 [4]",
        "o = aten.relu.default(o[4])  # f32 [5]",
        8,
        45,
        "the type and layout that o",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "column", "expected"), ERRORS)
def test_errors_name_the_place(old: str, new: str, line: int, column: int, expected: str) -> None:
    assert parse_program(TEXT).name == "p" and TEXT.count(old) == 1
    with pytest.raises(ParseError) as caught:
        parse_program(TEXT.replace(old, new))
    error = caught.value
    assert (error.line, error.column) == (line, column) and error.expected.startswith(expected), str(error)
    assert str(error).startswith(f"line {line}, column {column}: expected {expected}")


def test_whatever_is_wrong_with_a_text_is_a_parse_error() -> None:
    """Texts with a character or a few too many or too few, or with a line at another place."""
    rng = random.Random(0)
    texts = [(GOLDEN / f"{name}.txt").read_text().partition("\n\n")[0] for name in EXAMPLES]
    refused = 0
    for _ in range(400):
        text = rng.choice([*texts, TEXT])
        at, end = rng.randrange(len(text)), rng.randrange(9)
        text = text[:at] + rng.choice(["", *"()[]{},:=<+-*/|&~@# 0v", "\n"]) + text[at + end :]
        if rng.random() < 0.2:
            lines = text.split("\n")
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            text = "\n".join(lines)
        try:
            str(parse_program(text))
        except ParseError as error:
            refused += 1
            assert 1 <= error.line <= len(text.splitlines()) + 1, text
    assert refused > 200
