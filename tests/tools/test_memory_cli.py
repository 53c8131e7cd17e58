"""`litz memory`: the planned memory of a script's graphs, as text of 80 columns and as JSON."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from litz.cli.main import main
from litz.logs.units import size_text
from litz_tools.held import ROWS, WIDTH, memory_lines, memory_of
from litz_tools.page.memory import memory_part

TRAINING = """\
import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)]
model = nn.Sequential(*layers).to("{device}")
x = torch.randn(512, 64, device="{device}")
torch.compile(model, backend="litz", options={options})(x).square().sum().backward()
"""
INFERENCE = """\
import torch

with torch.no_grad():
    x = torch.randn(64, 64)
    torch.compile(lambda x: (x @ x).sin() @ x, backend="litz", options={options})(x)
"""


def run(tmp_path: Path, text: str, *flags: str, device: str = "cpu", **options: Any) -> Result:
    torch._dynamo.reset()
    script = tmp_path / "script.py"
    given = {"graph_cache": False, **options}
    script.write_text(text.replace("{options}", repr(given)).replace("{device}", device))
    return CliRunner().invoke(main, ["memory", *flags, str(script)])


def graphs_of(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    graphs: list[dict[str, Any]] = json.loads(result.stdout)["graphs"]
    return graphs


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The graphs of TRAINING."""
    return graphs_of(run(tmp_path_factory.mktemp("training"), TRAINING, "--json"))


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """TRAINING with its peaks compared with eager's."""
    return run(tmp_path_factory.mktemp("checked"), TRAINING, "--check")


def test_training_as_data(training: list[dict[str, Any]]) -> None:
    forward, backward = training
    parameters = 4 * 3 * (64 * 256 + 256 + 256 * 64 + 64)
    batch = 4 * 512 * 64
    assert forward["standing_bytes"] == parameters + batch
    assert backward["standing_bytes"] == parameters + 3 * batch  # the result and its gradient, too
    for graph in (forward, backward):
        assert graph["peak_bytes"] == max(step["bytes"] for step in graph["steps"])
        assert graph["steps"][graph["peak_step"]]["bytes"] == graph["peak_bytes"]
        assert 0 < len(graph["tensors"]) <= 10
        sizes = [each["bytes"] for each in graph["tensors"]]
        assert sizes == sorted(sizes, reverse=True) and sum(sizes) <= graph["peak_bytes"]
        assert graph["eager_bytes"] > parameters + batch and graph["budget_bytes"] is None
    saved = [each for each in backward["tensors"] if each["saved"]]
    assert saved and all(each["origin"].startswith("module ") for each in saved)
    assert [each for each in forward["tensors"] if each["saved"]]


def test_all_tensors_of_a_small_graph_add_up_to_its_peak(tmp_path: Path) -> None:
    (graph,) = graphs_of(run(tmp_path, INFERENCE, "--json"))
    assert graph["kind"] == "inference"
    assert sum(each["bytes"] for each in graph["tensors"]) == graph["peak_bytes"]
    assert graph["eager_bytes"] >= 3 * 4 * 64 * 64
    assert graph["standing_bytes"] == 4 * 64 * 64


def test_a_peak_says_what_it_is_made_of_and_what_eagers_is(training: list[dict[str, Any]], checked: Result) -> None:
    """Each part beside eager's; the backward of this model holds what eager's does, but for temporaries."""
    forward, backward = training
    for graph in (forward, backward):
        assert sum(graph["parts"].values()) == graph["peak_bytes"] and min(graph["parts"].values()) >= 0
        assert sum(graph["eager_parts"].values()) == graph["eager_bytes"]
        assert "module " in graph["eager_origin"]
    assert backward["parts"]["saved"] > backward["parts"]["others"] and backward["eager_parts"]["saved"] > 0
    rows = [line.split() for line in checked.output.splitlines() if line.endswith("saved for the backward")]
    assert size_text(backward["eager_parts"]["saved"]).split() == rows[1][2:4]


def test_peaks_above_eagers_are_an_error_where_they_are_checked(
    tmp_path: Path, monkeypatch: Any, checked: Result
) -> None:
    assert checked.exit_code == 0
    monkeypatch.setattr("litz_tools.held.ABOVE", 0.5)
    result = run(tmp_path, TRAINING, "--check")
    assert result.exit_code == 1 and "above eager's planned peak: graph0_forward, graph0_backward" in result.stderr
    assert run(tmp_path, TRAINING).exit_code == 0


def test_a_budget_has_its_line(tmp_path: Path) -> None:
    result = run(tmp_path, TRAINING, **{"memory.budget": "95%"})
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert any(line.startswith("  budget: ") and "(95%)" in line for line in lines)
    assert sum("eager's planned peak, forward and backward" in line for line in lines) == 2
    assert any(" s " in line and "module 0.0" in line for line in lines)
    assert "b: the budget" in result.output


def test_a_long_timeline_has_few_rows_and_keeps_the_peak() -> None:
    steps = [{"step": f"kernel{n}", "op": "", "origin": "", "bytes": 5000 * (n == 77) + 100} for n in range(100)]
    graph = {"name": "graph0_forward", "kind": "forward", "peak_bytes": 5100, "peak_step": 77, "standing_bytes": 0}
    graph |= {"eager_bytes": None, "budget": None, "budget_bytes": None, "known": True, "steps": steps, "tensors": []}
    lines = [*memory_lines([graph], {"cuda:0": 1 << 20})]
    rows = [line for line in lines if "-" in line and "#" in line]
    assert len(rows) <= ROWS and sum("5.0 KiB" in row for row in rows) == 1
    assert "measured on cuda:0: at most 1.0 MiB in use" in lines[-1]


def test_a_graph_from_the_cache_says_that_its_tensors_are_not_known(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "cache"))
    for _ in range(2):
        result = run(tmp_path, INFERENCE, graph_cache=True)
    assert "LITZ_GRAPH_CACHE=0" in result.output and "planned peak" in result.output


def test_no_graphs_are_no_memory() -> None:
    assert memory_of([]) == [] and [*memory_lines([], {})] == []


def picture(page: str) -> ElementTree.Element:
    """The picture of planned memory of a page."""
    found = re.search(r'id="memory".*?(<svg.*?</svg>)', page, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[1])


def ends(path: ElementTree.Element) -> list[float]:
    """How far to the right each step of a path goes."""
    return [float(each) for each in re.findall(r"H([\d.]+)", path.attrib["d"])]


def test_the_pages_of_a_step_have_its_memory_and_the_tensors_at_the_peak(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    result = run(tmp_path, TRAINING, "--json", report_dir=str(folder), **{"memory.budget": "95%"})
    forward, backward = graphs_of(result)
    for graph in (forward, backward):
        written = json.loads((folder / graph["name"] / "memory_steps.json").read_text())
        assert written == graph
    page = (folder / backward["name"] / "report.html").read_text()
    drawn = picture(page)
    first, standing, second, _ = drawn.findall("path[@class='held']")
    count = len(forward["steps"]) + len(backward["steps"])
    border = 1000 * len(forward["steps"]) / count
    assert len(ends(first)) == len(forward["steps"]) and len(ends(second)) == len(backward["steps"])
    assert ends(first)[-1] == pytest.approx(border, abs=0.02) == pytest.approx(ends(standing)[0], abs=0.02)
    assert ends(second)[-1] == pytest.approx(1000, abs=0.02)
    eager, budget = drawn.findall("rect")
    assert "eager" in "".join(eager.itertext()) and "budget" in "".join(budget.itertext())
    assert float(eager.attrib["y"]) < float(budget.attrib["y"])  # 95% of it lie lower
    peak = max(forward, backward, key=lambda graph: graph["peak_bytes"])
    for each in peak["tensors"]:
        assert f'<td class="name">{each["name"]}</td>' in page and size_text(each["bytes"]) in page
    alone = picture((folder / forward["name"] / "report.html").read_text())
    assert len(alone.findall("path[@class='held']")) == 2


def test_a_page_without_steps_has_no_picture() -> None:
    graph = {"name": "graph0", "kind": "inference", "peak_bytes": 0, "peak_step": 0, "standing_bytes": 0, "steps": []}
    graph |= {"eager_bytes": None, "budget": None, "budget_bytes": None, "known": True, "tensors": []}
    assert memory_part([graph]) == "" == memory_part([])


def test_names_in_a_page_are_escaped() -> None:
    step = {"step": "kernel0", "op": "", "origin": "", "bytes": 64}
    tensor = {"name": "<b>", "bytes": 64, "op": "a&b", "origin": "module <x>", "saved": True}
    graph = {"name": "<graph>", "kind": "inference", "peak_bytes": 64, "peak_step": 0, "standing_bytes": 0}
    graph |= {"eager_bytes": 32, "budget": None, "budget_bytes": None, "known": False}
    graph |= {"steps": [step], "tensors": [tensor]}
    text = memory_part([graph])
    assert "&lt;b&gt;" in text and "<b>" not in text and "module &lt;x&gt;" in text and "&lt;graph&gt;" in text
    assert "came from the graph cache" in text
    (height,) = re.findall(r'<rect class="call" x="0" y="([\d.]+)"', text)
    assert float(height) == 84.0  # half of the peak, which is 8 units from the top of 160


@pytest.mark.gpu
def test_a_measured_peak_is_near_the_planned_one(tmp_path: Path) -> None:
    """The allocator rounds to 512 bytes, and a library's workspace comes on top."""
    result = run(tmp_path, TRAINING.replace("512, 64", "65536, 64"), "--json", device="cuda")
    forward, backward = graphs_of(result)
    measured = json.loads(result.stdout)["measured_bytes"]["cuda:0"]
    planned = max(forward["peak_bytes"], backward["peak_bytes"])
    assert 0.9 * planned < measured < 1.1 * planned + (64 << 20)


@pytest.mark.gpu
def test_a_budget_is_met_by_what_is_measured(tmp_path: Path) -> None:
    text = TRAINING.replace("512, 64", "65536, 64")
    result = run(tmp_path, text, "--json", device="cuda", **{"memory.budget": "80%"})
    forward, _ = graphs_of(result)
    measured = json.loads(result.stdout)["measured_bytes"]["cuda:0"]
    assert measured <= 1.05 * forward["budget_bytes"] + (64 << 20)
