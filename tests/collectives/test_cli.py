"""The commands that the plugin adds to `litz`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from litz.cli.main import main

DATA = Path(__file__).parent / "data" / "nccl_h200_w2_w4.csv"


def litz(*args: object) -> str:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.output


ASKED = ("estimate-collective", "--collective", "all_gather", "--bytes", 67108864, "--world-size")


def test_the_estimate_of_the_manual() -> None:
    found = json.loads(litz(*ASKED, 8, "--gpu", "H200", "--link", "NV18", "--json"))
    assert {"time_us", "low_us", "high_us", "algorithm", "protocol", "why"} <= set(found)
    assert 150 < found["low_us"] < found["time_us"] < found["high_us"] < 300
    assert (found["algorithm"], found["protocol"]) == ("ring", "Simple")
    assert "8 ranks were not measured" in found["why"]


def test_text() -> None:
    assert "ring, Simple: measured" in litz(*ASKED, 4)
    assert "NCCL's formula" in litz(*ASKED, 32, "--network", 25)


def test_a_fitted_profile_is_used(tmp_path: Path) -> None:
    profile = tmp_path / "p.json"
    said = litz("fit-collectives", DATA, profile, "--gpu", "H200", "--source", "my cluster")
    assert [line.split()[:3] for line in said.splitlines() if "all_to_all" in line] == [
        ["all_to_all", "2", "fitted"],
        ["all_to_all", "4", "fitted"],
    ]
    found = json.loads(litz(*ASKED, 2, "--profile", profile, "--json"))
    assert "my cluster" in found["why"] and abs(found["time_us"] / 162.38 - 1) < 0.05 and found["launch_us"] == 28.3


def test_a_world_size_that_is_held_out_is_predicted(tmp_path: Path) -> None:
    profile = tmp_path / "p.json"
    said = litz("fit-collectives", DATA, profile, "--gpu", "H200", "--hold-out", "4").splitlines()
    assert any(line.split()[:4] == ["all_gather", "4", "held", "out"] for line in said)
    assert all(curve["world_sizes"] == [2] for curve in json.loads(profile.read_text())["curves"].values())


def test_mistakes_are_messages(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("collective,world_size,bytes,time_us,launch_us\nall_reduce,2,1024,fast,3\n")
    for args, says in [
        ((*ASKED, 8, "--gpu", "Voodoo2"), "litz knows no links of a 'Voodoo2'"),
        ((*ASKED, 8, "--link", "USB"), "a link is PCI or NV"),
        (("fit-collectives", bad, tmp_path / "p.json", "--gpu", "H200"), "bad.csv, line 2"),
    ]:
        result = CliRunner().invoke(main, [str(arg) for arg in args])
        assert result.exit_code == 1 and says in result.output and "Traceback" not in result.output


def test_commands_of_plugins_are_in_the_help() -> None:
    text = litz("--help")
    assert "estimate-collective" in text and text.index("cache") < text.index("estimate-collective")
    assert "no such command" in CliRunner().invoke(main, ["estimate-colective"]).output.lower()
