"""Where operations come from, as text; and how torch's names of values become the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from litz.capture import torch_api
from litz.origins.operations import Origin, Provenance, modules_text, origin_text
from litz.report.step import Step
from litz_tools.groups import origin_in_short


def test_a_text_names_module_and_line_of_the_file() -> None:
    assert str(Origin("layers.3.mlp.fc1", "/home/me/model.py", 41)) == "layers.3.mlp.fc1 (model.py:41)"
    assert str(Origin("", "/home/me/model.py", 41)) == "model.py:41"
    assert str(Origin("layers.3")) == "layers.3"
    assert str(Origin()) == ""
    assert not Origin(op="aten.add"), "an op alone does not say where it is"


def test_what_most_nodes_are_decides_whether_it_is_a_gradient() -> None:
    forward, backward = Origin("fc", "m.py", 1), Origin("fc", "m.py", 1, backward=True)
    assert origin_text([backward]) == "gradient of fc (m.py:1)"
    assert origin_text([forward, backward]) == "fc (m.py:1)"
    assert origin_text([]) == ""


@pytest.mark.parametrize(
    ("modules", "text"),
    [
        (["a.0.ln"], "a.0.ln"),
        (["a.0.ln", "a.0"], "a.0: ln, itself"),
        (["a.0.ln", "a.1.ln"], "a: 0.ln, 1.ln"),
        (["a", "b"], "a, b"),
        (["a.0", "a.1", "a.2", "a.3", "a.4"], "a: 0, 1, 2 and 2 more"),
        (["a.0", "a.1", "a.2", "a.3"], "a: 0, 1, 2, 3"),
        (["layer1", "layer10"], "layer1, layer10"),
        (["0"], "module 0"),
        (["1.fc"], "module 1.fc"),
        (["1", "2"], "modules 1, 2"),
        (["0.ln", "0"], "module 0: ln, itself"),
        ([], ""),
    ],
)
def test_several_modules_share_what_they_have_in_common(modules: list[str], text: str) -> None:
    assert modules_text(modules) == text


def test_lines_of_a_file_are_said_together() -> None:
    origins = [Origin("", "/a/m.py", line) for line in (7, 3, 7)]
    assert origin_text(origins) == "m.py:3, 7"
    assert origin_text([Origin("", "/a/m.py", line) for line in (9, 1, 5, 3)]) == "m.py:1-9"
    assert origin_text([Origin("", "a.py", 1), Origin("", "b.py", 2)]) == "a.py:1, b.py:2"


def test_nodes_that_nobody_knows_are_left_out() -> None:
    provenance = Provenance({"add": Origin("fc", "m.py", 1), "mul": Origin("fc", "m.py", 1)})
    assert provenance.of(["add", "mul", "made_by_a_pass"]) == (Origin("fc", "m.py", 1),)
    assert provenance.text(["made_by_a_pass"]) == ""


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['self']._modules['layers']._modules['0']._parameters['weight']", "layers.0.weight"),
        ("L['self']._buffers['running_mean']", "running_mean"),
        ("L['self'].layers.0", "layers.0"),
        ("L['self']", ""),
        ("L['x']", "x"),
        ("L['batch']['ids']", "batch['ids']"),
        ("G['model']._modules['fc']._parameters['weight']", "model.fc.weight"),
        ("L['fn'].__closure__[0].cell_contents._modules['fc']._parameters['bias']", "fc.bias"),
        ('L["self"].other', 'L["self"].other'),
        ("layers.0.fc", "layers.0.fc"),
    ],
)
def test_names_of_values_are_the_users(source: str, name: str) -> None:
    assert torch_api.user_name(source) == name


def test_inputs_of_a_torch_that_describes_none_are_known_by_their_order_if_all_are_there() -> None:
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"primals_{number}") for number in (1, 2)]
    assert [torch_api.input_position(node, 2) for node in nodes] == [(0, ""), (1, "")]
    assert torch_api.input_position(nodes[0], 3) is None, "one was left out, or two were joined"
    other = graph.placeholder("tangents_1")
    assert torch_api.input_position(nodes[0], 3) is None and torch_api.input_position(other, 3) is None


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"stack_trace": None, "nn_module_stack": None},
        {"stack_trace": "nothing that we know", "nn_module_stack": {"a": "not a tuple of two"}},
        {"nn_module_stack": {"a": ()}, "fwd_nn_module_stack": [1]},
    ],
)
def test_metadata_of_another_form_is_not_known(meta: dict[str, Any]) -> None:
    node = torch.fx.Graph().placeholder("x")
    node.meta = meta
    assert torch_api.origin_of(node).file == ""


def test_the_innermost_frame_of_the_users_code_counts() -> None:
    node = torch.fx.Graph().placeholder("x")
    inside = str(Path(torch.__file__).parent / "nn" / "functional.py")
    trace = "".join(f'  File "{file}", line {n}, in f\n    x\n' for n, file in enumerate(["/a.py", "/b.py", inside], 1))
    node.meta = {"stack_trace": trace, "fwd_nn_module_stack": {"1": ("L['self'].fc", torch.nn.Linear)}}
    origin = torch_api.origin_of(node)
    assert (origin.file, origin.line, origin.module, origin.backward) == ("/b.py", 2, "fc", True)


def test_equal_steps_of_layers_are_said_with_a_range() -> None:
    steps = [Step(f"kernel{n}", "kernel", "cpu", "[]", origin=f"layers.{n}.fc (model.py:7)") for n in range(12)]
    assert origin_in_short(steps) == "layers.0-11.fc (model.py:7)"
    assert origin_in_short([steps[0], Step("op", "extern", "cpu", "mm", origin="head (model.py:9)")]) == (
        "layers.0.fc (model.py:7); head (model.py:9)"
    )
    assert origin_in_short([Step("op", "extern", "cpu", "mm")]) == ""
