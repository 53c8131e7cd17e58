"""Reports: made from a schedule, collected per context, and rendered as text, HTML and JSON."""

from __future__ import annotations

import contextvars
import io
import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from litz import report as reports
from litz.backend import litz
from litz.capture import torch_api
from litz.logs.units import count_text, size_text, time_text
from litz.origins.operations import Frame
from litz.report.make import make_report
from litz.schedule.implementations import ContractionRecord, Implementation
from litz_plugins import Estimate
from litz_tools.groups import group_decisions
from litz_tools.page import render_html
from litz_tools.text import MANY, render
from litz_tools.words import break_in_words
from support.small_report import plan, report

CONTRACTIONS = tuple(
    ContractionRecord(
        f"mm{number}",
        "aten.mm.default",
        "[8, 8] x [8, 8] f32",
        (f"mm_{number}",),
        (
            Implementation(f"triton mm 16x16x16, {number}", 2.0, "3 µs at worst, the operations replaced 4 at best"),
            Implementation("aten.mm.default", 3.5, "4 µs at best"),
            Implementation("a <kernel> for [few] rows", None, "the kernel takes 1 to 16 rows, known while compiling"),
        ),
        users=(f"relu_{number}", f"add_{number}"),
    )
    for number in (0, 0, 1)
)


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
    made = make_report(None, plan(estimates={}))
    assert made.total_us == 0.0 and made.wrapper_path is None
    text = text_of(made)
    assert "est. µs" not in text and "because" not in text and "768 B" in text
    page = render_html(made)
    assert "Where the bytes go" in page and "<svg" in page and "litz calibrate" in page


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
    assert flat.count("a <kernel> for [few]") == flat.count("no the kernel takes 1 to 16 rows") == 2


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
    made = make_report(None, plan(steps=(), estimates={}))
    assert made.device == "no device"
    assert "0 kernels" in text_of(made)
    assert render_html(made).startswith("<!doctype html>")


def test_decisions_group_by_all_but_their_numbers() -> None:
    groups = group_decisions(report())
    assert [(g.chosen, len(g.decisions)) for g in groups] == [("fused", 2), ("kept apart", 1), ("mm_tile", 1)]
    assert groups[1].reason == "different [ranges]"


def test_a_folder_per_report(tmp_path: Path) -> None:
    first = reports.write_report_dir(report(name="a/b c"), tmp_path)
    second = reports.write_report_dir(report(name="a/b c"), tmp_path)
    assert (first.name, second.name) == ("a_b_c", "a_b_c-2")
    names = {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()}
    assert names == {"report.txt", "report.json", "schedule.txt", "wrapper.py", "kernels/kernel0.cpp"}
    assert json.loads((first / "report.json").read_text())["name"] == "a/b c"


def test_without_litz_tools_a_report_says_what_has_its_pages(tmp_path: Path) -> None:
    last = {}
    for plugins in ((), ("tools",)):
        folder = reports.write_report_dir(report(plugins=plugins), tmp_path)
        last[plugins] = (folder / "report.txt").read_text().splitlines()[-1]
    says = "In short. The plugin 'tools' writes more, with HTML pages and a trace: `pip install ./plugins_tools` in a"
    assert last[()] == f"{says} checkout of litz"
    assert "plugins_tools" not in last[("tools",)]


def test_a_report_in_short_has_each_step_and_decision() -> None:
    made = report()
    first, *lines = reports.words.brief_text(made).splitlines()
    assert first == reports.words.summary_line(made)
    assert len(lines) == len(made.steps) + len(made.decisions)
    for line, step in zip(lines, made.steps, strict=False):
        assert line.startswith(f"  {step.name}: {step.title}") and size_text(step.bytes) in line
    for line, one in zip(lines[len(made.steps) :], made.decisions, strict=True):
        assert line == f"  {one.subject}: {one.chosen}, because {one.reason} ({one.plugin})"


def test_a_report_knows_its_folder(tmp_path: Path) -> None:
    with reports.collect() as collected:
        made = reports.publish(report(), tmp_path)
    assert collected == [made] and made.folder == tmp_path / "graph0"
    assert reports.publish(report()).folder is None


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
    words = " ".join(text_of(second).split())  # as wide as the terminal
    assert f"{second.kernels_after} kernels from the cache" in words and "from the cache" not in text_of(first)
