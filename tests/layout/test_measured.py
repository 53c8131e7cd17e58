"""Measurements: what is written can be read, counts before the table, and a wrong file says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from litz import report as reports
from litz_layout.measured import find_cases, load_figures, main, measure
from support.layout_models import Residual

SCRIPT = """
import torch
conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
torch.compile(conv, backend="litz")(torch.randn(2, 3, 8, 8)).sum().backward()
"""


def compile_with(model: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    with torch.no_grad(), reports.collect() as collected:
        torch.compile(model.eval(), backend="litz", options=options)(x)
    return collected[0]


def test_the_command_measures_what_a_script_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text(SCRIPT)
    main(["--out", str(out), "--seconds", "0", str(script)])
    figures = load_figures(out, json.loads(out.read_text())["device"])
    assert sorted(name.partition(" ")[0] for name in figures.rows) == ["convolution"] * 2 + ["convolution_backward"] * 2
    assert all(first > 0 and last > 0 for first, last in figures.rows.values())
    assert "4 convolutions" in capsys.readouterr().out
    assert not load_figures(out, "another device").rows


@pytest.mark.ci_cases("900.0-1.0-planned")
@pytest.mark.parametrize(("first", "last", "chosen"), [(900.0, 1.0, "planned"), (1.0, 900.0, "left alone")])
def test_measurements_count_before_the_table(tmp_path: Path, first: float, last: float, chosen: str) -> None:
    model, x = Residual(), torch.randn(2, 3, 16, 16)
    cases = find_cases([compile_with(model, x)])
    assert len(cases) == 2, "the stem's and the blocks': equal convolutions are one case"
    path = tmp_path / "figures.json"
    rows = [{"signature": case.signature, "us": [first, last]} for case in cases]
    path.write_text(
        json.dumps({"format": "litz-layout-measurements", "version": 1, "device": "", "torch": "", "rows": rows})
    )
    report = compile_with(model, x, **{"layout.measurements": path})
    (decision,) = [d for d in report.decisions if d.plugin == "layout" and d.subject == report.name]
    assert decision.chosen == f"layouts {chosen}"
    assert "measured here" in report.attachments["layouts.txt"]


def test_each_kind_of_convolution_can_be_measured() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(4, 4, 3, groups=2, dilation=2, padding=1)).train()
    torch._dynamo.reset()
    with reports.collect() as collected:
        torch.compile(model, backend="litz")(torch.randn(1, 4, 8, 8, requires_grad=True)).sum().backward()
    cases = find_cases(collected)
    assert len(cases) == 4 and {case.gradients for case in cases} >= {None}
    assert all(us > 0 for case in cases for us in measure(case, seconds=0.0))


@pytest.mark.parametrize("text", ["", "{}", '{"format": "else", "version": 1, "device": "", "rows": []}'])
def test_a_file_that_is_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"python -m litz_layout\.measured"):
        load_figures(path, "")
