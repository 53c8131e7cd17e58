"""Benchmarks are data: every line of benchmarks/results is a row, scripts write such lines, and README and docs have no
figure that the data do not give."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from website import figures, tables

from support.no_gpu import gpu_hidden

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import record
from benchmarks.record import Row, RowError, newest, read_line, read_rows

ROOT = Path(__file__).parents[2]
ROWS = read_rows()
GPT2 = next(row for row in ROWS if (row.task, row.case, row.mode) == ("training", "gpt2", "default"))


def made(ratio: float, case: str = "a model", **others: Any) -> Row:
    """A row of a model for which litz is so many times as fast as Inductor, by kernels."""
    peers = {"eager": {"kernel_ms": 9.0}, "inductor": {"kernel_ms": 2.0}, "litz": {"kernel_ms": 2.0 / ratio}}
    given: dict[str, Any] = {"task": "training", "script": "side_by_side", "device": "NVIDIA H200", "peers": peers}
    return Row(case=case, **given | {"date": "2026-11-20"} | others)


# ------------------------------------------------------------------------------------------------------------ the data


def test_every_line_is_a_row() -> None:
    assert {row.task for row in ROWS} >= {"inference", "training", "first_calls", "kernels", "attention", "decoding"}
    assert all(row.peers or row.ratios or row.problems for row in ROWS), "a row without a figure says nothing"
    for row in ROWS:
        assert read_line(record.as_line(row)) == row


def test_sources_of_rows_are_sections_of_the_lab() -> None:
    for source in {row.source for row in ROWS} - {"script"}:
        path, _, anchor = source.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, source


def test_scripts_of_rows_write_rows() -> None:
    """But for a script of cases, whose table `function_cases` prints."""
    for script in {row.script for row in ROWS}:
        text = (ROOT / "benchmarks" / f"{script}.py").read_text(encoding="utf-8")
        assert "recorder(" in text or "print_table(" in text, f"benchmarks/{script}.py has no --json"


def test_the_newest_row_of_a_case_counts() -> None:
    """Of a whole model on any NVIDIA GPU, of a kernel on one device; of one day the last line."""
    old, new, same_day = made(1.0), made(1.1, date="2026-11-20/2026-11-21", device="NVIDIA H100"), made(1.2)
    assert newest([new, old, same_day]) == [new] and newest([old, same_day]) == [same_day]
    undated, cpu = made(1.3, date=None), made(1.4, device="CPU of somebody")
    assert newest([old, undated, cpu]) == [old, cpu]
    kernels = [replace(row, task="kernels") for row in (old, new)]
    assert newest(kernels) == kernels


WRONG: Mapping[str, Mapping[str, Any]] = {
    "task": {"task": "sleeping"},
    "mode": {"mode": "fast"},
    "script": {"script": "nobody"},
    "date": {"date": "yesterday"},
    "commit": {"commit": "HEAD"},
    "peers": {"peers": {"somebody": {"kernel_ms": 1.0}}},
    "litz": {"peers": {"litz": {"seconds": 1.0}}},
    "eager": {"peers": {"eager": {"kernel_ms": "fast"}}},
    "inductor": {"peers": {"inductor": {"kernel_ms": math.inf}}},
    "ratios": {"ratios": {"error": 1.0}},
    "problems": {"problems": {"somebody": "failed"}},
    "device": {"device": ""},
    "alone": {"alone": "yes"},
    "versions": {"versions": None},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named(name: str) -> None:
    with pytest.raises(RowError, match=f"training, gpt2: {name} is|sleeping, gpt2: task is"):
        replace(GPT2, **WRONG[name])


def test_a_wrong_line_is_named_with_its_file(tmp_path: Path) -> None:
    lacking = {name: value for name, value in json.loads(record.as_line(GPT2)).items() if name != "commit"}
    for line in (json.dumps(lacking), json.dumps({**lacking, "commit": None, "more": 1}), "[]", "{"):
        (tmp_path / "training.jsonl").write_text(f"{record.as_line(GPT2)}\n{line}\n")
        with pytest.raises(RowError, match=r"training\.jsonl:2"):
            read_rows(tmp_path)
    (tmp_path / "training.jsonl").rename(tmp_path / "inference.jsonl")
    with pytest.raises(RowError, match=r"belongs into training\.jsonl"):
        read_rows(tmp_path)


# ---------------------------------------------------------------------------------------------------------- the writer


@pytest.mark.parametrize(("load", "alone"), [(0.2, None), (0.7, False)])
def test_a_busy_machine_is_in_the_row(load: float, alone: bool | None, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(record.os, "getloadavg", lambda: (load * (record.os.cpu_count() or 1), 0.0, 0.0))
    record.recorder(tmp_path / "host.jsonl", "host_time", "cpu", [])(task="host", case="a launch", peers={})
    (row,) = read_rows(tmp_path)
    assert row.alone is alone


def test_a_script_appends_rows(tmp_path: Path) -> None:
    """With what the machine and the checkout say; peers that tables do not have, and numbers that are nan, are left
    out."""
    parser = argparse.ArgumentParser()
    record.add_option(parser)
    file = tmp_path / "folder" / "decoding.jsonl"
    path = parser.parse_args(["--json", str(file)]).json
    write = record.recorder(
        path, "decode", "cpu", ["--only", "a b", "--json", str(file), "--batch", "1"], {"now": "litz", "eager": "eager"}
    )
    peers = {"now": {"wall_ms": 1.23456789, "kernels": 7.0, "error": math.nan}, "eager": {"wall_ms": None}, "other": {}}
    write(task="decoding", case="bf16 weights, batch 1", peers=peers, problems={"other": "failed", "eager": "late"})
    write(task="decoding", case="int8 weights, batch 1", peers={})
    found, second = read_rows(file.parent)
    assert found.peers == {"litz": {"wall_ms": 1.2346, "kernels": 7}} and found.problems == {"eager": "late"}
    assert (
        found.command == "python -m benchmarks.decode --only 'a b' --batch 1"
        and found.source == "script"
        and second.peers == {}
    )
    assert found.device.startswith("CPU ") and "threads" in found.device and found.versions["torch"]
    assert found.commit and found.date
    record.recorder(None, "decode", "cpu")(task="nothing is written")


@pytest.fixture(scope="module")
def scripts() -> Any:
    """The modules whose scripts need a GPU, or much time."""
    with gpu_hidden():
        from benchmarks import attention, autotune, decode, epilogues, first_call, overlap

    return argparse.Namespace(**{each.__name__.rpartition(".")[2]: each for each in (
        attention, autotune, decode, epilogues, first_call, overlap,
    )})  # fmt: skip


def test_what_scripts_measure_becomes_rows(scripts: Any, tmp_path: Path) -> None:
    """Each of the scripts' own records; units are those of the measures."""
    a = scripts.attention.Row("causal", 64, 512, "both", library="cudnn", ms={"sdpa": 0.5, "litz": 0.4})
    a.tflops, a.mib, a.error, a.first_call_s = ({"sdpa": 1.0, "litz": 2.0} for _ in range(4))
    tuned = scripts.autotune.Row("square 64", "relu", "bf16", us={"litz": 7.0}, seconds={"litz": 1.5, "inductor": 6.0})
    found = [
        scripts.decode.Row("int8", 1, peer, 100, ms=ms, kernel_us=500.0) for peer, ms in (("eager", 2.0), ("litz", 1.0))
    ]
    product = scripts.epilogues.Row("a", "relu", {"eager": 9.0, "now": 8.0, "tile 1": 7.0}, sizes=[64, 32, 16])
    call = scripts.first_call.Row("gpt2", "training", {"litz cold": scripts.first_call.FirstCall(3.0, 2.0)})
    sharded = [
        scripts.overlap.Row("tp", "litz overlap", 4.0, 2.0, 1.0, 0.5),
        scripts.overlap.Row("tp", "eager", failed="late"),
    ]
    names = record.OWN_NAMES
    for script, values, own in (
        ("attention", scripts.attention.as_record(a), names | {"sdpa": "library"}),
        ("autotune", scripts.autotune.as_record(tuned), names),
        ("decode", scripts.decode.as_record(found), names),
        ("epilogues", scripts.epilogues.as_record(product, torch.bfloat16), {"eager": "eager", "now": "litz"}),
        ("first_call", scripts.first_call.as_record(call, "alone"), names),
        ("overlap", scripts.overlap.as_record("tp", sharded), scripts.overlap.NAMES),
    ):
        record.recorder(tmp_path / f"{values['task']}{script}.jsonl", script, "cpu", [], own)(**values)
    rows = {
        row.script: row for file in sorted(tmp_path.iterdir()) for row in map(read_line, file.read_text().splitlines())
    }
    assert len(rows) == 6
    assert rows["attention"].case == "causal, 64, 512, both"
    assert rows["attention"].peers["library"]["kernel_ms"] == 0.5 and rows["attention"].peers["litz"]["tflops"] == 2
    assert rows["autotune"].case == "square 64, relu, bf16" and rows["autotune"].mode == "max-autotune"
    assert rows["autotune"].peers == {"litz": {"cold_s": 1.5, "kernel_ms": 0.007}, "inductor": {"cold_s": 6}}
    assert rows["decode"].case == "int8 weights, batch 1" and rows["decode"].peers["eager"] == {
        "wall_ms": 2,
        "kernel_ms": 0.5,
    }
    assert rows["epilogues"].case == "64 x 32 x 16, relu"
    assert rows["epilogues"].peers == {"eager": {"kernel_ms": 0.009}, "litz": {"kernel_ms": 0.008}}
    assert rows["first_call"].case == "gpt2, training" and rows["first_call"].note == "alone"
    assert rows["first_call"].peers == {"litz": {"cold_s": 3, "cold_processor_s": 2}}
    assert rows["overlap"].problems == {"eager": "late"} and rows["overlap"].peers["litz, overlap"]["peak_mib"] == 512


# ----------------------------------------------------------------------------------------------------------- the pages


def test_readme_and_docs_have_the_figures_of_the_data() -> None:
    assert figures.complaints() == [], "`make figures ARGS=--write` makes the tables anew"


def test_the_page_of_benchmarks_can_be_read() -> None:
    text = figures.BENCHMARKS.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    headings = set(re.findall(r"^## (.*)$", text, re.MULTILINE))
    assert headings >= {figures.TITLES.get(task, task.capitalize()) for task in figures.MORE} | {"All tasks", "Memory"}


@pytest.mark.nightly
def test_a_figure_that_somebody_changed_is_found() -> None:
    readme, page = (path.read_text(encoding="utf-8") for path in (figures.README, figures.BENCHMARKS))
    line = next(line for line in readme.splitlines() if line.startswith("| GPT-2, training"))
    wrong = "\n".join(figures.complaints(readme=readme.replace(line, line.replace("8.82", "8.28"))))
    assert "README.md, README models: the data do not give" in wrong and "8.28" in wrong and line in wrong
    (first, second) = page[page.index("| what |") :].splitlines()[2:4]
    assert "another order" in "\n".join(
        figures.complaints(benchmarks=page.replace(f"{first}\n{second}", f"{second}\n{first}"))
    )
    typed = figures.complaints(readme=f"{readme}\nlitz is 1.34 times as fast; torch 2.11 `0.5` [x](a-1.2)\n")
    assert typed == ["README.md: 1.34 in prose is of no data: put it into a block"]


def test_a_row_that_changed_makes_pages_wrong() -> None:
    faster = {**GPT2.peers, "litz": {**GPT2.peers["litz"], "kernel_ms": 0.5}}
    rows = [replace(row, peers=faster, ratios={}) if row is GPT2 else row for row in newest(ROWS)]
    found = "\n".join(figures.complaints(rows))
    assert "| 0.50 | 18.00 |" in found and "docs/benchmarks/training.md differs from benchmarks/results" in found


# ---------------------------------------------------------------------------------------------------------- statistics


def test_outliers_are_slow_peers_and_far_ratios() -> None:
    usual = [made(ratio, f"model {ratio}") for ratio in (0.9, 1.0, 1.1, 1.2)]
    far, near = made(3.4, "far"), made(3.0, "near")
    slow = made(1.5, "slow")
    slow = replace(slow, peers={**slow.peers, "eager": {"kernel_ms": 1.5}})
    rows = [*usual, far, near, slow]
    group = tables.Group("kernels", "training", "kernel_ms")
    assert tables.outliers(group, rows) == [slow] and tables.artefacts(rows) == {("training", "slow")}
    assert tables.outliers(group, [*usual, far]) == [far]
    busy = made(1.1, "busy", alone=False, ratios={"wall_ms": 1.1})
    clock = replace(group, measure="wall_ms")
    assert tables.outliers(group, [busy]) == [] and tables.outliers(clock, [busy, replace(busy, alone=None)]) == [busy]
    assert len(tables.summary_table([], [group]).splitlines()) == 2
    line = tables.summary_table([*usual, far], [group]).splitlines()[-1]
    assert line == "| kernels | 5 | 1.10 | 1.32 | 1 | 4 | 1.05 | 1.04 | 0.90 (model 0.9, H200) |"


def test_losses_come_first() -> None:
    rows = [made(1.2, "fast"), made(0.999, "even"), made(0.9, "slow"), made(1.1, "late", ratios={"wall_ms": 0.5})]
    assert [row.case for row in tables.of_task("training", rows)] == ["late", "slow", "even", "fast"]
    (line,) = tables.slowest("training", rows, most=1).splitlines()[2:]
    assert "**late**" in line, "the page says how many more there are"
    section = next(text for text in figures.sections(rows) if text.startswith("## Training"))
    assert section.count("**") == 4 and "more losses" not in section
    assert tables.slowest("training", rows[:1]) == "" and "No row is a loss." in next(figures.sections(rows[:1]))


def test_a_loss_of_memory_is_above_one() -> None:
    peers = {"inductor": {"peak_mib": 100.0, "kernel_ms": 1.0}, "litz": {"peak_mib": 150.0, "kernel_ms": 1.0}}
    large, small = made(1.0, "large", peers=peers), made(1.0, "small", ratios={"peak_mib": 0.5})
    line = tables.summary_table([large, small], [tables.Group("m", "training", "peak_mib")]).splitlines()[-1]
    assert line == "| m | 2 | 1.00 | 0.87 | 1 | 2 | 1.00 | 0.87 | 1.50 (large, H200) |"
    assert "large" in tables.most_memory([large, small]) and "small" not in tables.most_memory([large, small])


def test_communication_compares_the_faster_ways() -> None:
    """The fastest of litz's against the fastest of Inductor's."""
    times = {"inductor": 10.0, "inductor, overlap": 12.0, "litz": 14.0, "litz, overlap": 11.0}
    row = made(1.0, task="communication", script="overlap", peers={who: {"wall_ms": ms} for who, ms in times.items()})
    assert tables.ratio(row, "wall_ms") == pytest.approx(10 / 11)
