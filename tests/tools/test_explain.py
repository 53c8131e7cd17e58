"""`litz explain`: runs a script as Python would, and says what litz made of each of its graphs."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from support.command_line import make_runner, width


@pytest.fixture
def litz(monkeypatch, tmp_path):
    """Runs the command with a cache of its own and no setting of the caller's."""
    return make_runner(monkeypatch, tmp_path)


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
    from litz.report import CompileReport
    from litz_tools.stages import stages_of
    from litz_tools.torch_seconds import TorchSeconds

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
    from litz_tools.stages import DOES

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


@pytest.mark.parametrize("command", ["explain", "explain-miss", "watch-plugins"])
def test_a_script_that_raises_has_its_traceback_first_and_then_one_line(litz, tmp_path, command):
    script = tmp_path / "script.py"
    script.write_text("print('hello')\nraise ValueError('what happened')\n")
    result = litz(command, str(script))
    assert result.exit_code == 1 and "no graph was compiled with litz" not in result.output
    said, _, rest = result.output.partition("ValueError: what happened\n")
    assert "Traceback" in said and "hello" in said
    assert rest == "the script ended with ValueError after no graphs compiled by litz\n"


def test_explain_without_a_script(litz):
    result = litz("explain", "no_such_file.py")
    assert result.exit_code == 2 and "no file" in result.output


def test_core_alone_says_where_the_command_is(litz, monkeypatch):
    monkeypatch.setattr("litz.cli.main._plugin_commands", dict)
    result = litz("explain", "train.py")
    assert result.exit_code == 2 and "litz-tools has it: `pip install ./plugins_tools`" in result.output
