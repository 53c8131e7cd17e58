"""`litz explain --tiles`, and the text of TilePrograms."""

from __future__ import annotations

from litz.ir import Store, build
from litz.targets.triton.codegen import TritonCodegen
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


def test_every_case_has_a_text_without_objects_in_it() -> None:
    for name in list(CASES)[::9]:
        case = CASES[name]()
        text = program_text(TritonCodegen().tiles(case.plan, case.context))
        assert text.startswith("tiles on ") and "(text=" not in text and " at 0x" not in text, name
