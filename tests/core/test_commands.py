"""The command line as a whole: quick to start, documented, sizes and JSON everywhere alike, no broken names in tables.

`test_cli.py` has what each command does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from litz.cli.main import main
from litz.errors import InvalidOptionError
from litz.options import core_options, make_options
from litz_plugins import OptionSpec
from litz_plugins.command_line import Number
from litz_plugins.units import parse_size

DOCS = Path(__file__).parents[2] / "docs"

STARTS = """
import sys, time
from click.testing import CliRunner
from litz.cli.main import main
for arguments in sys.argv[1:]:
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    heavy = sorted({"torch", "sympy", "triton"} & set(sys.modules))
    assert not heavy, f"litz {arguments} loads {heavy}"
    if arguments == "--help":
        print(time.process_time())
"""
TORCHLESS = (
    "--help",
    "--version",
    "options",
    "options --json",
    "cache info",
    "explain --help",
    "doctor --help",
    "plugins new --help",
    "tune --help",
    "tune list",
    "plugins kinds",
    "audit --help",
    "estimate-collective --bytes 64MiB --collective all_reduce --world-size 4",
)


def test_commands_without_torch_start_in_half_a_second() -> None:
    """The first of them, with all imports, takes less than half a second of processor time, in the quickest of a few
    processes, since others may have the caches; none loads torch."""
    seconds = list[float]()
    while len(seconds) < 4 and min(seconds, default=1.0) >= 0.5:
        command = [sys.executable, "-c", STARTS, *TORCHLESS]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
    assert min(seconds) < 0.5


REFUSED = """
import sys
from click.testing import CliRunner
from litz.cli.main import main
for arguments in sys.argv[1:]:
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code in (1, 2), (arguments, result.output, result.exception)
    heavy = sorted({"torch", "sympy", "triton"} & set(sys.modules))
    assert not heavy, f"litz {arguments} loads {heavy}"
"""
MISTAKEN = (
    "bench-kernels nowhere",
    "bisect --against eager nowhere.py",
    "explain nowhere.py",
    "explain-miss nowhere.py",
    "watch-plugins nowhere.py",
    "audit nowhere.py",
    f"audit --out /dev/null/nowhere {__file__}",
    "calibrate --out /dev/null/nowhere/cpu.toml",
    "calibrate-collectives /dev/null/nowhere/profile.json",
    "fit-collectives nowhere.csv profile.json --gpu H200",
    "tune import nowhere.json",
    "tune export /dev/null/nowhere.json",
)


def test_wrong_arguments_are_found_before_torch_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED, *MISTAKEN], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", ["/dev/null/cache", "/proc/cache", f"/tmp/{'x' * 300}"])
def test_a_cache_that_cannot_be_is_said_to_be_impossible(folder: str) -> None:
    text = CliRunner().invoke(main, ["cache", "info", "--dir", folder]).output
    assert "cannot" in text and "first compile" not in text


def test_json_says_what_is_wrong_with_a_cache() -> None:
    assert json.loads(CliRunner().invoke(main, ["cache", "info", "--json", "--dir", "/proc/cache"]).output)["problem"]


def test_looking_at_a_cache_leaves_nothing_behind(tmp_path: Path) -> None:
    text = CliRunner().invoke(main, ["cache", "info", "--dir", str(tmp_path / "a" / "b")]).output
    assert "the first compile makes the folder" in text and not list(tmp_path.iterdir())


def commands(
    group: click.Group = main, path: str = "litz", parent: click.Context | None = None
) -> dict[str, click.Command]:
    """Every command by what a user types, those of plugins too."""
    context, found = click.Context(group, parent), {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            found[f"{path} {name}"] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{path} {name}", context)
    return found


def _is_command(word: str) -> bool:
    """Neither an option nor an argument, which is in capitals."""
    return word[0].islower()


def test_every_command_is_documented() -> None:
    lines = (DOCS / "commands.md").read_text().splitlines()
    named = [line.strip("| ").split(" | ")[0].strip("`") for line in lines if line.startswith("| `litz ")]
    assert {" ".join(takewhile(_is_command, name.split())) for name in named} == set(commands())


@pytest.mark.parametrize("name", commands())
def test_every_command_has_json(name: str) -> None:
    assert any("--json" in parameter.opts for parameter in commands()[name].params)


def groups(group: click.Group = main, path: str = "litz") -> dict[str, click.Group]:
    """Every command that has commands of its own, by what a user types."""
    context, found = click.Context(group), {path: group}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found |= groups(command, f"{path} {name}")
    return found


@pytest.mark.parametrize("name", groups())
def test_the_help_of_each_command_fits_a_line_of_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(main, [*name.split()[1:], "--help"]).output
    rows = text.partition("Commands:\n")[2].splitlines()
    context = click.Context(groups()[name], click.Context(main) if name != "litz" else None)
    assert [row.split()[0] for row in rows] == groups()[name].list_commands(context)
    assert not [row for row in rows if row.endswith("...")]


@pytest.mark.parametrize("name", [*commands(), *groups()])
def test_no_help_is_wider_than_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(main, [*name.split()[1:], "--help"], prog_name="litz").output
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", commands())
def test_every_number_has_bounds(name: str) -> None:
    """NaN is within no bounds."""
    for option in commands()[name].params:
        if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
            assert isinstance(option.type, (click.IntRange, Number)) and option.type.min is not None, option.name
            for value in ("nan", "inf", "-5"):
                with pytest.raises(click.BadParameter):
                    option.type.convert(value, option, None)


def test_completion_knows_commands_and_options_of_plugins() -> None:
    complete = ShellComplete(main, {}, "litz", "_LITZ_COMPLETE")
    assert {"explain", "tune"} <= {item.value for item in complete.get_completions([], "")}
    assert [item.value for item in complete.get_completions(["estimate-collective"], "--by")] == ["--bytes"]
    assert "min-value" not in {item.value for item in complete.get_completions(["options"], "--j")}


def test_tables_break_no_name_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(main, ["options"]).output
    assert max(map(len, text.splitlines())) <= 80
    first = {line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")}
    assert {row.name for row in core_options()} | {"layout.keep_output_strides", "collectives.verify_seconds"} <= first


def test_explain_prints_nothing_but_json(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from collections import Counter\nfrom litz.report import CompileReport, publish\nprint('chatter')\n"
        "publish(CompileReport('graph7', 'inference', 'cpu', (), 1, 3, Counter(), stage_seconds={'lower': 1.5}))\n"
    )
    result = CliRunner().invoke(main, ["explain", "--json", str(script)])
    (graph,) = json.loads(result.stdout)
    assert (graph["name"], graph["kernels_after"]) == ("graph7", 3) and "chatter" in result.stderr
    timed = json.loads(CliRunner().invoke(main, ["explain", "--json", "--time", str(script)]).stdout)
    assert [stage["seconds"] for stage in timed if stage["name"] == "lower"] == [1.5]
    missed = json.loads(CliRunner().invoke(main, ["explain-miss", "--json", str(script)]).stdout)
    assert missed == [{"graph": "graph7", "graph_cache": "", "miss": None}]


# ------------------------------------------------------------------------------------------------- commands of scripts

OF_SCRIPTS = sorted(name for name, command in commands().items() if any(one.name == "script" for one in command.params))


@pytest.mark.parametrize("name", OF_SCRIPTS)
def test_an_unknown_option_before_the_script_names_the_nearest(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split()[1:], "--jsn", "x.py"])
    assert result.exit_code == 2
    assert "--jsn" in result.stderr and "Did you mean '--json'" in result.stderr and "no file" not in result.stderr


@pytest.mark.parametrize("name", OF_SCRIPTS)
def test_the_help_says_where_options_stand(name: str) -> None:
    text = " ".join(CliRunner().invoke(main, [*name.split()[1:], "--help"]).output.split())
    assert "Options of this command stand before SCRIPT" in text


def test_an_option_after_the_script_gives_a_warning_and_goes_to_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nassert sys.argv[1:] == ['--time', '--lr', '3', '--', '--json'], sys.argv\n")
    result = CliRunner().invoke(main, ["explain", str(script), "--time", "--lr", "3", "--", "--json"])
    assert result.exit_code == 0, result.output
    assert "warning: --time goes to the script; for `litz explain` write --time before SCRIPT" in result.stderr
    assert result.stderr.count("warning") == 1, "--lr is none of explain's, and what follows -- is the script's"


# --------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65536), ("64KiB", 65536), ("64 mib", 64 << 20), ("1.5GiB", 3 << 29), ("16MB", 16_000_000), ("0", 0)],
)
def test_sizes_are_understood(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64M", "-1", "many", "1e6", "10%"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64KiB"):
        parse_size(text)


@pytest.mark.parametrize(("text", "mib"), [("8GiB", 8192), ("512", 512), ("1.5MiB", 2), (256, 256)])
def test_an_option_that_counts_memory_takes_units(text: Any, mib: int) -> None:
    assert make_options(None, {"cache_limit": text}).cache_limit == mib
    assert make_options(environ={"LITZ_CACHE_LIMIT": str(text)}).cache_limit == mib


def test_a_plugins_option_takes_units_too() -> None:
    spec = OptionSpec("p.bytes", int, None, "some memory", unit=1)
    assert make_options(None, {"p.bytes": "64MiB"}, [spec])["p.bytes"] == 64 << 20
    with pytest.raises(InvalidOptionError, match="a size as 8GiB"):
        make_options(None, {"p.bytes": "much"}, [spec])
    with pytest.raises(ValueError, match="units of memory"):
        OptionSpec("p.bytes", str, None, "some memory", unit=1)


def test_every_size_of_a_command_takes_units() -> None:
    run = CliRunner().invoke
    base = ["estimate-collective", "--collective", "all_reduce", "--world-size", "4", "--json", "--bytes"]
    assert run(main, [*base, "64MiB"]).output == run(main, [*base, str(64 << 20)]).output
    refused = run(main, [*base, "64M"])
    assert refused.exit_code == 2 and "64KiB" in refused.output
    refused = run(main, ["calibrate-collectives", "p.json", "--least", "0"])
    assert refused.exit_code == 2 and "less than 1 B" in refused.output
