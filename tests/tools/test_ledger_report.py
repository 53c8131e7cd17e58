"""What a report says of plugins: time, changes, gains; in text, in HTML, in JSON, and by `litz watch-plugins`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from litz import report as reports
from litz.backend import backend_with
from litz.cli.main import main
from litz.cost import count_work
from litz.pipeline import schedule_only
from litz.report.tracing import tracing
from litz.schedule.implementations import ContractionRecord, Implementation
from litz_plugins import Decision, Pass, Weighed, hookimpl
from litz_plugins.blame import Called
from litz_plugins.ledger import Entry
from litz_tools import plugin as tools_plugin
from litz_tools import text
from litz_tools.effects import Effect, effect
from litz_tools.ledger import Row, by_plugin, effect_text, ledger_of, name_of, table_of, together
from litz_tools.page import render_html
from litz_tools.pass_notes import PassNotes, effects_of
from litz_tools.plugins_cli import in_short


def looked(program: Any, context: Any) -> Any:
    context.record("the program", "looked at", "for the test")
    return replace(program)


MINE = SimpleNamespace(
    litz_register_passes=hookimpl(lambda: [Pass("look", "program", looked)]),
    litz_compile_finished=hookimpl(lambda report: None),
)


@pytest.fixture(scope="module")
def compiled() -> tuple[reports.CompileReport, list[Called]]:
    """The report of a graph, and all calls of plugins in its compile."""
    calls: list[Called] = []
    torch._dynamo.reset()
    with reports.collect() as collected, tracing(calls.append):
        torch.compile(lambda x: (x.sin() + 1).sum(0), backend=backend_with(mine=MINE, tools=tools_plugin))(
            torch.randn(4, 8)
        )
    return collected[0], calls


def test_every_plugin_and_pass_has_a_row(compiled: Any) -> None:
    report, _ = compiled
    rows = {(row.plugin, row.what): row for row in ledger_of(report)}
    assert rows["mine", "register_passes"].calls == 1
    look, inline = rows["mine", "look"], rows["core", "inline_pointwise"]
    assert look.stage == "program" and look.calls == 1 and look.effect == Effect(0, 0, 0.0)
    assert inline.effect is not None and inline.effect.nodes < 0 and inline.effect.loops < 0
    assert inline.effect.bytes is not None and inline.effect.bytes < 0  # somebody collects this report
    assert all(row.seconds >= 0 for row in ledger_of(report))
    assert sum(row.seconds for row in ledger_of(report)) > 0


def test_text_html_and_json_have_it(compiled: Any) -> None:
    report, _ = compiled
    for verbose, word in ((False, "mine"), (True, "mine: look (program)")):
        console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        text.render(report, console, verbose)
        printed = console.export_text()
        assert word in printed and "changed" in printed
    page = render_html(report)
    assert "mine: look (program)" in page and "Plugins" in page
    data = report.to_json()
    (call,) = (call for call in data["calls"] if call["what"] == "pass 'look' (program stage)")
    assert (call["plugin"], call["calls"], call["failed"]) == ("mine", 1, 0)
    (note,) = (note for note in data["noted"] if note["name"] == "look")
    assert note["effect"] == {"nodes": 0, "loops": 0, "bytes": 0.0} and note["change"] is None


def test_a_trace_has_every_call_core_s_too(compiled: Any) -> None:
    _, calls = compiled
    whats = [(call.plugin, call.what) for call in calls]
    assert ("core", "litz_register_lowerings") in whats and ("mine", "pass 'look' (program stage)") in whats
    assert ("mine", "litz_compile_finished") in whats
    assert next(call.result for call in calls if call.what == "litz_register_passes" and call.plugin == "mine")


def test_effects_count_what_is_not_in_both() -> None:
    (schedule,) = schedule_only(lambda x: (x.sin().sum(0), x.cos().sum(1)), [torch.randn(4, 8)])
    program = schedule.program
    fewer = replace(program, operations=program.operations[1:])
    gone = count_work(program.operations[0], program).total_bytes
    assert gone > 0
    assert effect(program, fewer) == Effect(-1, -1, -gone)
    assert effect(fewer, program) == Effect(1, 1, gone)
    notes, cut = PassNotes(lines=False), Pass("cut", "program", looked, plugin="mine")
    noted = [notes(cut, program, fewer, 0.5), notes(cut, program, fewer, 0.5), "another plugin's", None]
    assert effects_of(SimpleNamespace(noted=noted)) == {("mine", "cut"): Effect(-2, -2, -2 * gone)}  # type: ignore[arg-type]


def test_gains_are_whose_decision_it_was() -> None:
    record = ContractionRecord(
        "op1", "aten.mm", "", (), (Implementation("mine", 3.0, ""), Implementation("aten.mm", 5.0, "")), plugin="fast"
    )
    report: Any = SimpleNamespace(
        timed=True,
        weighed={
            "g:look/a": Weighed("g:look/a", (("no", 9.0), ("yes", 5.0)), "yes"),
            "g:look/b": Weighed("g:look/b", (("no", 9.0), ("yes", None)), "yes"),
            "g:fuse/c": Weighed("g:fuse/c", (("no", 2.0), ("yes", 1.0)), "no"),
            "g:layout": Weighed("g:layout", (("no", 8.0), ("yes", 6.0)), "yes"),
        },
        contractions=(record,),
        decisions=(
            Decision("schedule", "op1", "mine", "measured", plugin="fast", gained_us=1.5),
            Decision("schedule", "g", "otherwise", "measured", plugin="tuner", gained_us=0.5),
        ),
    )
    report.noted = ()
    report.calls = [
        Entry("mine", "pass 'look' (program stage)", 1, 0.25),
        Entry("lay", "litz_select_layout", 1, 0.5),
        Entry("fast", "litz_select_choice", 1, 0.0),
    ]
    rows = {name_of(row): (row.estimated_us, row.measured_us) for row in ledger_of(report)}
    assert rows == {
        "mine: look (program)": (4.0, None),
        "lay: select_layout": (2.0, None),
        "fast: select_choice": (2.0, 1.5),
        "tuner: tune": (None, 0.5),
    }
    report.timed = False  # a CPU that nobody measured has shares, and no times
    assert all(row.estimated_us is None for row in ledger_of(report))


def test_rows_of_graphs_add_up() -> None:
    one = Row("a", "p", "program", 1, 0.5, Effect(-1, -1, None), 2.0, None)
    other = Row("a", "p", "program", 2, 0.25, Effect(-2, 0, 1024.0), None, 3.0, 1)
    (both,) = together([one, other])
    assert both == Row("a", "p", "program", 3, 0.75, Effect(-3, -1, 1024.0), 2.0, 3.0, 1)
    assert table_of([both])[1] == [["3, 1 failed", "750.0", "-3 nodes, -1 loops, +1.0 KiB", "2 µs", "3 µs"]]
    assert table_of([Row("a", "p", calls=1)])[0] == ["calls", "ms"]  # columns without a word are left out
    assert [name_of(row) for row in by_plugin([one, other, Row("b", "q", seconds=9.0)])] == ["b", "a"]
    assert effect_text(Effect(0, 0, 0.0)) == "as many"


def test_results_in_short() -> None:
    assert in_short([Pass("p", "graph", looked)]) == "1 of Pass" and in_short(None) == "None"
    assert in_short({}) == "{}" and len(in_short("x" * 1000)) <= 100


def test_command_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\nprint('arguments', sys.argv[1:])\n"
        "torch.compile(lambda x: (x.sin() + 1).sum(0), backend='litz')(torch.randn(4, 8))\n"
    )
    torch._dynamo.reset()
    timed = CliRunner().invoke(main, ["watch-plugins", str(script), "--steps", "3"], env={"COLUMNS": "80"})
    assert timed.exit_code == 0, timed.output
    assert "arguments ['--steps', '3']" in timed.output and "core: inline_pointwise" in timed.output
    torch._dynamo.reset()
    rows = json.loads(CliRunner().invoke(main, ["watch-plugins", "--json", str(script)]).stdout)
    assert {"plugin", "what", "seconds", "calls", "effect"} <= set(rows[0])
    torch._dynamo.reset()
    traced = CliRunner().invoke(main, ["watch-plugins", "--trace", str(script)])
    assert traced.exit_code == 0 and "pass 'inline_pointwise' (program stage) -> Program" in traced.output
    assert "litz_register_lowerings ->" in traced.output
    torch._dynamo.reset()
    result = CliRunner().invoke(main, ["watch-plugins", "--json", "--trace", str(script)])
    calls = {call["what"]: call for call in json.loads(result.stdout)}
    assert calls["pass 'inline_pointwise' (program stage)"]["result"] == "Program" and "arguments" in result.stderr
    missing = CliRunner().invoke(main, ["watch-plugins", "no-such-script.py"])
    assert missing.exit_code == 2 and "no-such-script.py" in missing.output
