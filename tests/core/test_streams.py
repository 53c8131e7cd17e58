"""The streams: schedules made by hand, with answers that are reckoned by hand."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console

from litz.logs.units import time_text
from litz.report import CompileReport, Step
from litz.report.communication import rows_of, summary
from litz.report.streams import Realised, simulate
from litz_plugins import Estimate
from litz_tools.lanes_text import timeline_text
from litz_tools.page import render_html
from litz_tools.page.lanes import timeline_svg
from litz_tools.text import render
from litz_tools.trace import make_trace

CUDA = "cuda:0"


def kernel(name: str, us: float) -> Step:
    return Step(name, "kernel", CUDA, "[8] f32", estimate=Estimate(us, us, us, "made up"))


def start(name: str, us: float) -> Step:
    what = "_c10d_functional.all_reduce.default"
    return Step(name, "collective", CUDA, what, bytes_read=1024.0, estimate=Estimate(us, us, us, "made up"))


def wait(*names: str) -> Step:
    what = "_c10d_functional.wait_tensor.default"
    return Step(f"wait_{'_'.join(names)}", "wait", CUDA, what, estimate=Estimate(0.0, 0.0, 0.0, ""), waits_for=names)


HIDDEN = (start("c", 30), kernel("k", 100), wait("c"), kernel("l", 10))
PARTLY = (kernel("j", 5), start("c", 130), kernel("k", 100), wait("c"), kernel("l", 10))
QUEUED = (start("a", 50), start("b", 20), kernel("k", 40), wait("b"), wait("a"))
CASES = {
    "hidden": (HIDDEN, {"c": 0.0}, 110.0),
    "partly": (PARTLY, {"c": 30.0}, 145.0),
    "waited for at once": ((start("c", 30), wait("c"), kernel("k", 7)), {"c": 30.0}, 37.0),
    "one after the other: what runs while the other is waited for is exposed": (QUEUED, {"a": 10.0, "b": 20.0}, 70.0),
    "a link that is free waits for the computation": (
        (kernel("k", 40), start("c", 10), wait("c"), start("d", 5), kernel("l", 2), wait("d")),
        {"c": 10.0, "d": 3.0},
        55.0,
    ),
    "nobody waits here": ((start("c", 30), kernel("k", 10)), {"c": 0.0}, 30.0),
    "a wait for several": ((start("a", 5), start("b", 5), kernel("k", 2), wait("a", "b")), {"a": 3.0, "b": 5.0}, 10.0),
    "started in another graph": ((wait(), kernel("k", 10)), {}, 10.0),
    "nothing": ((), {}, 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_exposed_time(name: str) -> None:
    steps, exposed, us = CASES[name]
    timeline = simulate(steps)
    assert timeline.exposed == pytest.approx(exposed) and timeline.us == pytest.approx(us)
    assert [span.step for span in timeline.spans] == list(steps)
    stalled = sum(span.us for span in timeline.spans if span.step.kind == "wait")
    assert timeline.exposed_us == pytest.approx(stalled), "what is exposed is what the waits hold up"


def test_streams_do_one_thing_at_a_time() -> None:
    for steps, _, _ in CASES.values():
        for stream in ("compute", "communication"):
            spans = list(simulate(steps).on(stream))
            assert all(a.end <= b.start for a, b in pairwise(spans))


def report(*steps: Step) -> CompileReport:
    return CompileReport("graph0", "inference", CUDA, steps, 0, 0, Counter())


def text_of(one: CompileReport) -> str:
    stream = io.StringIO()
    render(one, Console(file=stream, width=80, highlight=False))
    return stream.getvalue()


def test_rows_and_their_sum() -> None:
    one = report(*PARTLY)
    (row,) = rows_of(one)
    assert (row.start, row.us, row.exposed_us, row.realised) == (5.0, 130.0, 30.0, None)
    assert summary(one) == "130 µs, of which 30 µs (23%) exposed, in a graph of 145 µs"
    measured = replace(one, realised={"c": Realised(150.0, 75.0, 4)})
    assert summary(measured).endswith("; measured: 150 µs, of which 75 µs (50%) exposed")
    unknown = report(replace(PARTLY[0], estimate=None), *PARTLY[1:])
    assert "1 step without an estimate, counted as 0 µs" in summary(unknown)


def test_text() -> None:
    said = text_of(report(*PARTLY))
    assert "c all_reduce 1.0 KiB" in said and "130.0" in said and "30.0" in said and "measured" not in said
    said = text_of(replace(report(*QUEUED), realised={"a": Realised(55.5, 12.5)}))
    assert "55.5" in said and "12.5" in said and "of that exposed" in said
    assert "communication" not in text_of(report(kernel("k", 1.0)))


def test_page() -> None:
    page = render_html(replace(report(*QUEUED), realised={"a": Realised(55.5, 12.5)}))
    assert "<h2>Communication</h2>" in page and "70 µs, of which 30 µs (43%) exposed" in page
    rows = {
        name: page[page.index(f'<td class="name"><a href="#step/{name}">{name}</a></td>') :].split('<td class="n">')
        for name in "ab"
    }
    cells = {name: [cell.split("<")[0] for cell in row[1:6]] for name, row in rows.items()}
    assert cells == {"a": ["0.0", "50.0", "10.0", "55.5", "12.5"], "b": ["50.0", "20.0", "20.0", "?", "?"]}
    assert 'class="net"' in page and 'class="stall"' in page
    assert "<h2>Communication</h2>" not in render_html(report(kernel("k", 1.0)))


def test_picture_is_to_scale() -> None:
    picture = timeline_svg(simulate(HIDDEN))
    assert picture.count('class="kernel"') == 2 and picture.count('class="net"') == 1 and "stall" not in picture
    assert 'x="0.00" y="12" width="272.73"' in picture, "30 of 110 µs below"
    assert timeline_svg(simulate(())) == ""


FAR = (
    replace(start("far", 100), group="1"),
    replace(start("near", 10), group="0"),
    wait("near"),
    kernel("k", 60),
    wait("far"),
    kernel("l", 30),
)
"""A message within a host passes a long one between hosts; what of each is exposed is 10 of 10 and 30 of 100."""


def test_each_group_has_a_stream() -> None:
    timeline = simulate(FAR)
    assert timeline.exposed == {"near": 10.0, "far": 30.0} and timeline.us == 130.0
    assert timeline.communication_us == 110.0
    one = simulate([replace(step, group="") for step in FAR])
    assert one.us == 200.0 and one.exposed == {"far": 100.0, "near": 10.0}
    picture = timeline_svg(timeline)
    assert 'viewBox="0 0 1000 34"' in picture and picture.count('class="net"') == 2 and 'y="24"' in picture
    tracks = [one["args"]["name"] for one in make_trace(report(*FAR))["traceEvents"] if one["name"] == "thread_name"]
    assert tracks == ["cuda:0 communication of group 1", "cuda:0 communication of group 0", "cuda:0"]


def test_the_schedule_is_drawn_in_80_columns() -> None:
    lines = timeline_text(simulate(FAR))
    assert all(len(line) <= 80 for line in lines)
    compute, far, near, scale, _ = lines
    assert compute.endswith("90 µs, waits 40 µs") and far.endswith("100 µs, exposed 30 µs")
    assert near.endswith("10 µs, exposed 10 µs") and scale.split() == ["0", "130", "µs"]
    drawn = [line[8 : 8 + compute.rindex("#") - 7] for line in (compute, far, near)]
    columns = len(drawn[0])
    assert [len(row) for row in drawn] == [columns] * 3
    for row, letter, us in ((0, "#", 90), (0, ".", 40), (1, "x", 30), (1, "=", 70), (2, "x", 10)):
        assert drawn[row].count(letter) == pytest.approx(columns * us / 130, abs=2), (letter, drawn[row])
    assert timeline_text(simulate(())) == []
    for width in (80, 40, 20):
        assert timeline_text(simulate(PARTLY), width)[0].count("#") >= 1
    assert lines[0] in text_of(report(*FAR))


def test_every_case_is_drawn_with_its_exposed_time() -> None:
    for steps, exposed, us in CASES.values():
        lines = timeline_text(simulate(steps))
        assert (us == 0.0) == (lines == []) and all(len(line) <= 80 for line in lines)
        if exposed and us:
            stalled = sum(span.us for span in simulate(steps).spans if span.step.kind == "wait")
            assert f"waits {time_text(stalled)}" in lines[0]


def test_many_small_steps_are_few_boxes() -> None:
    steps = [kernel(f"k{n}", 0.01) for n in range(5000)] + [start("c", 500), wait("c")]
    assert timeline_svg(simulate(steps)).count("<rect") < 10


def test_trace() -> None:
    trace = json.loads(json.dumps(make_trace(report(*PARTLY))))
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    events = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    assert set(events) == {"j", "c", "k", "wait_c", "l"}
    assert names[events["c"]["tid"]] == "cuda:0 communication" and names[events["k"]["tid"]] == CUDA
    assert (events["c"]["ts"], events["c"]["dur"]) == (5.0, 130.0)
    assert (events["wait_c"]["ts"], events["wait_c"]["dur"]) == (105.0, 30.0)
    assert events["l"]["ts"] == 135.0 and events["wait_c"]["args"]["waits for"] == "c"


def test_json() -> None:
    data = json.loads(json.dumps(replace(report(*PARTLY), realised={"c": Realised(150.0, 75.0, 4)}).to_json()))
    assert data["communication"] == [
        {
            "step": "c",
            "op": "_c10d_functional.all_reduce.default",
            "us": 130.0,
            "exposed_us": 30.0,
            "realised": {"us": 150.0, "exposed_us": 75.0, "runs": 4},
        }
    ]
