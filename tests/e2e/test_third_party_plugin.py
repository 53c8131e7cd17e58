"""A third-party dist through torch.compile: its pass runs, its option is read, and what goes wrong names it.

Each case is a fresh process with its own folder of dists and its own cache, as entry points are read once a process.
"""

import textwrap

import pytest

from litz_plugins.scaffold import scaffold
from support.third_party import pip_install, run_python, write_dist

COMPILE = """
import sys, warnings, torch
warnings.simplefilter("always")

def f(x):
    return torch.relu(x) * 2 + 1

def compile(**options):
    return torch.compile(f, backend="litz", options=options or None)

x = torch.randn(64, 32)
"""

SPY = """
    import os
    from litz_plugins import OptionSpec, Pass, hookimpl

    @hookimpl
    def litz_register_options():
        return [OptionSpec("mark", str, "default", "what the pass prints")]

    @hookimpl
    def litz_register_passes(options):
        def run(program, context):
            print("pass sees", options["spy.mark"], len(program.operations) > 0)
            return program
        return [Pass("spy_pass", "program", run)]

    @hookimpl
    def litz_compile_started(graph):
        print("started")

    @hookimpl
    def litz_pass_finished(pass_, seconds):
        if pass_.name == "spy_pass":
            print("finished", pass_.plugin, seconds >= 0)

    @hookimpl
    def litz_compile_finished(report):
        print("done", report is not None)
"""

BOMB = """
    from litz_plugins import Pass, hookimpl

    @hookimpl
    def litz_register_passes(options):
        return [Pass("explode", "program", explode)]

    def explode(program, context):
        raise RuntimeError("boom")
"""


def run_compile(tmp_path, code, *path, **environ):
    return run_python(
        "-c",
        COMPILE + textwrap.dedent(code),
        path=path,
        imported=True,
        LITZ_CACHE_DIR=str(tmp_path / "cache"),
        **environ,
    )


CHECK = """
torch.testing.assert_close(compile({options})(x), f(x))
print("correct")
"""


def test_an_installed_plugin_takes_part(tmp_path):
    write_dist(tmp_path / "site", "litz-spy", {"spy": "litz_spy"}, {"litz_spy": SPY})
    done = run_compile(tmp_path, CHECK.format(options="**{'spy.mark': 'set by the user'}"), tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:5] == [
        "started",
        "pass sees set by the user True",
        "finished spy True",
        "done True",
        "correct",
    ]


def test_its_option_can_come_from_the_environment(tmp_path):
    write_dist(tmp_path / "site", "litz-spy", {"spy": "litz_spy"}, {"litz_spy": SPY})
    done = run_compile(tmp_path, CHECK.format(options=""), tmp_path / "site", LITZ_SPY_MARK="environment")
    assert "pass sees environment True" in done.stdout, done.stderr


def test_a_blocked_plugin_takes_no_part(tmp_path):
    write_dist(tmp_path / "site", "litz-spy", {"spy": "litz_spy"}, {"litz_spy": SPY})
    done = run_compile(tmp_path, CHECK.format(options=""), tmp_path / "site", LITZ_DISABLE_PLUGINS="spy")
    assert done.stdout.strip() == "correct", done.stderr


def test_the_scaffold_compiles(tmp_path):
    scaffold(tmp_path / "project", "weaver")
    pip_install(tmp_path / "project", tmp_path / "site")
    done = run_compile(tmp_path, CHECK.format(options="**{'weaver.inexact': True}"), tmp_path / "site")
    assert done.stdout.strip() == "correct", done.stdout + done.stderr


def test_a_raising_pass_stops_the_compile_and_is_named(tmp_path):
    write_dist(tmp_path / "site", "litz-bomb", {"bomb": "litz_bomb"}, {"litz_bomb": BOMB})
    done = run_compile(tmp_path, CHECK.format(options=""), tmp_path / "site")
    assert done.returncode != 0
    assert "plugin 'bomb' failed in pass 'explode' (program stage): RuntimeError: boom" in done.stderr
    assert "litz-bomb 1.0" in done.stderr and "LITZ_DISABLE_PLUGINS=bomb" in done.stderr


def test_a_raising_pass_can_be_gone_without(tmp_path):
    write_dist(tmp_path / "site", "litz-bomb", {"bomb": "litz_bomb"}, {"litz_bomb": BOMB})
    done = run_compile(tmp_path, CHECK.format(options="on_plugin_error='disable'"), tmp_path / "site")
    assert done.stdout.strip() == "correct", done.stderr
    assert "PluginWarning" in done.stderr and "explode" in done.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module", "plugin 'bad' could not be loaded: ModuleNotFoundError"),
        (
            "from litz_plugins import hookimpl\n@hookimpl\ndef litz_register_pases(options): return []",
            "did you mean 'litz_register_passes'",
        ),
    ],
)
def test_a_bad_plugin_is_one_clear_error(tmp_path, source, message):
    write_dist(tmp_path / "site", "litz-bad", {"bad": "litz_bad"}, {"litz_bad": source})
    done = run_compile(tmp_path, CHECK.format(options=""), tmp_path / "site")
    assert done.returncode != 0
    assert message in done.stderr and "litz-bad 1.0" in done.stderr and "LITZ_DISABLE_PLUGINS=bad" in done.stderr


def test_two_dists_of_one_name(tmp_path):
    for dist in ("litz-one", "litz-two"):
        module = dist.replace("-", "_")
        write_dist(tmp_path / "site", dist, {"twin": module}, {module: ""})
    done = run_compile(tmp_path, CHECK.format(options=""), tmp_path / "site")
    assert done.returncode != 0
    assert "two plugins have the name 'twin': from litz-one 1.0 (litz_one) and from litz-two 1.0" in done.stderr


def test_an_option_of_an_absent_plugin(tmp_path):
    done = run_compile(tmp_path, CHECK.format(options="**{'absent.level': 2}"))
    assert done.returncode != 0
    assert "there is no option 'absent.level'" in done.stderr
    assert "no installed plugin is called 'absent': install the plugin's dist" in done.stderr
