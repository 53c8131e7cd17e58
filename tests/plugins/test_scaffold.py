"""`litz plugins new`: the project is well-formed and its own tests pass."""

import tomllib

import pytest

from litz_plugins.scaffold import ScaffoldError, scaffold
from support.third_party import run_python


@pytest.mark.parametrize("name", ["my_cost", "my-cost", "litz-my-cost"])
def test_names(tmp_path, name):
    scaffold(tmp_path / "p", name)
    project = tomllib.loads((tmp_path / "p" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "litz-my-cost"
    assert project["entry-points"]["litz"] == {"my_cost": "litz_my_cost"}


@pytest.mark.parametrize("name", ["", "Mine", "2fast", "a b", "class", "plugins", "testing", "../x", "a__b"])
def test_bad_names(tmp_path, name):
    with pytest.raises(ScaffoldError, match="cannot be a plugin's name"):
        scaffold(tmp_path / "p", name)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ScaffoldError, match="not empty"):
        scaffold(tmp_path, "my_cost")


def test_no_placeholder_is_left_and_the_tests_pass(tmp_path):
    files = scaffold(tmp_path / "p", "my_cost")
    for file in files:
        text = file.read_text()
        assert not any(word in text for word in ("@name@", "@package@", "@dist@", "@ENV@")), file
        if file.suffix == ".py":
            compile(text, str(file), "exec")
    done = run_python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "p"), path=(tmp_path / "p" / "src",)
    )
    assert done.returncode == 0, done.stdout + done.stderr
