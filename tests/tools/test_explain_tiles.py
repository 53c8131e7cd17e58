"""`litz explain --tiles`, and the text of TilePrograms."""

from __future__ import annotations

from pathlib import Path

from core.tiles.test_nests import CASES as NESTS
from core.tiles.test_nests import nest_of, of_rows
from litz.ir import Store, build
from litz.target import target_named
from litz.targets.triton.codegen import TritonCodegen
from litz_plugins import CodegenContext
from litz_testing.parse.kernel_plans import parse_kernel_plan
from litz_tools.nest_text import nest_text
from litz_tools.tile_text import program_text
from support.triton_cases import CASES, make, output
from support.triton_cases.case import f32, i0, r0, random


def test_a_tile_program_is_text() -> None:
    x = build.load("a", (i0, r0), f32)
    stores = [Store("o", (i0, r0), build.call("sub", x, build.reduce("sum", x)))]
    case = make({"a": random(5, 19, dtype=f32)}, [output("o", (5, 19), f32)], (5,), (19,), stores)
    lines = program_text(TritonCodegen().tiles(case.plan, case.context)).splitlines()
    assert lines[0] == "tiles on i32, 1 warps"
    assert [line.strip() for line in lines if line.startswith("  axis r")] == ["axis r = r0<19 in blocks of 32 whole"]
    body = [line.strip() for line in lines if " = " in line and not line.startswith(("  axis", "  argument"))]
    assert "tmp1: f32[x] = reduce sum plain filled(tmp0, 0.0:f32)" in body
    assert "tmp2: f32[x, r] = sub tmp0, tmp1" in body


SOFTMAX = """kernel kernel0 on cuda:0
  input arg0_1: bf16 [8, 4096] cuda:0
  buffer buf8: bf16 [8, 4096] cuda:0
  loop op1 [i0<8 | r0<4096] cuda:0
    v0: bf16 = load arg0_1[4096*i0 + r0]
    v1: f32 = cast v0
    v2: f32 = reduce max v1
    v3: f32 = sub v1, v2
    v4: f32 = exp v3
    v5: f32 = reduce sum v4
    v6: f32 = div v4, v5
    v7: bf16 = cast v6
    store buf8[4096*i0 + r0] = v7
"""


def test_the_tile_program_of_a_softmax_is_the_one_that_docs_show() -> None:
    context = CodegenContext(None, target_named("H100"), None)  # type: ignore[arg-type]
    text = program_text(TritonCodegen().tiles(parse_kernel_plan(SOFTMAX), context))
    docs = (Path(__file__).parents[2] / "docs/tiles.md").read_text()
    assert "".join(f"    {line}\n" for line in text.splitlines()) in docs


def test_the_nest_of_a_softmax_is_the_one_that_docs_show() -> None:
    text = nest_text(nest_of(of_rows(300, 64)))
    docs = (Path(__file__).parents[2] / "docs/tiles.md").read_text()
    assert "".join(f"    {line}\n" for line in text.splitlines()) in docs


def test_explain_tiles_shows_the_nest_of_a_kernel_for_a_processor() -> None:
    import torch

    from litz import report
    from litz_tools.tiles import tile_lines

    with report.collect() as reports:
        torch.compile(lambda x: x.sin() * 2, backend="litz", options={"graph_cache": False})(torch.ones(8))
    (name, kernel, *rest) = tile_lines(reports)
    assert name == f"{reports[0].name}:" and kernel.startswith("  kernel0: ")
    assert (
        "\n".join(line.strip() for line in rest)
        == """\
nest
input p0 = arg0_1: f32 [8] cpu
buffer p1 = buf2: f32 [8] cpu
variables i0<8
work 56
each i0<8 in lanes
v0: f32[i0] = load p0[i0]
v1: f32[i0] = sin v0
v2: f32[i0] = mul v1, 2.0:f32
store set p1[i0] = v2"""
    )


def test_every_case_has_a_text_without_objects_in_it() -> None:
    for name in list(CASES)[::9]:
        case = CASES[name]()
        text = program_text(TritonCodegen().tiles(case.plan, case.context))
        assert text.startswith("tiles on ") and "(text=" not in text and " at 0x" not in text, name


def test_every_nest_has_a_text_without_objects_in_it() -> None:
    for case in NESTS.values():
        text = nest_text(nest_of(case()))
        assert text.startswith("nest") and "(text=" not in text and " at 0x" not in text


def test_the_text_of_a_nest_says_what_runs_where_something_is_lost() -> None:
    text = nest_text(nest_of(NESTS["parts of columns"]()))
    lines, odd = [line.strip() for line in text.splitlines()], text.partition(" = reduce any of bool")[0].split()[-1]
    assert {f"if something is lost in {odd}", f"if nothing is lost in {odd}"} <= set(lines)
    assert f"each i0<17 within t in lanes merges {odd}" in lines and f"shift0_part[i0 - t] lost of {odd}" in lines
