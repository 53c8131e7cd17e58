"""What `litz explain` and the report's folder say of a plan."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import report as reports
from litz_tools.text import report_text
from support.layout_models import Residual, UNet

SVG = "{http://www.w3.org/2000/svg}"


def compile_reported(model: torch.nn.Module, x: torch.Tensor, **options: Any) -> Any:
    with torch.no_grad(), reports.collect() as collected:
        torch.compile(model.eval(), backend="litz", options=options)(x)
    return collected[0]


def test_the_table_has_each_copy_with_its_cost_and_who_asked() -> None:
    report = compile_reported(UNet(), torch.randn(2, 3, 16, 16), **{"layout.force": True})
    table = report.attachments["layouts.txt"]
    copies = [d for d in report.decisions if d.plugin == "layout" and d.chosen.startswith("copied")]
    assert len(copies) == 6
    for decision in copies:
        tensor = decision.subject.partition(" for ")[0]
        (line,) = [row for row in table.splitlines() if row.startswith(tensor + " ")][:1]
        assert f"{decision.considered[0][1]:.1f}" in line and decision.reason in line
    assert table.count("channels last  ") >= 5, "each convolution's layout"
    assert "source: " in table
    assert "layouts" in report_text(report) and "copy of" in report_text(report)


def test_the_picture_has_the_layouts_as_colours(tmp_path: Path) -> None:
    options = {"layout.force": True, "report_dir": str(tmp_path)}
    report = compile_reported(UNet(), torch.randn(2, 3, 16, 16), **options)
    root = ET.fromstring(report.attachments["layouts.svg"])
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert sum(str(title).startswith("copy of") for title in titles) == 6
    assert sum("convolution" in str(title) and "copy" not in str(title) for title in titles) == 5
    colours = {rect.get("fill") for rect in root.iter(f"{SVG}rect")}
    assert {"#7da7e8", "#f0a35e"} <= colours
    boxes = [group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")]
    places = [(box.get("x"), box.get("y")) for box in boxes if box is not None]
    assert len(set(places)) == len(places), "no box lies on another"
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert ET.parse(folder / "layouts.svg").getroot().tag == f"{SVG}svg"


@pytest.mark.nightly
def test_a_model_that_is_left_alone_says_why() -> None:
    report = compile_reported(torch.nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8))
    (decision,) = [d for d in report.decisions if d.plugin == "layout"]
    assert decision.chosen == "layouts left alone" and "the copies would cost more" in decision.reason
    assert "channels first" in report.attachments["layouts.txt"]
    report = compile_reported(Residual(), torch.randn(2, 3, 16, 16), **{"layout.enable": False})
    assert "layouts.txt" not in report.attachments


def test_a_graph_without_convolutions_of_images_has_no_empty_table() -> None:
    report = compile_reported(torch.nn.Conv1d(3, 4, 3), torch.randn(1, 3, 8))
    (decision,) = [d for d in report.decisions if d.plugin == "layout"]
    assert decision.reason == "the graph has no convolution of images or volumes"
    assert "layouts.txt" not in report.attachments
