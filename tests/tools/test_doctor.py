"""`litz doctor`: right in 80 columns, right as JSON, and of help when something is missing."""

import json

import pytest

from litz.cli import main as main_module
from litz.errors import LitzError
from litz.options import Options
from litz_tools import doctor as doctor_module
from litz_tools.doctor import Check, check_cache, check_compiler, check_launch
from support.command_line import make_runner, width


@pytest.fixture
def litz(monkeypatch, tmp_path):
    """Runs the command with a cache of its own and no setting of the caller's."""
    return make_runner(monkeypatch, tmp_path)


def test_doctor_fits_and_names_everything(litz):
    result = litz("doctor")
    assert width(result.output) <= 80
    for name in ("torch", "cpu", "triton", "compiler", "cache", "plugins"):
        assert name in result.output


def test_doctor_as_json(litz, monkeypatch):
    monkeypatch.setattr(doctor_module, "check_all", lambda: [Check("torch", "ok", "2.13")])
    result = litz("doctor", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output) == [{"name": "torch", "status": "ok", "detail": "2.13", "todo": ""}]


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_exit_code(litz, monkeypatch, status, code):
    monkeypatch.setattr(doctor_module, "check_all", lambda: [Check("x", status, "[found]", "mend it [now]")])
    result = litz("doctor")
    assert result.exit_code == code
    assert "mend it [now]" in result.output and "[found]" in result.output


def test_doctor_reports_a_bad_variable(litz, monkeypatch):
    monkeypatch.setenv("LITZ_BUILD_WORKERS", "many")
    result = litz("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(result.output)}
    assert result.exit_code == 1 and "LITZ_BUILD_WORKERS" in rows["options"]["detail"]


def test_doctor_survives_a_check_that_breaks(monkeypatch):
    def _check_torch():
        raise RuntimeError("odd")

    (row,) = doctor_module._guarded(_check_torch)
    assert row == Check("torch", "fail", "RuntimeError: odd", "please report this as a bug in litz")


def test_compiler_check_without_a_compiler():
    (row,) = check_compiler("/no/such/g++", "native")
    assert row.status == "fail" and "/no/such/g++" in row.detail and "LITZ" not in row.todo and "CXX=" in row.todo
    (row,) = check_compiler(None, "native", candidates=("no-such-compiler",))
    assert row.status == "fail" and "no-such-compiler" in row.detail


def make_script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_compiler_check_with_a_broken_compiler(tmp_path):
    (row,) = check_compiler(make_script(tmp_path / "cc", "echo 'cc1plus: no such file' >&2; exit 1"), "native")
    assert row.status == "fail" and "cc1plus: no such file" in row.detail


def test_compiler_check_without_openmp(tmp_path):
    # A compiler that knows no -fopenmp.
    script = 'for a in "$@"; do [ "$a" = -fopenmp ] && { echo no openmp >&2; exit 1; }; done; exec c++ "$@"'
    (row,) = check_compiler(make_script(tmp_path / "cc", script), "native")
    assert row.status == "warn" and "no OpenMP" in row.detail and "libgomp" in row.todo


def test_compiler_check_with_what_cannot_be_loaded(tmp_path):
    script = 'while [ "$1" != -o ]; do shift; done; echo text > "$2"'
    (row,) = check_compiler(make_script(tmp_path / "cc", script), "native")
    assert row.status == "fail" and "cannot be loaded" in row.detail and "TMPDIR" in row.todo


def test_cache_check(tmp_path):
    (row,) = check_cache(tmp_path / "new")
    assert row.status == "ok"
    (tmp_path / "file").write_text("")
    (row,) = check_cache(tmp_path / "file" / "below")
    assert row.status == "fail" and "LITZ_CACHE_DIR" in row.todo
    (row,) = check_cache(tmp_path / "file" / "below", enabled=False)
    assert row.status == "ok"


def test_launch_check(tmp_path):
    (row,) = check_launch(Options(cache_dir=tmp_path))
    assert row == Check("launch", "ok", "native")
    broken = make_script(tmp_path / "cc", 'case "$1" in --version) echo 1.0;; *) echo no Python.h >&2; exit 1;; esac')
    (row,) = check_launch(Options(cache_dir=tmp_path, cpp_compiler=broken))
    assert row.status == "warn" and "no Python.h" in row.detail and "python3-dev" in row.todo
    (row,) = check_launch(Options(cache_dir=tmp_path, cpp_compiler="/no/such/g++"))
    assert row.status == "warn" and "no C++ compiler" in row.detail


def test_litz_errors_are_messages(litz, monkeypatch):
    def fail():
        raise LitzError("the warp is cut", todo="tie a knot")

    monkeypatch.setattr(doctor_module, "check_all", fail)
    result = litz("doctor")
    assert result.exit_code == 1 and "the warp is cut" in result.output and "tie a knot" in result.output


def test_without_the_tools_a_line_says_where_the_doctor_is(litz, monkeypatch):
    monkeypatch.setattr(main_module, "_plugin_commands", dict)
    result = litz("doctor")
    assert result.exit_code == 2
    (said,) = [" ".join(text.split()) for text in result.output.split("Error: ")[1:]]
    assert said.startswith("No such command 'doctor'. litz-tools has it: `pip install ./plugins_tools`")
