"""What the report shows of the autotuner's decisions."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import torch

from litz_autotune.account import Contested, render_picture, render_text
from litz_autotune.measurement import Measurement, failed
from support import rivals
from support.fake_timer import FakeTimer
from support.tuned import Tuned

ONE = Contested(
    "mm(bf16[8, 8] & more)",
    "fast",
    "gains 50 %",
    {
        "library": Measurement(10.0, 0.2, 60),
        "fast": Measurement(5.0, 0.1, 60),
        "slow": Measurement(40.0, 0.0, 3, "clearly slower than the best"),
        "broken": failed("does not compile"),
    },
    3,
)


def test_the_table_has_every_candidate_the_fastest_first() -> None:
    lines = render_text([ONE]).splitlines()
    assert lines[0] == "mm(bf16[8, 8] & more), 3 times" and "fast: gains 50 %" in lines[1]
    assert [line.split()[-1] for line in lines[3:5]] == ["fast", "library"]
    assert lines[3].split()[:3] == ["*", "5", "0.1"] and "(clearly slower than the best)" in lines[5]
    assert "broken (does not compile)" in lines[6] and lines[6].split()[0] == "-"


def test_the_picture_has_a_bar_for_each_time() -> None:
    root = ElementTree.fromstring(render_picture([ONE, ONE]))
    bars = [float(e.attrib["width"]) for e in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(bars) == 6 and bars[0] * 2 == bars[1] and bars[2] == max(bars)


def test_a_compile_reports_each_contest_once(tmp_path: Path) -> None:
    compile_ = Tuned(tmp_path, FakeTimer((("library", 100), ("good", 50))), rivals.good)
    a = torch.randn(32, 32)
    compile_(lambda a: (a @ a) @ a, a)
    text = compile_.report.attachments["autotune.txt"]
    assert "mm(f32[32, 32]" in text and "*     50" in text
    assert compile_.report.attachments["autotune.svg"].startswith("<svg")
