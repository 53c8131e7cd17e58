"""Measured times and other runs in a page that is there, guards, and what a CUDA kernel takes."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from litz.cache.disk import Cache
from litz.cli.main import main
from litz.options import make_options
from litz.target import target_named
from litz.targets.triton.build import build, expected_variant
from litz.targets.triton.compile import Variant
from litz_tools import beside, measured
from litz_tools.assembly import assembly_of
from litz_tools.errors import ReportFileError
from litz_tools.page import render_html
from litz_tools.page.data import measured_block, read_blocks, write_blocks
from litz_tools.page.lines import function_of
from litz_tools.resources import binaries_of, occupancy, read_cubin, resources_of
from support.report_cases import large_report
from support.triton_cases import CASES


def event(name: str, start: float, us: float, cat: str = "user_annotation", tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": start, "dur": us, "cat": cat, "pid": 1, "tid": tid}


def trace(path: Path, *events: dict[str, Any]) -> Path:
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*events, {"ph": "M", "name": "x"}]}).encode()))
    return path


CALLS = [
    *(event("litz g", 100.0, 50.0), event("kernel0: add", 101.0, 10.0), event("op1: mm", 120.0, 20.0)),
    *(event("litz g", 200.0, 70.0), event("kernel0: add", 201.0, 30.0), event("op1: mm", 240.0, 20.0)),
    *(event("litz other", 300.0, 50.0), event("kernel0: mul", 301.0, 999.0), event("kernel0: add", 101.0, 5.0, tid=2)),
]


def test_times_are_the_median_of_a_graph_s_calls(tmp_path: Path) -> None:
    """Ranges of another graph and of another thread do not count."""
    found = measured.from_profile(trace(tmp_path / "t.json.gz", *CALLS), "g", ["kernel0", "op1", "op2"])
    assert found.us == {"kernel0": 20.0, "op1": 20.0} and (found.call_us, found.calls) == (60.0, 2)


def test_the_gpu_s_own_ranges_count_where_there_are_some(tmp_path: Path) -> None:
    gpu = [
        event("litz g", 500.0, 9.0, "gpu_user_annotation", 7),
        event("kernel0: add", 501.0, 4.0, "gpu_user_annotation", 8),
    ]
    found = measured.from_profile(trace(tmp_path / "t.json", *CALLS, *gpu), "g", ["kernel0", "op1"])
    assert found.us == {"kernel0": 4.0} and found.call_us == 9.0


def test_a_profile_without_the_graph_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(ReportFileError, match="it has calls of g, other"):
        measured.from_profile(trace(tmp_path / "t.json", *CALLS), "h", [])
    (tmp_path / "no.json").write_text("[1, 2]")
    for name in ("no.json", "nothing.json"):
        with pytest.raises(ReportFileError, match=r"no trace of torch\.profiler"):
            measured.read_trace(tmp_path / name)


def test_operations_of_another_run_have_their_own_time(tmp_path: Path) -> None:
    """Without what runs inside; on a GPU the kernels count; per step of torch.profiler."""
    host = [event("aten::linear", 0.0, 10.0, "cpu_op"), event("aten::addmm", 2.0, 6.0, "cpu_op")]
    assert measured.from_other_trace(trace(tmp_path / "a.json", *host)).us == {"aten::linear": 4.0, "aten::addmm": 6.0}
    steps = [event("ProfilerStep#1", 0.0, 5.0), event("ProfilerStep#2", 9.0, 5.0)]
    found = measured.from_other_trace(
        trace(tmp_path / "b.json", *host, *steps, event("triton_poi", 1.0, 8.0, "kernel"))
    )
    assert (found.us, found.counts) == ({"triton_poi": 4.0}, {"triton_poi": 0.5})
    assert measured.from_other_trace(tmp_path / "b.json", calls=8).us == {"triton_poi": 1.0}


def page_of(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "report.html").write_text(render_html(replace(large_report(), **changes)), encoding="utf-8")
    return folder


def test_two_graphs_side_by_side(tmp_path: Path) -> None:
    """What one graph lacks comes first; the unit is what both have."""
    steps = large_report().steps
    one, other = page_of(tmp_path / "one"), page_of(tmp_path / "other", steps=steps[:1000])
    made = beside.of_folder(read_blocks(one / "report.html"), other)
    assert made["unit"] == "est. µs" and made["kind"] == "graphs"
    costs = {row[0]: (row[2], row[4]) for row in made["rows"]}
    here = sum(cost or 0.0 for cost, _ in costs.values())
    assert here == pytest.approx(sum(step.us for step in steps))
    assert sum(cost or 0.0 for _, cost in costs.values()) == pytest.approx(sum(step.us for step in steps[:1000]))
    apart = [abs((mine or 0.0) - (theirs or 0.0)) for mine, theirs in costs.values()]
    assert apart == sorted(apart, reverse=True)
    untimed = tmp_path / "untimed"
    untimed.mkdir()
    (untimed / "report.html").write_text(render_html(large_report(timed=False)), encoding="utf-8")
    assert beside.of_folder(read_blocks(one / "report.html"), untimed)["unit"] == "bytes"


def test_the_command_puts_times_and_a_trace_into_the_page(tmp_path: Path) -> None:
    folder = page_of(tmp_path / "g", name="g")
    times = trace(tmp_path / "t.json", *CALLS)
    before = read_blocks(folder / "report.html")
    done = CliRunner().invoke(main, ["report", str(folder), "--profile", str(times), "--beside", str(times), "--json"])
    assert done.exit_code == 0, done.output
    blocks = read_blocks(folder / "report.html")
    assert blocks["measured"]["us"] == {"kernel0": 20.0, "op1": 20.0} == json.loads(done.stdout)["measured"]["us"]
    assert blocks["beside"]["kind"] == "trace" and blocks["steps"] == before["steps"]
    again = CliRunner().invoke(main, ["report", str(folder), "--profile", str(times)])
    assert "2 of 2504 steps have measured times" in again.output and read_blocks(folder / "report.html")["beside"]


def test_texts_in_a_trace_do_not_end_the_block(tmp_path: Path) -> None:
    page = page_of(tmp_path / "g") / "report.html"
    found = measured.Measured("</script><b>\\1", {"kernel0": 1.0}, 1.0, 1)
    write_blocks(page, {"measured": measured_block(found, "")})
    assert read_blocks(page)["measured"]["source"] == "</script><b>\\1"
    assert len(read_blocks(page)["steps"]["steps"]) == 2504


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "give --run, --profile or --beside"),
        (["--run", "--profile", "x"], "not from both"),
        (["--run"], "the page cannot be read"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(given: list[str], said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(tmp_path), *given])
    assert done.exit_code != 0 and said in done.output


def test_a_report_runs_and_has_its_guards(tmp_path: Path) -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y, 0) * (2 if x.shape[0] > 4 else 3)

    compiled = torch.compile(scaled, backend="litz", dynamic=True, options={"report_dir": tmp_path})
    compiled(torch.ones(8, 9), torch.ones(9, 7))
    (folder,) = (path.parent for path in tmp_path.glob("*/report.html"))
    done = CliRunner().invoke(main, ["report", str(folder), "--run", "--seconds", "0.1"])
    assert done.exit_code == 0, done.output
    blocks = read_blocks(folder / "report.html")
    assert {step["name"] for step in blocks["steps"]["steps"]} == set(blocks["measured"]["us"])
    assert any(about == "L['x']" and "TENSOR_MATCH" in kinds for about, kinds in blocks["guards"])
    assert any(about == "sizes" and "L['x']" in text for about, text in blocks["guards"]), blocks["guards"]
    assert any(name.endswith("scaled") for name in blocks["steps"]["functions"].values())


def test_the_function_around_a_line(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("x = 1\nclass A:\n    def f(self):\n        def g():\n            return 2\n        return g\n")
    found = [function_of(f"{file}:{line}") for line in (1, 3, 5, 6)]
    assert found == ["", "A.f", "A.f.g", "A.f"]
    assert function_of(f"{tmp_path}/gone.py:3") == function_of("<string>:x") == ""


def test_a_cubin_says_what_a_thread_takes(tmp_path: Path) -> None:
    binary = build(CASES["softmax"]().source, (9, 0), Cache(tmp_path), Variant())
    registers, spilled = read_cubin(binary.cubin)
    assert 8 <= registers <= 255 and spilled == 0
    for broken in (b"", b"no ELF file at all", binary.cubin[:80]):
        with pytest.raises(ValueError):
            read_cubin(broken)


def test_the_machine_code_of_a_kernel(tmp_path: Path) -> None:
    """Of kernels that are in the cache: what is not there is not compiled for it."""
    source, device, target = CASES["softmax"]().source, torch.device("cuda", 0), target_named("H100")
    program = SimpleNamespace(hint=int)
    plan = SimpleNamespace(targets={device: target}, program=program)
    code = SimpleNamespace(kernels={"kernel0": SimpleNamespace(source=source, device=str(device))})
    report: Any = SimpleNamespace(plan=plan, code=code)
    options = make_options(None, {"cache_dir": str(tmp_path)})
    assert list(binaries_of(report, options)) == []
    build(source, (9, 0), Cache(options.cache_dir), expected_variant(source, program.hint))
    ((name, binary, found),) = binaries_of(report, options)
    takes, text = resources_of(binary, found), assembly_of(binary.cubin)
    assert name == "kernel0" and takes is not None and takes.threads == binary.threads
    assert text is not None and "LDG.E" in text and "EXIT" in text and binary.name in text
    assert assembly_of(b"no cubin") is None


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "share"),
    [(32, 0, 256, 1.0), (64, 0, 256, 0.5), (255, 0, 1024, 0.0), (32, 0, 32, 0.5), (32, 100 << 10, 256, 0.25)],
)
def test_occupancy_of_an_h100(registers: int, shared: int, threads: int, share: float) -> None:
    """By hand: 65,536 registers, 2,048 threads and 228 KiB of shared memory an SM, 32 blocks at most."""
    assert occupancy(registers, shared, threads, target_named("H100")) == share
