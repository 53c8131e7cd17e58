"""The `litz` command: right in 80 columns, right as JSON, and of help when something is missing."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.command_line import make_runner, width


@pytest.fixture
def litz(monkeypatch, tmp_path):
    """Runs the command with a cache of its own and no setting of the caller's."""
    return make_runner(monkeypatch, tmp_path)


@pytest.mark.parametrize("command", ["doctor", "plugins", "options", "cache", "explain", "bisect", "bench-kernels"])
def test_help_is_there_and_fits(litz, command):
    result = litz(command, "--help")
    assert result.exit_code == 0 and width(result.output) <= 80
    assert command in litz("--help").output


def test_version(litz):
    assert litz("--version").output.startswith("litz, version ")


def test_plugins_lists_core(litz):
    rows = json.loads(litz("plugins", "--json").output)
    assert all(row["status"] in ("builtin", "external", "blocked", "failed") for row in rows)
    assert {"core", "cpp", "triton"} <= {row["name"] for row in rows}
    assert width(litz("plugins").output) <= 80


def test_plugins_shows_a_blocked_one(litz, monkeypatch):
    monkeypatch.setenv("LITZ_DISABLE_PLUGINS", "triton")
    rows = {row["name"]: row for row in json.loads(litz("plugins", "--json").output)}
    assert rows["triton"]["status"] == "blocked"


def test_plugins_new(litz, tmp_path):
    result = litz("plugins", "new", "my_cost", "--path", str(tmp_path / "p"))
    assert result.exit_code == 0 and "pip install -e" in result.output
    assert (tmp_path / "p" / "src" / "litz_my_cost" / "__init__.py").exists()
    again = litz("plugins", "new", "my_cost", "--path", str(tmp_path / "p"))
    assert again.exit_code == 1 and "not empty" in again.output and "Traceback" not in again.output


def test_plugins_new_as_json(litz, tmp_path):
    result = json.loads(litz("plugins", "new", "my_cost", "--path", str(tmp_path / "p"), "--json").output)
    assert (result["path"], result["kind"]) == (str(tmp_path / "p"), "pass")
    assert set(result["files"]) == {str(path) for path in (tmp_path / "p").rglob("*") if path.is_file()}


def test_plugins_new_of_a_kind(litz, tmp_path):
    listed = litz("plugins", "kinds")
    assert listed.exit_code == 0 and width(listed.output) <= 80
    for kind in json.loads(litz("plugins", "kinds", "--json").output):
        assert kind in listed.output
        assert litz("plugins", "new", "my_own", "--kind", kind, "--path", str(tmp_path / kind)).exit_code == 0


def test_plugins_new_refuses_a_name_that_is_taken(litz, tmp_path):
    result = litz("plugins", "new", "cache", "--path", str(tmp_path / "p"))
    assert result.exit_code == 1 and "core has the command" in result.output and not (tmp_path / "p").exists()


def test_options_lists_every_option(litz, monkeypatch):
    monkeypatch.setenv("LITZ_FUSION", "0")
    rows = {row["name"]: row for row in json.loads(litz("options", "--json").output)}
    assert rows["fusion"]["value"] is False and rows["fusion"]["env"] == ["LITZ_FUSION"]
    text = litz("options").output
    assert width(text) <= 80 and "cpp.march" in text and "LITZ_BUILD_WORKERS" in text


def test_a_bad_variable_is_a_message(litz, monkeypatch):
    monkeypatch.setenv("LITZ_DEBUG", "maybe")
    result = litz("options")
    assert result.exit_code == 1 and "LITZ_DEBUG" in result.output and isinstance(result.exception, SystemExit)


def test_cache_info_and_clear(litz, tmp_path):
    assert "empty" in litz("cache", "info").output
    from litz.cache.disk import Cache

    Cache(tmp_path / "cache").build("cpp", "0123", lambda folder: (folder / "kernel.cpp").write_text("x" * 2048))
    found = json.loads(litz("cache", "info", "--json").output)
    assert found["entries"] == 1 and found["bytes"] >= 2048 and found["path"] == str(tmp_path / "cache")
    text = litz("cache", "info").output
    assert "cpp" in text and "KiB" in text and width(text) <= max(80, len(str(tmp_path)) + 6)
    assert litz("cache", "clear", input="n\n").exit_code == 1
    assert json.loads(litz("cache", "info", "--json").output)["entries"] == 1
    assert "removed 1 entry" in litz("cache", "clear", "--yes").output
    assert json.loads(litz("cache", "info", "--json").output)["entries"] == 0


def test_cache_clear_as_json(litz, tmp_path):
    from litz.cache.disk import Cache

    Cache(tmp_path / "cache").build("cpp", "0123", lambda folder: (folder / "kernel.cpp").write_text("x"))
    result = litz("cache", "clear", "--json", input="y\n")
    assert json.loads(result.stdout) == {"path": str(tmp_path / "cache"), "removed": 1}
    assert "remove everything" in result.stderr  # the question is no part of the JSON


COMPILE = """
from collections import Counter
from litz.report import CompileReport, Step, publish
def compile_one(name):
    step = Step("op0", "extern", "cpu", "aten.mm.default", bytes_read=1024.0)
    publish(CompileReport(name, "inference", "cpu", (step,), 1, 0, Counter({"aten.mm.default": 1})))
"""
"""What a script needs to look as though it had compiled a graph."""


def test_explain_runs_the_script_as_python_would(litz, tmp_path):
    (tmp_path / "beside.py").write_text("value = 'graph7'")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, beside\n{COMPILE}\n"
        "assert __name__ == '__main__'\nassert sys.argv[1:] == ['--lr', '3', '--help'], sys.argv\n"
        "compile_one(beside.value)\nsys.exit(4)\n"
    )
    before = sys.argv, list(sys.path)
    result = litz("explain", str(script), "--lr", "3", "--help")
    assert "graph7 ───" in result.output and "1.0 KiB read and written" in result.output, result.output
    assert "litz calibrate" in result.output
    assert width(result.output) <= 80
    assert result.exit_code == 4
    assert (sys.argv, sys.path) == before


def test_explain_reports_what_was_compiled_before_a_failure(litz, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"{COMPILE}\ncompile_one('graph7')\nraise ValueError('later')\n")
    result = litz("explain", str(script))
    assert "graph7 ───" in result.output
    assert result.exit_code == 1
    assert "ValueError: later" in result.stderr and "script.py" in result.stderr
    assert "runpy" not in result.stderr and "click" not in result.stderr


def test_explain_sums_up_several_graphs_first(litz, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"{COMPILE}\nfor n in range(9): compile_one(f'graph{{n}}')\n")
    text = litz("explain", str(script)).output
    assert "graph8" in text and "graph8 ───" not in text and "litz explain -v" in text
    assert "graph8 ───" in litz("explain", "-v", str(script)).output


def test_explain_time_has_a_row_for_each_stage(litz, tmp_path):
    script = tmp_path / "script.py"
    seconds = '{"start": 0.25, "lower": 1.5, "generate": 0.25}'
    script.write_text(
        "from collections import Counter\nfrom litz.report import CompileReport, publish\n"
        "made = CompileReport('graph7', 'inference', 'cpu', (), 1, 3, Counter(), "
        f"stage_seconds={seconds}, cache_hits=2)\npublish(made)\n"
    )
    text = litz("explain", "--time", str(script)).output
    rows = {line.split()[0]: line.split()[1] for line in text.splitlines() if line}
    assert rows["lower"] == "1.50" and rows["litz"] == "2.00" and rows["all"] == "2.00", text
    assert "build" not in rows and "graph7" not in text
    assert "1 graph, 3 kernels, 2 of them from the cache" in text
    assert width(text) <= 80


def test_explain_time_tells_torchs_share():
    from litz.capture.torch_api import TorchSeconds
    from litz.report import CompileReport
    from litz.report.stages import stages_of

    report = CompileReport("g", "forward", "cpu", (), 1, 1, Counter(), stage_seconds={"lower": 1.0, "a plugin's": 0.5})
    took = TorchSeconds(dynamo=2.0, backend=4.0)
    found = {stage.name: (stage.seconds, stage.own) for stage in stages_of([report], took)}
    assert found == {
        "dynamo": (2.0, False),
        "AOTAutograd": (2.5, False),
        "lower": (1.0, True),
        "a plugin's": (0.5, True),
    }
    assert [stage.name for stage in stages_of([report], None)] == ["lower", "a plugin's"]


def test_explain_time_says_what_each_stage_does():
    import torch

    from litz.backend import backend_with
    from litz.report import collect
    from litz.report.stages import DOES

    torch._dynamo.reset()
    with collect() as reports:
        torch.compile(lambda x: x.exp() * 2, backend=backend_with())(torch.ones(4))
    assert {"lower", "schedule", "generate"} <= reports[0].stage_seconds.keys() <= DOES.keys()


def test_explain_a_module(litz, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("explained_module.py").write_text(f"{COMPILE}\ncompile_one(__name__)\n")
    assert "__main__ ───" in litz("explain", "-m", "explained_module").output


def test_explain_without_a_compile_says_so(litz, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('hello')\n")
    result = litz("explain", str(script))
    assert result.exit_code == 0 and "no graph was compiled with litz" in result.output


def test_explain_without_a_script(litz):
    result = litz("explain", "no_such_file.py")
    assert result.exit_code == 2 and "no file" in result.output
