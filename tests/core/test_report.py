"""Reports: made from a schedule, collected per context, and rendered as text, HTML, trace and JSON."""

from __future__ import annotations

import contextvars
import io
import json
import threading
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from litz import report as reports
from litz.backend import litz
from litz.capture import torch_api
from litz.execution import ExecutionPlan, MemoryPlan
from litz.ir import Buffer, Layout, Loop, Program, Range, Store, Template, TensorRef
from litz.ir.build import call, load
from litz.ir.index import loop_var, to_expr
from litz.logs.units import count_text, size_text, time_text
from litz.origins.operations import Frame, break_in_words
from litz.report.groups import group_decisions
from litz.report.page import render_html, render_index, summary_of
from litz.report.text import MANY, render
from litz.report.trace import make_trace
from litz.schedule.implementations import ContractionRecord, Implementation
from litz.schedule.schedule import Kernel
from litz_plugins import Decision, Estimate

CPU = torch.device("cpu")
F32 = torch.float32


def program() -> Program:
    buffers = [
        Buffer(name, F32, CPU, Layout.contiguous((8, 8)), kind)
        for name, kind in [("x", "input"), ("w", "input"), ("y", "temporary"), ("z", "temporary")]
    ]
    index = (loop_var(0), loop_var(1))
    ranges = tuple(Range(var, to_expr(8)) for var in index)
    value = call("exp", load("x", index, F32))
    loop = Loop("loop0", CPU, ranges, (), (Store("y", index, value),), ("exp", "<mul>"))
    y, w = (TensorRef(name, Layout.contiguous((8, 8))) for name in "yw")
    mm = Template("mm0", CPU, torch.ops.aten.mm.default, (y, w), {}, ("z",), kind="mm")
    table = {buffer.name: buffer for buffer in buffers}
    return Program("graph0", ("x", "w"), table, (loop, mm), (TensorRef("z", Layout.contiguous((8, 8))),))


DECISIONS = (
    Decision("schedule", "a and b", "fused", "saves a launch and 1.5 MiB of traffic", (("apart", 2.0), ("fused", 1.0))),
    Decision("schedule", "c and d", "fused", "saves a launch and 20 B of traffic", (("apart", 2.0), ("fused", None))),
    Decision("schedule", "e and f", "kept apart", "different [ranges]"),
    Decision("schedule", "mm0", "mm_tile", "measured", (), "autotune"),
)


CONTRACTIONS = tuple(
    ContractionRecord(
        f"mm{number}",
        "aten.mm.default",
        "[8, 8] x [8, 8] f32",
        (f"mm_{number}",),
        (
            Implementation(f"triton mm 16x16x16, {number}", 2.0, "3 µs at worst, the operations replaced 4 at best"),
            Implementation("aten.mm.default", 3.5, "4 µs at best"),
            Implementation("a <kernel> for [few] rows", None, "it is for 1 to 16 rows, known while compiling"),
        ),
        users=(f"relu_{number}", f"add_{number}"),
    )
    for number in (0, 0, 1)
)


def plan(**changes: Any) -> ExecutionPlan:
    graph = program()
    loop, mm = graph.operations
    assert isinstance(loop, Loop) and isinstance(mm, Template)
    return replace(
        ExecutionPlan(
            graph,
            (Kernel("kernel0", loop, ("loop0",)), mm),
            {
                "kernel0": Estimate(2.0, 1.0, 4.0, "memory-bound: 512 B"),
                "mm0": Estimate(3.0, 1.0, 9.0, "compute-bound"),
            },
            MemoryPlan((("y",), ("z",)), ((), ("y",)), {}, 512, 1024, held=(512, 512)),
        ),
        **changes,
    )


@dataclass
class Compiled:
    """What `make_report` reads off a CompiledGraph."""

    path: Path = Path("/tmp/wrapper.py")
    text: str = "def call(args):\n    return args  # <generated>\n"
    kernels: dict[str, str] = field(default_factory=lambda: {"kernel0": "/tmp/kernel0.cpp"})


@dataclass
class Source:
    text: str


def report(**changes: Any) -> reports.CompileReport:
    made = reports.make_report(
        None,
        plan(),
        Compiled(),
        {"kernel0": Source("for (;;) { a < b && c; }")},
        DECISIONS,
        stage_seconds={"lower": 0.25, "build": 1.0},
        plugins=("core", "roofline"),
    )
    return replace(made, **changes)


def text_of(one: reports.CompileReport, verbose: bool = False, width: int = 80) -> str:
    stream = io.StringIO()
    render(one, Console(file=stream, width=width, highlight=False), verbose)
    return stream.getvalue()


# ----------------------------------------------------------------------------------------------------------- made


def test_what_a_report_says() -> None:
    one = report()
    assert (one.name, one.kind, one.device) == ("graph0", "inference", "cpu")
    assert (one.loops_before, one.kernels_after) == (1, 1)
    assert one.externs == Counter({"aten.mm.default": 1})
    assert (one.memory_peak_bytes, one.memory_total_bytes) == (512, 1024)
    assert one.total_us == 5.0 and one.compile_seconds == 1.25
    assert set(one.estimates) == {"kernel0", "mm0"}
    kernel, mm = one.steps
    assert (kernel.kind, kernel.fused, kernel.title, kernel.what) == ("kernel", ("loop0",), "exp + <mul>", "[8, 8] f32")
    assert (mm.kind, mm.title, mm.flops, mm.bytes) == ("template", "aten.mm.default", 1024, 3 * 256)
    assert one.wrapper_path == Path("/tmp/wrapper.py") and one.kernel_paths["kernel0"].name == "kernel0.cpp"


def test_a_schedule_that_was_not_built_has_a_report() -> None:
    made = reports.make_report(None, plan(estimates={}))
    assert made.total_us == 0.0 and made.wrapper_path is None
    text = text_of(made)
    assert "est. µs" not in text and "because" not in text and "768 B" in text
    page = render_html(made)
    assert "Where the bytes go" in page and "<svg" in page and "litz.cost.calibrate" in page


def test_json_has_it_all() -> None:
    data = json.loads(json.dumps(report().to_json()))
    assert (data["format"], data["version"]) == ("litz-report", 1)
    assert data["steps"][0]["estimate"] == {"us": 2.0, "low_us": 1.0, "high_us": 4.0, "why": "memory-bound: 512 B"}
    assert data["externs"] == {"aten.mm.default": 1}
    assert [d["chosen"] for d in data["decisions"]] == ["fused", "fused", "kept apart", "mm_tile"]
    assert data["memory"] == {"peak_bytes": 512, "total_bytes": 1024, "reused": 0, "held_bytes": [512, 512]}


# ------------------------------------------------------------------------------------------------------- collected


def test_collecting_nests_and_ends() -> None:
    with reports.collect() as outer:
        reports.publish(report(name="one"))
        with reports.collect() as inner:
            reports.publish(report(name="two"))
        reports.publish(report(name="three"))
    reports.publish(report(name="four"))
    assert [r.name for r in outer] == ["one", "two", "three"]
    assert [r.name for r in inner] == ["two"]


def test_contexts_do_not_mix() -> None:
    with reports.collect() as ours:
        context = contextvars.Context()
        context.run(reports.publish, report(name="theirs"))
        thread = threading.Thread(target=reports.publish, args=(report(name="thread"),))
        thread.start()
        thread.join()
        to = reports.collectors()
        passed_on = threading.Thread(target=reports.publish, args=(report(name="ours"), None, to))
        passed_on.start()
        passed_on.join()
    assert [r.name for r in ours] == ["ours"]


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="could not write the report of graph0"), reports.collect() as collected:
        reports.publish(report(), tmp_path / "file")
    assert len(collected) == 1


# -------------------------------------------------------------------------------------------------------- rendered


def test_text_fits_80_columns() -> None:
    for verbose in (False, True):
        text = text_of(report(), verbose)
        assert all(len(line) <= 80 for line in text.splitlines()), text


def test_a_long_name_is_not_broken() -> None:
    """An op's name is whole in 80 columns, beside times, bytes and reasons."""
    op, call = "_scaled_dot_product_flash_attention_for_cpu", report().steps[1]
    steps = (report().steps[0], *(replace(call, name=f"op{n}", what=f"aten.{op}.default") for n in (117, 118)))
    for one in (report(steps=steps), report(steps=tuple(replace(step, estimate=None) for step in steps))):
        lines = text_of(one).splitlines()
        assert max(map(len, lines)) <= 80 and any(op in line for line in lines), "\n".join(lines)
        assert one.timed == any("compute-bound" in line for line in lines), "nothing is cut off"
    ways = (Implementation(f"aten.{op}.default", 3.0, "nothing else is offered for it here, as far as anybody knows"),)
    record = replace(CONTRACTIONS[0], implementations=(*ways, *CONTRACTIONS[0].implementations))
    lines = text_of(report(contractions=(record,))).splitlines()
    assert max(map(len, lines)) <= 80 and any(f"aten.{op}.default" in line for line in lines), "\n".join(lines)


@pytest.mark.parametrize("verbose", [False, True])
def test_contractions_have_a_table_each(verbose: bool) -> None:
    text = text_of(report(contractions=CONTRACTIONS), verbose)
    assert all(len(line) <= 80 for line in text.splitlines()), text
    flat = " ".join(text.split())
    assert flat.count("mm x2: [8, 8] x [8, 8] f32") == 1 and flat.count("mm: [8, 8] x [8, 8] f32") == 1
    assert "fused into it: after it relu + add" in flat and "nodes: mm_0" in flat
    runs = [line.split() for line in text.splitlines() if " runs " in line]
    assert [line[:2] for line in runs] == [["triton", "mm"]] * 2
    assert flat.count("a <kernel> for [few]") == flat.count("no it is for 1 to 16 rows") == 2


def test_many_rejected_implementations_are_cut_to_the_quickest() -> None:
    ways = [Implementation(f"way {n}", 30.0 - n, "slow") for n in range(20)]
    record = replace(CONTRACTIONS[0], implementations=(*CONTRACTIONS[0].implementations[:1], *ways))
    text = text_of(report(contractions=(record,)))
    assert "way 19" in text and "way 3 " not in text and "12 more" in text
    assert "way 3 " in text_of(report(contractions=(record,)), verbose=True)


def test_the_page_has_the_contractions() -> None:
    page = render_html(report(contractions=CONTRACTIONS))
    assert "Contractions (3)" in page and "a \\u003ckernel> for [few] rows" in page
    outside, _, _ = page.partition("<script")
    for tag in ("details", "summary", "tr", "td", "p"):
        assert outside.count(f"<{tag}>") + outside.count(f"<{tag} ") == outside.count(f"</{tag}>"), tag
    block = page.partition('id="data-contractions">')[2].partition("</script>")[0]
    both = json.loads(block)
    assert [found["title"][:5] for found in both] == ["mm x2", "mm: ["]
    assert [found["subjects"] for found in both] == [["mm0", "mm0"], ["mm1"]]
    assert both[0]["ways"][0][0] == both[0]["runs"] and len(both[0]["ways"]) == 3


def test_text_says_what_and_why() -> None:
    text = text_of(report(), width=200)
    for part in (
        "graph0",
        "1 loop in 1 kernel; 1 library call; about 5 µs",
        "exp + <mul> [8, 8] f32",
        "memory-bound",
        "fused x2: saves a launch and 20 B to 1.5 MiB of traffic",
        "a and b, c and d",
        "kept apart: different [ranges]",
        "mm_tile: measured (autotune)",
        "512 B at its peak, 1.0 KiB if nothing were freed",
        "1.25 s: lower 0.25, build 1.00",
        "/tmp/wrapper.py",
    ):
        assert part in text, part
    assert "memory-bound: 512 B" not in text
    verbose = text_of(report(), verbose=True, width=200)
    for part in (
        "memory-bound: 512 B",
        "a and b: apart 2 µs, fused 1 µs",
        "kernel0 /tmp/kernel0.cpp",
        "core, roofline",
    ):
        assert part in verbose, part


def test_steps_that_do_the_same_are_one_row() -> None:
    step = report().steps[0]
    steps = tuple(replace(step, name=f"kernel{n}", origins=(f"add_{n}", f"mul_{n}_1")) for n in range(12))
    (line,) = [line for line in text_of(report(steps=steps)).splitlines() if "add + mul" in line]
    assert line.split()[:2] == ["12", "kernel0"]
    assert "add_11 + mul_11_1" in text_of(report(steps=steps), verbose=True)
    page = render_html(report(steps=steps))
    assert "12 ×" in page and page.count("<svg") == 1


def test_a_long_schedule_shows_its_slowest_steps() -> None:
    step = report().steps[0]
    steps = tuple(
        replace(step, name=f"kernel{n}", estimate=Estimate(float(n), 0.0, 100.0, "because")) for n in range(MANY + 10)
    )
    text = text_of(report(steps=steps))
    assert "10 steps left out" in text and "kernel9 " not in text and f"kernel{MANY + 9}" in text
    assert "kernel9 " in text_of(report(steps=steps), verbose=True)


def test_an_empty_graph_renders() -> None:
    made = reports.make_report(None, plan(steps=(), estimates={}))
    assert made.device == "no device"
    assert "0 kernels" in text_of(made)
    assert render_html(made).startswith("<!doctype html>")


def test_decisions_group_by_all_but_their_numbers() -> None:
    groups = group_decisions(report())
    assert [(g.chosen, len(g.decisions)) for g in groups] == [("fused", 2), ("kept apart", 1), ("mm_tile", 1)]
    assert groups[1].reason == "different [ranges]"


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
    assert "litz.cost.calibrate" in reports.report_text(untimed)


def test_a_folder_per_report(tmp_path: Path) -> None:
    first = reports.write_report_dir(report(name="a/b c"), tmp_path)
    second = reports.write_report_dir(report(name="a/b c"), tmp_path)
    assert (first.name, second.name) == ("a_b_c", "a_b_c-2")
    names = {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()}
    expected = {"report.html", "report.txt", "report.json", "trace.json", "schedule.txt", "wrapper.py", "summary.json"}
    assert names == expected | {"kernels/kernel0.cpp"}
    assert json.loads((first / "report.json").read_text())["name"] == "a/b c"
    assert json.loads((first / "trace.json").read_text())["traceEvents"]
    index = (tmp_path / "index.html").read_text()
    assert "a_b_c/report.html" in index and "a_b_c-2/report.html" in index and "Graphs (2)" in index
    assert not list(tmp_path.glob(".*")), "what is being written is moved into place"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (size_text(512), "512 B"),
        (size_text(1536), "1.5 KiB"),
        (size_text(3 * 2**40), "3.0 TiB"),
        (time_text(3.14159), "3.14 µs"),
        (time_text(2500), "2.5 ms"),
        (time_text(3e6), "3 s"),
        (count_text(1, "kernel"), "1 kernel"),
        (count_text(0, "kernel"), "0 kernels"),
    ],
)
def test_numbers_for_people(made: str, text: str) -> None:
    assert made == text


def test_from_a_real_compile() -> None:
    with reports.collect() as collected:
        torch.compile(lambda x: torch.softmax(x, -1) * 2, backend=litz)(torch.randn(16, 32))
    (one,) = collected
    assert one.kernels_after >= 1 and one.wrapper_source and one.steps[0].bytes > 0
    assert one.frame.function == "<lambda>" and len(one.memory_held) == len(one.steps) and max(one.memory_held) > 0
    assert set(one.kernel_sources) == set(one.kernel_paths)
    lines = [line for line in text_of(one).splitlines() if not line.startswith("source")]  # a path is not broken
    assert all(len(line) <= 80 for line in lines)


def test_what_dynamo_says_of_a_graph_is_on_record() -> None:
    """The break that ends a graph, and the guard that failed before it was traced again."""
    frames = []

    def backend(gm: Any, examples: Any) -> Any:
        frames.append(torch_api.frame_of(gm))
        return gm.forward

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y * 2

    torch._dynamo.reset()
    compiled = torch.compile(broken, backend=backend, dynamic=False)
    for size in (4, 8):
        compiled(torch.ones(size))
    first, rest, again, _ = frames
    assert (first.function, first.recompiled, again.function) == ("broken", "", "broken")
    assert first.place.startswith("test_report.py:") and "graph break" in first.broke.lower() and not rest.broke
    assert (
        "expected 4, actual 8" in again.recompiled and first.compile_id.split("/")[0] == again.compile_id.split("/")[0]
    )
    assert frame_words(first) and torch_api.frame_of(None).function == ""


def frame_words(frame: Frame) -> str:
    """What pages say of a break: a line without dynamo's hints."""
    page = render_html(report(frame=frame))
    assert "graph break</dt>" in page and "traced again" not in page and f"{frame.function} ({frame.place})" in page
    text = text_of(report(frame=frame))
    assert "ends in a graph break: " in text and "traced again" not in text
    assert "\n" not in break_in_words(frame.broke) and "Hint" not in break_in_words(frame.broke)
    return break_in_words(frame.broke)


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


def test_kernels_from_the_cache_are_counted(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.cos().sum(), (y + 1).sum(0), (y * 2).softmax(1)

    x, y = torch.randn(9), torch.randn(5, 7)
    found = []
    for options in ({}, {}, {"cache": False}):
        torch._dynamo.reset()
        with reports.collect() as collected:
            torch.compile(fn, backend="litz", options={"cache_dir": str(tmp_path), **options})(x, y)
        found.append(collected[0])
    first, second, without = found
    assert first.cache_hits == without.cache_hits == 0 < second.cache_hits == second.kernels_after
    assert f"{second.kernels_after} kernels from the cache" in text_of(second) and "from the cache" not in text_of(
        first
    )
