"""Applying layout plans: strides, copies, what must stay, and what library calls take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.capture.aot import compile_with_aot
from litz.capture.graph import Graph
from litz.capture.layout import apply_layout, changed_strides, pinned_nodes, traced_order
from litz.capture.layout_needs import LayoutNeeds, core_layout_needs
from litz.driver.builtin import builtin_plugins
from litz.lower import core_lowerings
from litz.pipeline import make_compiler
from litz_plugins import Conversion, Decision, LayoutPlan, hookimpl
from litz_plugins.manager import make_plugins

aten = torch.ops.aten


def capture(fn: Callable[..., Any], *args: torch.Tensor, whole: Sequence[Any] = ()) -> list[Graph]:
    """The graphs of `fn(*args)`, which runs as captured. whole: ops that are not decomposed."""
    graphs: list[Graph] = []

    def keep(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        graphs.append(graph)
        return lambda values: torch.fx.Interpreter(graph.module).run(*values)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        table = make_plugins(builtin_plugins(), entry_points=()).decompositions()
        table = {op: rule for op, rule in table.items() if op not in whole}
        return compile_with_aot(gm, inputs, compile_graph=keep, decompositions=table)

    torch._dynamo.reset()
    torch.compile(fn, backend=backend)(*args)
    return graphs


def apply(graph: Graph, plan: LayoutPlan, needs: LayoutNeeds | None = None) -> tuple[Graph, list[Decision]]:
    notes: list[Decision] = []
    planned = apply_layout(graph, plan, "test", notes.append, None if needs is None else needs.of)
    return planned, notes


def node(graph: Graph, name: str) -> torch.fx.Node:
    return next(n for n in graph.nodes if n.name == name)


LAST = (0, 2, 3, 1)
IMAGE = torch.randn(2, 3, 4, 5)
LOWERED = LayoutNeeds({}, frozenset(core_lowerings()))


def test_one_copy_is_made_for_all_users_before_the_first() -> None:
    (graph,) = capture(lambda x: (x.sin(), x.cos(), x.tan()), IMAGE)
    planned, notes = apply(graph, LayoutPlan({}, conversions=(Conversion("arg0_1", LAST, ("cos", "tan"), "why", 3.0),)))
    clones = [n for n in planned.nodes if n.target is aten.clone.default]
    assert len(clones) == 1 and clones[0].meta["val"].stride() == (60, 1, 15, 3)
    assert [n.args[0] for n in planned.nodes if n.name in ("cos", "tan")] == clones * 2
    assert node(planned, "sin").args[0].op == "placeholder"
    assert [str(n) for n in notes] == [
        "arg0_1 for cos, tan: copied in the order (0, 2, 3, 1) (why); considered the copy 3 us"
    ]
    assert graph.nodes[-1].all_input_nodes[0].name == "sin", "the graph that came in is as it was"


def test_an_output_changes_only_if_it_is_copied_back() -> None:
    (graph,) = capture(lambda x: x.sin(), IMAGE)
    alone, notes = apply(graph, LayoutPlan({"sin": LAST}))
    assert alone is graph and notes[0].chosen == "as it was"
    back = Conversion("sin", (0, 1, 2, 3), ("output",))
    planned, _ = apply(graph, LayoutPlan({"sin": LAST}, conversions=(back,)))
    assert node(planned, "sin").meta["val"].stride() == (60, 1, 15, 3)
    assert planned.outputs[0].meta["val"].stride() == (60, 20, 5, 1)
    freed, _ = apply(graph, LayoutPlan({"sin": LAST}, keep_outputs=False))
    assert changed_strides(graph, freed) == ((60, 1, 15, 3),)


def test_a_result_of_several_is_named_by_its_getitem() -> None:
    (graph,) = capture(lambda x: torch.nn.functional.max_pool2d(x, 2, return_indices=True)[0] + 1, IMAGE)
    planned, _ = apply(graph, LayoutPlan({"getitem": LAST}))
    assert node(planned, "getitem").meta["val"].stride() == (12, 1, 6, 3)
    values = node(planned, "max_pool2d_with_indices").meta["val"]
    assert [v.stride() for v in values] == [(12, 1, 6, 3), (12, 4, 2, 1)]


def test_views_lie_as_what_they_view() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        first, second = y[:, 1:].split((1, 1), 1)
        return y.permute(0, 2, 3, 1).cos() + first.permute(0, 2, 3, 1) * second.permute(0, 2, 3, 1)

    (graph,) = capture(f, IMAGE, whole=(aten.split.Tensor, aten.split_with_sizes.default))
    planned, notes = apply(graph, LayoutPlan({"sin": LAST}), LOWERED)
    found = {n.name: n.meta["val"] for n in planned.nodes if n.op == "call_function"}
    assert found["sin"].stride() == (60, 1, 15, 3) and found["permute"].stride() == (60, 15, 3, 1)
    assert (found["slice_1"].stride(), found["slice_1"].storage_offset()) == ((60, 1, 15, 3), 1)
    split = next(n for n in planned.nodes if n.op == "call_function" and "split" in str(n.target))
    items = [n.meta["val"] for n in split.users]
    assert [part.storage_offset() for part in split.meta["val"]] == [item.storage_offset() for item in items] == [1, 2]
    assert all(item.stride() == (60, 1, 15, 3) for item in (*split.meta["val"], *items))
    assert found["cos"].stride() == node(graph, "cos").meta["val"].stride(), "what is no view stays as traced"
    assert not [n for n in notes if n.chosen.startswith("copied")]


def test_parts_of_a_tensor_do_not_pin_it() -> None:
    (graph,) = capture(lambda x: torch.add(*x.sin()[:, :2].chunk(2, 1)), IMAGE)
    pinned, _ = pinned_nodes(graph)
    assert "sin" not in {n.name for n in pinned}


def test_a_view_that_only_the_traced_strides_allow_gets_them() -> None:
    (graph,) = capture(lambda x: x.sin().view(2, 12, 5).cos(), IMAGE)
    planned, notes = apply(graph, LayoutPlan({"sin": LAST}), LOWERED)
    given = node(planned, "view").args[0]
    assert given.target is aten.clone.default and given.meta["val"].stride() == (60, 20, 5, 1)
    assert node(planned, "view").meta["val"].stride() == (60, 5, 1)
    assert any("aten.view.default is a view of the strides of the trace only" in note.reason for note in notes)


def test_a_call_gets_the_traced_strides_of_a_view_too() -> None:
    (graph,) = capture(lambda x: torch.linalg.qr(x.sin().permute(0, 2, 1, 3))[0], IMAGE)
    call = next(n for n in graph.nodes if "qr" in str(n.target))
    planned, _ = apply(graph, LayoutPlan({"sin": LAST}), LOWERED)
    given = node(planned, call.name).args[0]
    assert given.target is aten.clone.default and given.args[0].name == "permute"
    assert given.meta["val"].stride() == node(graph, "permute").meta["val"].stride() == (60, 5, 20, 1)


def test_a_view_has_no_layout_of_its_own() -> None:
    (graph,) = capture(lambda x: x.sin().permute(0, 2, 3, 1).cos(), IMAGE)
    planned, notes = apply(graph, LayoutPlan({"permute": (0, 1, 2, 3)}))
    assert planned is graph and [n.chosen for n in notes] == ["as it was"]


def test_a_call_that_nobody_asked_about_gets_the_strides_of_the_trace() -> None:
    (graph,) = capture(lambda x: torch.linalg.qr(x.sin())[0], IMAGE)
    call = next(n for n in graph.nodes if "qr" in str(n.target))
    planned, notes = apply(graph, LayoutPlan({"sin": LAST}))
    given = node(planned, call.name).args[0]
    assert given.target is aten.clone.default and given.meta["val"].stride() == (60, 20, 5, 1)
    assert any("takes the strides of the trace" in note.reason for note in notes)
    free = LayoutNeeds({call.target: "any"}, frozenset())
    planned, _ = apply(graph, LayoutPlan({"sin": LAST}), free)
    assert node(planned, call.name).args[0].name == "sin"


def test_who_relies_on_strides() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x.sin(), x.cos()
        c = b.view(-1)
        d = (x * 2).as_strided((3,), (2,), 1)
        y.add_(a)
        return a, c, d + 1

    (graph,) = capture(f, IMAGE, IMAGE.clone())
    pinned, visible = pinned_nodes(graph)
    assert {"cos", "view", "mul", "arg0_1", "arg1_1"} <= {n.name for n in pinned}
    assert {n.name for n in visible} >= {"sin"} and not pinned & visible


def test_needs_by_row_by_tag_and_by_default() -> None:
    (graph,) = capture(lambda x, t: torch.ops.aten.nll_loss2d_forward(x.sin(), t, None, 1, -100)[0], *_loss())
    needs = LayoutNeeds(core_layout_needs(), frozenset({aten.sin.default}))
    x, sin = node(graph, "arg0_1"), node(graph, "sin")
    assert needs.of(sin, x) == "any"
    (call,) = capture(lambda x: torch.linalg.qr(x)[0], IMAGE)[0].placeholders[0].users
    assert needs.of(call, call.args[0]) == "traced"
    fake = torch.fx.Graph()
    a, b = fake.placeholder("a"), fake.placeholder("b")
    loss = fake.call_function(aten.nll_loss2d_backward.default, (a, b, a, None, 1, -100, b))
    assert needs.of(loss, b) == "contiguous"
    row = LayoutNeeds({aten.nll_loss2d_backward.default: {"total_weight": "traced"}})
    assert (row.of(loss, a), row.of(loss, b)) == ("any", "traced")


@pytest.mark.parametrize("ndim", [1, 2])
def test_a_convolution_along_a_line_takes_contiguous_tensors(ndim: int) -> None:
    """torch copies others itself, by a kernel that fuses with nothing."""
    op, x = (F.conv1d, F.conv2d)[ndim - 1], torch.randn(2, *(4, 4)[:ndim], 3)
    (graph,) = capture(lambda x, w: op(x.movedim(-1, 1), w), x, torch.randn(5, 3, *(2, 2)[:ndim]))
    (convolution,) = [each for each in graph.nodes if each.target == aten.convolution.default]
    needs = LayoutNeeds(core_layout_needs())
    wanted = "contiguous" if ndim == 1 else "any"
    assert [needs.of(convolution, each) for each in convolution.all_input_nodes] == [wanted, wanted]


def _loss() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.int64)


def test_an_order_puts_single_elements_where_they_are_row_major() -> None:
    (graph,) = capture(lambda x: x + 1, IMAGE)
    mode = graph.placeholders[0].meta["val"].fake_mode
    with mode:
        thin = torch.empty_strided((2, 1, 4, 5), (20, 1, 5, 1))
        last = torch.empty_strided((2, 3, 4, 5), (60, 1, 15, 3))
    assert traced_order(graph, thin) == (0, 1, 2, 3) and traced_order(graph, last) == LAST


@pytest.mark.parametrize("conversion", [Conversion("sin", LAST, ("cos",)), Conversion("none", LAST, ("sin",))])
def test_a_conversion_that_fits_nothing_names_the_plugin(conversion: Conversion) -> None:
    (graph,) = capture(lambda x: x.sin() + x.cos(), IMAGE)
    with pytest.raises(ValueError, match="plugin test"):
        apply(graph, LayoutPlan({}, conversions=(conversion,)))


def test_a_plugin_says_what_its_op_takes() -> None:
    """A custom op whose plugin says "contiguous" gets that, without any plan."""
    seen: list[tuple[int, ...]] = []

    @torch.library.custom_op("litz_core_test::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.stride())
        return x.clone()

    look.register_fake(lambda x: torch.empty_like(x))

    class Rows:
        @hookimpl
        def litz_register_layout_needs(self) -> Any:
            return {torch.ops.litz_core_test.look.default: "contiguous"}

    from litz import pipeline

    plugins = make_plugins(builtin_plugins(), extra=[("rows", Rows())], entry_points=())
    x = IMAGE.permute(0, 2, 3, 1)
    torch._dynamo.reset()
    f = torch.compile(lambda x: look(x.sin()) + 1, backend=lambda g, i: pipeline.compile_backend(g, i, plugins=plugins))
    torch.testing.assert_close(f(x), x.sin() + 1)
    assert seen[0] == (60, 15, 3, 1)
    assert make_compiler(plugins=plugins).plugins.layout_needs()[aten.convolution.default] == "any"


def test_attachments_reach_the_report(tmp_path: Any) -> None:
    class Adds:
        @hookimpl
        def litz_select_layout(self) -> LayoutPlan:
            return LayoutPlan({}, attachments={"a table.txt": "rows & columns", "picture.svg": "<svg></svg>"})

    from litz import pipeline
    from litz import report as reports
    from litz_tools.page import render_html
    from litz_tools.text import report_text

    plugins = make_plugins(builtin_plugins(), extra=[("adds", Adds())], entry_points=())
    options = {"report_dir": tmp_path}
    torch._dynamo.reset()
    with reports.collect() as collected:
        torch.compile(
            lambda x: x.sin(), backend=lambda g, i: pipeline.compile_backend(g, i, options=options, plugins=plugins)
        )(IMAGE)
    assert "a table" in report_text(collected[0]) and "rows & columns" in report_text(collected[0])
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (folder / "picture.svg").read_text() == "<svg></svg>"
    assert "<svg></svg>" in render_html(collected[0])
    assert collected[0].to_json()["attachments"]["a table.txt"] == "rows & columns"
