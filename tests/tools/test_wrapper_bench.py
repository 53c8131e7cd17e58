"""`python wrapper.py` in a report's folder: the graph alone, on inputs of its own, timed step by step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from litz_tools.errors import WrapperFileError
from litz_tools.wrapper_bench import FILE, Times, parts, time_wrapper
from support.warm import run_warm


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(50, 16)
        self.fc = torch.nn.Linear(16, 32)
        self.register_buffer("table", torch.arange(32.0))

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (self.fc(self.emb(ids)) * scale + self.table).softmax(-1)


def reported(fn: Callable[..., Any], *args: Any, folder: Path, grad: bool = False, **settings: Any) -> list[Path]:
    options = {"report_dir": folder, **settings.pop("options", {})}
    with torch.set_grad_enabled(grad):
        out = torch.compile(fn, backend="litz", options=options, **settings)(*args)
        if grad:
            out.sum().backward()
    return sorted(folder.glob("*/wrapper.py"))


IDS, SCALE = torch.randint(0, 50, (4, 6)), torch.rand(4, 6, 1).expand(4, 6, 32)


def text_of(times: Times) -> str:
    console = Console(width=80, no_color=True, highlight=False)
    with console.capture() as capture:
        for part in parts(times):
            console.print(part)
    return capture.get()


def test_each_kernel_and_call_is_timed_and_named(tmp_path: Path) -> None:
    (path,) = reported(Net(), IDS, SCALE, folder=tmp_path)
    times = time_wrapper(path, seconds=0.05)
    assert times.us > 0 and times.outputs == 1 and not times.note
    lines = path.read_text().splitlines()
    steps = {row.step for row in times.rows}
    assert "addmm" in steps and any(step.startswith("kernel") for step in steps)
    for row in times.rows:
        assert row.step in lines[row.line - 1] and row.us > 0
    (call,) = [row for row in times.rows if row.step == "addmm"]
    assert call.origin.startswith("fc (test_wrapper_bench.py:")
    text = text_of(times)
    assert max(map(len, text.splitlines())) <= 80 and "1 outputs as planned" in text


def test_it_is_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    forward, backward = sorted(reported(Net(), IDS, SCALE, folder=tmp_path, grad=True), key=str, reverse=True)
    for path in (forward, backward):
        done = run_warm([str(path)], imported=True)
        assert done.returncode == 0, done.stderr
        assert "a call takes" in done.stdout and "kernel0" in done.stdout
    assert "gradient of fc" in done.stdout


def test_positions_are_below_what_they_count(tmp_path: Path) -> None:
    (path,) = reported(Net(), IDS, SCALE, folder=tmp_path)
    data = json.loads(path.with_name(FILE).read_text())
    limits = {item["known_as"]: item["below"] for item in data["inputs"]}
    assert limits["ids"] == 50 and limits["scale"] is None
    strides = {item["known_as"]: item["stride"] for item in data["inputs"]}
    assert strides["scale"] == [6, 1, 0]


def test_a_changed_kernel_is_what_runs(tmp_path: Path) -> None:
    (path,) = reported(Net(), IDS, SCALE, folder=tmp_path)
    for source in (path.parent / "kernels").iterdir():
        source.write_text("this is no C++")
    with pytest.raises(Exception, match="did not build"):
        time_wrapper(path)


def test_dynamic_sizes_frozen_weights_and_no_sizes_at_all(tmp_path: Path) -> None:
    cases: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (Net(), (IDS, SCALE), {"dynamic": True}),
        (Net(), (IDS, SCALE), {"options": {"freezing": True}}),
        (lambda x: x.sin() + 1, (torch.ones(0, 3),), {}),
        (lambda x, n: x.cos() * n, (torch.ones(3, 5).t(), 3), {"dynamic": True}),
        (lambda x: x[torch.tensor([2, 0])].to(torch.bfloat16) * 2, (torch.ones(3, 4),), {}),
        (lambda x: (x.any(), x.to(torch.complex64)), (torch.ones(3) > 0,), {}),
    ]
    for number, (fn, args, settings) in enumerate(cases):
        torch._dynamo.reset()
        for path in reported(fn, *args, folder=tmp_path / str(number), **settings):
            assert time_wrapper(path, seconds=0.02).outputs >= 1


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    (path,) = reported(Net(), IDS, SCALE, folder=tmp_path)
    data = json.loads(path.with_name(FILE).read_text())

    def with_(**changes: Any) -> None:
        path.with_name(FILE).write_text(json.dumps(data | changes))

    with_(devices=["cuda:7"])
    if not torch.cuda.is_available():
        with pytest.raises(WrapperFileError, match="cuda:7, which is not here"):
            time_wrapper(path)
    with_(objects={"GraphModule_0": {"missing": "GraphModule"}})
    with pytest.raises(WrapperFileError, match="GraphModule, which a file cannot hold"):
        time_wrapper(path)
    with_(outputs=[{"dtype": "float32", "size": [1, 1]}])
    with pytest.raises(WrapperFileError, match="output 0 is"):
        time_wrapper(path)
    with_(version=0)
    done = run_warm([str(path)], imported=True)
    assert done.returncode == 1 and "not of the format" in done.stderr and "Traceback" not in done.stderr


def test_nothing_is_written_unless_a_report_is(tmp_path: Path) -> None:
    from litz import report

    with report.collect() as reports, torch.no_grad():
        torch.compile(Net(), backend="litz")(IDS, SCALE)
    assert reports[0].folder is None and "__main__" not in reports[0].wrapper_source


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(tmp_path: Path) -> None:
    paths = reported(Net().cuda(), IDS.cuda(), SCALE.cuda(), folder=tmp_path, grad=True)
    for path in paths:
        times = time_wrapper(path, seconds=0.1)
        assert times.rows and all(0 < row.us < 10_000 for row in times.rows)
        assert any(row.origin for row in times.rows)
