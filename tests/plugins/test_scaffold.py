"""`litz plugins new`: a project of each kind is its example under another name; names that are taken are refused."""

import os
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import litz_plugins
from litz_plugins import scaffold as scaffolding
from litz_plugins.scaffold import PROJECTS, ScaffoldError, kinds, own_files, project_files, scaffold
from support.third_party import run_python

ROOT = Path(__file__).parents[2]
KINDS = sorted(kinds())


@pytest.mark.parametrize("name", ["my_cost", "my-cost", "litz-my-cost"])
def test_names(tmp_path, name):
    scaffold(tmp_path / "p", name)
    project = tomllib.loads((tmp_path / "p" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "litz-my-cost"
    assert project["entry-points"]["litz"] == {"my_cost": "litz_my_cost"}


@pytest.mark.parametrize("name", ["", "Mine", "2fast", "a b", "class", "../x", "a__b", "a_", "x" * 61])
def test_bad_names(tmp_path, name):
    with pytest.raises(ScaffoldError, match="cannot be a plugin's name"):
        scaffold(tmp_path / "p", name)


@pytest.mark.parametrize(
    ("name", "has_it"),
    [
        ("plugins", "litz-plugins is the plugin API"),
        ("testing", "litz-testing is what tests litz"),
        ("cache", "core has the command `litz cache`"),
        ("doctor", "litz-tools has the command `litz doctor`"),
        ("bench-kernels", "litz-tools has the command `litz bench-kernels`"),
        ("triton", "core has a plugin of that name"),
        ("autotune", "litz-autotune is a plugin of litz's own"),
        ("fusion", "core reads the variable LITZ_FUSION, which the plugin's options would share"),
        ("report", "litz-tools has the command `litz report`"),
        ("graph", "core reads the variable LITZ_GRAPH_CACHE, which the plugin's options would share"),
        ("woven", "a plugin of that name is installed, by litz-other 2.0"),
        ("my_pass", "a package litz_my_pass is installed"),  # by conftest.py
    ],
)
def test_names_that_are_taken(tmp_path, monkeypatch, name, has_it):
    point = SimpleNamespace(name="woven", dist=SimpleNamespace(name="litz-other", version="2.0"))
    monkeypatch.setattr(scaffolding, "installed_entry_points", lambda: [point])
    with pytest.raises(ScaffoldError, match=f"the name '{name.replace('-', '_')}' is taken: {has_it}"):
        scaffold(tmp_path / "p", name)


def test_a_kind_that_is_none(tmp_path):
    with pytest.raises(ScaffoldError, match="no kind 'graphpass' of plugins; did you mean 'graph-pass'") as caught:
        scaffold(tmp_path / "p", "my_cost", "graphpass")
    assert "cost-model, decomposition, gpu-template, graph-pass" in str(caught.value)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ScaffoldError, match="not empty"):
        scaffold(tmp_path, "my_cost")


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_has_all_that_a_dist_needs(kind):
    files = project_files(kind, "weaver")
    assert {"pyproject.toml", "README.md", ".github/workflows/tests.yml", ".gitignore"} <= files.keys()
    assert {"src/litz_weaver/__init__.py", "tests/test_weaver.py"} <= files.keys()
    old = re.compile(rf"my.?{kind.replace('-', '.?')}", re.IGNORECASE)
    for where, text in files.items():
        assert not old.search(where + text), where
        if where.endswith(".py"):
            compile(text, where, "exec")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert any(item.startswith("Programming Language") for item in project["classifiers"])
    assert f"litz-plugins>={litz_plugins.API_VERSION}" in project["dependencies"]
    own = {str(file.relative_to(PROJECTS / kind)) for file in own_files(PROJECTS / kind)}
    assert len(files) == len(own) + 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_needs_what_readme_installs_and_pytest(kind):
    """litz is on no package index, so `pip install -e .[test]` after README's own install must look for none of it."""
    files = [(file, tomllib.loads(file.read_text())) for file in ROOT.glob("*/pyproject.toml")]
    own = {data["project"]["name"]: file.parent.name for file, data in files if "project" in data}
    readme = re.search(r"^pip install (\./plugins \./core.*)$", (ROOT / "README.md").read_text(), re.M)
    assert readme is not None
    installed = {folder.removeprefix("./") for folder in readme[1].split()}
    project = tomllib.loads(project_files(kind, "weaver")["pyproject.toml"])["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = {re.split(r"[<>=!~ ]", need)[0] for need in needs}
    assert {own.get(name, name) for name in names} <= {*installed, "pytest", "torch"}


def test_the_workflow_installs_litz_from_its_repository():
    """Of the folders that a checkout has, before the project."""
    text = project_files("pass", "weaver")[".github/workflows/tests.yml"]
    folders = re.findall(r"\./litz/(\w+)", text)
    assert {"plugins", "core", "testing"} <= set(folders) and all((ROOT / each).is_dir() for each in folders)
    assert text.index("./litz/core") < text.index("pip install -e .[test]")


def test_every_file_is_shipped():
    """What setuptools puts into the dist litz-plugins: `package-data`, read as setuptools reads it."""
    data = tomllib.loads((ROOT / "plugins" / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    package = Path(litz_plugins.__file__).parent
    shipped = {file for pattern in data["litz_plugins"] for file in package.glob(pattern) if file.is_file()}
    wanted = {*own_files(PROJECTS), *own_files(package / "project_files")}
    assert wanted <= shipped


def test_the_examples_are_the_projects():
    for link in (ROOT / "examples" / "plugins", Path(__file__).parent / "projects"):
        assert link.resolve() == PROJECTS.resolve()


@pytest.mark.nightly
def test_each_kind_passes_its_tests(tmp_path):
    """All of them at once, as a user's plugins, under names of their own; not the conformance kit's trials again, which
    take long."""
    names = {kind: f"woven_{kind.replace('-', '_')}" for kind in KINDS}
    for kind, name in names.items():
        scaffold(tmp_path / kind, name, kind)
    tests = [str(tmp_path / kind / "tests") for kind in KINDS]
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "not conforms and not values_are_right",  # its own process: tests/plugins/projects runs that
        "--import-mode=importlib",
        f"--rootdir={tmp_path}",
        "-c",
        "/dev/null",
    )
    path = tuple(tmp_path / kind / "src" for kind in KINDS)
    environ = {"LITZ_GRAPH_CACHE": "0", "LITZ_CACHE_DIR": os.environ["LITZ_CACHE_DIR"]}  # with the examples' kernels
    done = run_python("-m", "pytest", *options, *tests, path=path, imported=True, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
