"""The plugin: the order of its passes, what it imports of core, and what is whose after a pass of its own."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import litz_passes
from litz.ir import KernelCall, Layout, TensorRef
from litz.ir.promised import check_promises
from litz.origins.plugin_call import Owner
from litz.pipeline import make_compiler
from litz.schedule.owned import owned_program
from litz_passes.program.write_in_place import write_in_place
from litz_plugins import KernelSource, PassContext, make_plugins
from litz_plugins.loading import installed_entry_points
from litz_testing.parse.programs import parse_program
from support.own_plugins import with_passes

ROOT = Path(__file__).parents[2]
ORDER = {
    "traced": "fuse_attention fuse_written_attention keep_written_layouts keep_around_windows",
    "joint": "view_regions read_sizes_alone remove_redundant_copies save_region_inputs",
    "partitioned": "rebuild_cpu_values narrow_positions save_what_is_read save_wholes read_saved_tensors "
    "note_standing_memory",
    "graph": "note_eagers_peak fold_constants place_constants convert_on_device remove_no_ops split_bias_gradients "
    "widen_products eliminate_common_subexpressions sum_scatters eliminate_dead_code fold_frozen fold_affine "
    "sum_products pad_contractions",
    "program": "separate_reductions remove_dead_operations round_shared write_in_place join_sums write_out_few_terms "
    "contract_broadcast_products split_reductions inline_pointwise round_inlined reduce_columns_first "
    "lay_out_temporaries pick_elements write_out_few_values spread_scatters simplify_bodies",
    "schedule": "finish_in_one_launch write_out_few_in_kernels join_segments part_segments order_steps overlap "
    "reduce_in_place run_beside verify_plan",
}
"""All passes of litz's own dists. Texts that are compared from commit to commit hang on it."""


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_does_not_hang_on_the_order_of_the_plugins(turned: bool) -> None:
    options = {"freezing": True, "collectives.passes": ["overlap"], "collectives.verify_plan": True}
    compiler = make_compiler(None, options)
    own = {point.name: point for point in installed_entry_points() if point.dist.name.startswith("litz-")}  # type: ignore
    points = [own[name] for name in sorted(own, reverse=turned) if name in compiler.plugins.names()]
    from litz.driver.builtin import builtin_plugins

    plugins = make_plugins(builtin_plugins(), entry_points=points)
    for stage, names in ORDER.items():
        assert [each.name for each in plugins.passes(compiler.options, stage)] == names.split()  # type: ignore[arg-type]


def test_core_alone_and_each_dist_alone_have_an_order() -> None:
    by_name = {point.name: point for point in installed_entry_points() if point.dist.name.startswith("litz-")}  # type: ignore
    from litz.driver.builtin import builtin_plugins

    for name in ("", "collectives", "contractions", "layout", "passes"):
        chosen = [by_name[name]] if name else []
        plugins = make_plugins(builtin_plugins(), entry_points=chosen)
        options = make_compiler(None, {}, plugins).options
        for stage, names in ORDER.items():
            found = [each.name for each in plugins.passes(options, stage)]  # type: ignore[arg-type]
            assert found == [each for each in names.split() if each in found]
            earlier = {"traced": ("contractions", "passes"), "joint": ("passes",), "partitioned": ("passes",)}
            assert bool(found) == (name in earlier.get(stage, (name,)))


def test_the_page_names_what_the_passes_import_of_core() -> None:
    """By rooms: `litz.ir` has all of its parts in one row, and so have `litz.schedule` and `litz.capture`."""
    found: set[tuple[str, str]] = set()
    for file in Path(litz_passes.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "litz":
                _, room, *rest = f"{node.module}.".split(".")
                part = ".".join(filter(None, rest))
                whole = room in ("ir", "target", "logs") and not part
                found |= {(room, part if part or whole else name.name) for name in node.names}
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8").partition("| of core | what |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"\| `litz\.([\w.]+)` \| (.*) \|", text))
    named = {room: set(re.findall(r"`([\w.]+)`", row)) for room, row in rows.items()}
    assert {room for room, _ in found} == {room.partition(".")[0] for room in rows}
    for room in ("ir", "schedule", "capture"):
        assert {part for at, part in found if at == room and part} == named[room] - {"CostModel"}


PUT_BACK = """\
program p
  input x: f32 [4] cpu
  loop op0 [i0<4] cpu
    v0: f32 = load x[i0]
    store y[i0] = v0  # f32 [4]
  loop op1 [i0<4] cpu
    v0: f32 = load y[i0]
    store x[i0] = v0
  return
"""


def test_an_input_that_gets_its_own_values_back_need_not_be_written() -> None:
    before = parse_program(PUT_BACK)
    after = write_in_place(before, PassContext({}, "program", "write_in_place"))
    assert not after.operations
    check_promises(before, after)
    other = parse_program(PUT_BACK.replace("v0: f32 = load y[i0]", "v0: f32 = load y[-i0 + 3]"))
    with pytest.raises(ValueError, match="the input x is no longer written"):
        check_promises(other, after)
    accept = make_compiler(plugins=with_passes()).accept_program
    assert not with_passes().run_passes("program", before, {}, accept=accept).operations


def test_a_kernel_that_a_pass_hands_other_buffers_stays_whose_it_is() -> None:
    """A kernel of the user's that writes a copy of an input writes the input itself: it is no kernel of litz-passes."""
    before = parse_program(PUT_BACK)
    source = KernelSource("kernel", "triton", "def kernel(y): ...", "kernel", ("y",))
    device, layout = torch.device("cpu"), Layout.contiguous((4,))
    call = KernelCall("op2", device, "kernel", (TensorRef("y", layout),), mutates=("y",), source=source)
    first, last = before.operations
    before = replace(before, operations=(first, call, last))
    after = write_in_place(before, PassContext({}, "program", "write_in_place"))
    (kept,) = owned_program(before, after, Owner("passes")).operations
    assert kept.mutates == ("x",) and kept.source.arguments == ("x",) and not kept.source.plugin  # type: ignore
    (new,) = owned_program(parse_program(PUT_BACK), after, Owner("passes")).operations
    assert new.source.plugin == "passes"  # type: ignore[union-attr]
