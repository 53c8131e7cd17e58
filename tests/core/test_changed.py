"""`make test-changed` finds the tests that a change reaches, by imports, names in strings and files that are read."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("grimp")  # import-linter's, which the GPU machine has not

import changed
from changed import ROOT, Reach, changed_files, nearest_first

PACKAGE = {
    "toy/__init__.py": "",
    "toy/base.py": "",
    "toy/middle.py": "def f():\n    from toy.base import x\n",
    "toy/top.py": "from toy import middle\n",
    "toy/registry.py": 'import importlib\nfor name in "ab":\n    importlib.import_module(f"{__package__}.{name}")\n',
    "toy/named.py": 'import importlib\nimportlib.import_module("toy.base")\n',
    "toy/prose.py": '"""toy.base"""\n',
    "toy/data.json": "{}",
}
TESTS = {
    "test_base.py": "from toy.base import x\n",
    "test_top.py": "import toy.top\n",
    "test_registry.py": "def test():\n    from toy import registry\n",
    "test_named.py": "import toy.named\n",
    "test_prose.py": "import toy.prose\n",
    "test_program.py": 'run("-c", "import sys, toy.top")\n',
    "test_page.py": 'import re\nimport toy.prose\n(ROOT / "pages" / "a.md").read_text()\n',
    "test_tree.py": 'import toy.prose\nROOT.rglob("*.py")\n',
}


@pytest.fixture
def reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reach:
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for folder, files in (("", PACKAGE), ("tests", TESTS)):
        for name, text in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return Reach({"toy": tmp_path / "toy"}, [tmp_path / "tests" / name for name in TESTS])


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["toy/base.py"], ["test_base.py 1", "test_named.py 2", "test_program.py 3", "test_top.py 3"]),
        (["toy/top.py"], ["test_program.py 1", "test_top.py 1"]),
        (["toy/prose.py"], ["test_page.py 1", "test_prose.py 1"]),
        (["toy/named.py", "toy/top.py"], ["test_named.py 1", "test_program.py 1", "test_top.py 1"]),
        (["pages/a.md"], ["test_page.py 0"]),
        (["tests/test_top.py"], ["test_top.py 0"]),
        (["constraints.txt"], [f"{name} 0" for name in sorted(TESTS)]),
        ([], []),
    ],
)
def test_what_a_change_reaches(reach: Reach, files: Sequence[str], found: Sequence[str]) -> None:
    far = {path.name: distance for path, distance in reach.distances(files).items()}
    assert ("test_tree.py" in far) == bool(files), "what reads all files always runs"
    assert ("test_registry.py" in far) == any(not file.startswith(("pages", "tests")) for file in files)
    if files != ["constraints.txt"]:
        far = {name: distance for name, distance in far.items() if name not in ("test_tree.py", "test_registry.py")}
    assert sorted(f"{name} {distance}" for name, distance in far.items()) == list(found)


def test_a_package_runs_before_its_modules(reach: Reach) -> None:
    assert len(reach.distances(["toy/__init__.py"])) == len(TESTS)


def test_data_counts_as_its_package(reach: Reach) -> None:
    assert reach.module_of("toy/data.json") == "toy" and reach.module_of("pages/a.md") == ""


def test_the_nearest_come_first() -> None:
    far = {ROOT / "tests/b.py": 1, ROOT / "tests/a.py": 2, ROOT / "tests/c.py": 1}
    assert list(nearest_first(far, None)) == ["tests/b.py", "tests/c.py", "tests/a.py"]
    assert list(nearest_first(far, 1)) == ["tests/b.py", "tests/c.py"]


def test_the_working_tree_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed on the branch, what is not yet, and what git does not know; not what main did meanwhile."""

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text("")
        git("add", ".")
        git("commit", "-m", name)

    git("init", "-b", "main")
    commit("old.py")
    git("checkout", "-b", "mine")
    commit("committed.py")
    git("checkout", "main")
    commit("meanwhile.py")
    git("checkout", "mine")
    (tmp_path / "old.py").write_text("x")
    (tmp_path / "unknown.py").write_text("")
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    assert changed_files("main") == ["committed.py", "old.py", "unknown.py"]


@pytest.mark.nightly
def test_what_is_loaded_by_name_is_reached() -> None:
    """Of the checkout: lowerings, builders, texts that a key is made of."""
    reach = Reach()
    for name in (
        "lower/indexing",
        "targets/cpp/build",
        "targets/triton/float8",
        "schedule/split",
        "ir/ops",
        "report/changes",
    ):
        assert len(reach.distances([f"core/src/litz/{name}.py"])) > 100, name
    assert ROOT / "tests/core/lowering/test_indexing.py" in reach.distances(["core/src/litz/lower/indexing.py"])
    assert len(reach.distances(["core/src/litz/cli/main.py"])) < 100
