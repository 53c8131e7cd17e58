"""What litz-tools adds to a report's folder: pages, the trace, the index. `test_page.py` has the pages in a browser."""

from __future__ import annotations

import json
import warnings
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import pipeline
from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.options import make_options
from litz.origins.operations import Frame
from litz_plugins import make_plugins
from litz_tools import plugin as tools
from litz_tools.page import render_html, render_index, summary_of
from litz_tools.trace import make_trace
from support.small_report import report


def written(one: reports.CompileReport, directory: Path, **options: Any) -> Path:
    """The folder of a report, with what litz-tools adds."""
    folder = reports.write_report_dir(one, directory)
    tools.litz_compile_finished(replace(one, folder=folder), make_options(None, options))
    return folder


def compiled(folder: Path | None, *plugins: tuple[str, Any], **options: Any) -> reports.CompileReport:
    """The report of a compile with these plugins and core's own alone."""
    loaded = make_plugins(builtin_plugins(), extra=plugins, entry_points=())
    given = {"report_dir": folder, "cache_dir": None, **options}
    given = {name: value for name, value in given.items() if value is not None}
    torch._dynamo.reset()
    with reports.collect() as collected:
        torch.compile(
            lambda x: x.sin().sum(0),
            backend=lambda gm, inputs: pipeline.compile_backend(gm, inputs, options=given, plugins=loaded),
        )(torch.rand(4, 4))
    return collected[0]


def test_the_hook_writes_pages_and_core_alone_does_not(tmp_path: Path) -> None:
    with_tools = compiled(tmp_path / "with", ("tools", tools), graph_cache=False)
    assert with_tools.folder is not None and with_tools.folder.parent == tmp_path / "with"
    names = {path.name for path in with_tools.folder.iterdir()}
    assert {"report.html", "trace.json", "summary.json", "wrapper.json", "report.txt", "report.json"} <= names
    assert "litz_tools.wrapper_bench" in (with_tools.folder / "wrapper.py").read_text()
    assert (tmp_path / "with" / "index.html").is_file()
    alone = compiled(tmp_path / "alone", graph_cache=False)
    assert alone.folder is not None and alone.code is not None
    names = {path.name for path in alone.folder.iterdir()}
    assert {"wrapper.py", "report.txt", "report.json"} <= names
    assert not {name for name in names if name.endswith(".html")} | names & {"trace.json", "wrapper.json"}
    assert "pip install ./plugins_tools" in (alone.folder / "report.txt").read_text()
    assert not (tmp_path / "alone" / "index.html").exists()


def test_nothing_is_written_where_nobody_asked(tmp_path: Path) -> None:
    one = compiled(None, ("tools", tools), cache_dir=tmp_path)
    assert one.folder is None and not list(tmp_path.rglob("*.html")) and not list(tmp_path.rglob("kernel*.json"))


def test_the_files_of_kernels_are_the_plugins(tmp_path: Path) -> None:
    """The option is core's, so that it may be set without litz-tools."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says once in a process what to install
        without = compiled(None, cache_dir=tmp_path / "a", benchmark_kernels=True)
    with_tools = compiled(None, ("tools", tools), cache_dir=tmp_path / "b", benchmark_kernels=True)
    assert any(note.chosen == "no files of kernels" for note in without.decisions)
    assert not any(path.with_suffix(".json").exists() for path in without.kernel_paths.values())
    assert with_tools.kernel_paths
    assert all(path.with_suffix(".json").is_file() for path in with_tools.kernel_paths.values())


def test_a_graph_from_the_cache_has_pages_too(tmp_path: Path) -> None:
    kept = [compiled(tmp_path / "r", ("tools", tools), cache_dir=tmp_path / "c", graph_cache=True) for _ in range(2)]
    assert kept[1].graph_cache.startswith("hit") and kept[1].code is None and kept[1].folder is not None
    assert (kept[1].folder / "report.html").is_file() and not (kept[1].folder / "wrapper.json").exists()
    assert "Graphs (2)" in (tmp_path / "r" / "index.html").read_text()


def test_files_that_cannot_be_written_are_a_warning(tmp_path: Path) -> None:
    folder = reports.write_report_dir(report(), tmp_path)
    (folder / "report.html").mkdir()
    with pytest.warns(UserWarning, match="litz-tools could not write its files of graph0"):
        tools.litz_compile_finished(replace(report(), folder=folder), make_options(None, {}))
    assert not list(folder.glob(".*")), "nothing half written stays"


def test_html_is_one_whole_page() -> None:
    page = render_html(report())
    assert "a \\u003c b && c" in page and "exp + &lt;mul&gt;" in page
    for outside in ("<script src", "https://", "@import", "url("):
        assert outside not in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("<details") == page.count("</details>") >= 5
    svgs = [
        ElementTree.fromstring(part.partition("</svg>")[0] + "</svg>") for part in page.split('<td class="bar">')[1:]
    ]
    bars = [e for svg in svgs for e in svg.iter() if e.tag.endswith("rect")]
    assert [bar.get("class") for bar in bars] == ["call", "kernel"]
    assert float(bars[0].get("width", 0)) > float(bars[1].get("width", 0))


def test_the_trace_is_a_timeline() -> None:
    events = [e for e in make_trace(report())["traceEvents"] if e["ph"] == "X"]
    run = [(e["name"], e["ts"], e["dur"]) for e in events if e["cat"] != "compile"]
    assert run == [("kernel0", 0.0, 2.0), ("mm0", 2.0, 3.0)]
    assert [(e["name"], e["dur"]) for e in events if e["cat"] == "compile"] == [("lower", 0.25e6), ("build", 1e6)]


def test_the_trace_without_times_goes_by_bytes() -> None:
    untimed = report(steps=tuple(replace(step, estimate=None) for step in report().steps))
    events = [e for e in make_trace(untimed)["traceEvents"] if e["ph"] == "X" and e["cat"] != "compile"]
    assert [(e["ts"], e["dur"]) for e in events] == [(0.0, 0.512), (0.512, 0.768)]


def test_pages_and_trace_lie_beside_the_report(tmp_path: Path) -> None:
    first, second = (written(report(name="a/b c"), tmp_path) for _ in range(2))
    assert (first.name, second.name) == ("a_b_c", "a_b_c-2")
    names = {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()}
    core = {"report.txt", "report.json", "schedule.txt", "wrapper.py", "kernels/kernel0.cpp"}
    assert names == core | {"report.html", "trace.json", "summary.json", "memory_steps.json"}
    assert json.loads((first / "trace.json").read_text())["traceEvents"]
    index = (tmp_path / "index.html").read_text()
    assert "a_b_c/report.html" in index and "a_b_c-2/report.html" in index and "Graphs (2)" in index
    assert not list(tmp_path.glob(".*")), "what is being written is moved into place"


def test_a_run_has_an_index_of_breaks_and_recompiles() -> None:
    frames = [
        Frame("0/0", "f", "model.py:4", "Unsupported\n  Explanation: print <it>\n  Hint: do not"),
        Frame(
            "0/1", "f", "model.py:4", "Unsupported\n  Explanation: print <it>\n  Hint: do not", "0/0: 'x' rank mismatch"
        ),
    ]
    graphs = [
        {**summary_of(report(name=f"g{n}", frame=frame), 1, float(n)), "folder": f"g{n}"}
        for n, frame in enumerate(frames)
    ]
    page = render_index(graphs)
    assert "Graph breaks (2)" in page and "Recompiles (1)" in page
    assert page.count("Unsupported: print &lt;it&gt;") == 1, "one reason, one row"
    assert "0/0: &#x27;x&#x27; rank mismatch" in page and 'href="g1/report.html"' in page
