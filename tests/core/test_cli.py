"""The `litz` command: right in 80 columns, right as JSON, and of help when something is missing."""

import json

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
