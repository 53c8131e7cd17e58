"""The lists of mutants. In: the `.toml` files of this folder. Out: `Mutant`s, and what is wrong with a row.

    [[mutant]]
    name = "world-size-one-more"
    file = "plugins_collectives/src/litz_collectives/traffic.py"
    old = "world_size = len(operation.ranks)"        # stands in the file exactly once
    new = "world_size = len(operation.ranks) + 1"
    tests = ["tests/seeds/test_snode_runtime.py::TestCommAnalysis::test_all_reduce"]
    why = "the estimate must know how many ranks take part"

Each of `tests` must fail under the mutant. A test with parameters is named without them, and fails if one case does.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True)
class Mutant:
    """One fault: `old` becomes `new` in `file`; each of `tests` must fail then. topic: the name of the list."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str
    topic: str

    def apply(self, root: Path) -> str:
        """Writes the fault into the tree at `root`; returns the file's text from before."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: `old` stands {text.count(self.old)} times in {self.file}, not once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return text


def read_mutants(folder: Path = HERE) -> list[Mutant]:
    """Returns the mutants of all lists, by the names of the lists."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            found.append(Mutant(**{**row, "tests": tuple(row["tests"])}, topic=path.stem))
    return found


def faults_of(mutant: Mutant, root: Path = ROOT) -> list[str]:
    """Returns what keeps a row from being run: a text that is not there once, a test that is gone."""
    path, found = root / mutant.file, []
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(mutant.old) != 1:
        found.append(f"`old` stands {text.count(mutant.old)} times in {mutant.file}, not once")
    elif mutant.old == mutant.new:
        found.append("`new` is `old`")
    elif path.suffix == ".py":
        try:
            ast.parse(text.replace(mutant.old, mutant.new))
        except SyntaxError as error:
            found.append(f"{mutant.file} would not be Python any more: {error}")
    if not mutant.tests or not mutant.why:
        found.append("a mutant needs tests and a reason")
    return found + [f"there is no test {test}" for test in mutant.tests if not _exists(test, root)]


def _exists(test: str, root: Path) -> bool:
    """Whether a file defines the test `path::[Class::]function`."""
    name, *parts = test.split("::")
    path = root / name
    if not path.is_file() or not parts:
        return False
    scope: ast.AST | None = ast.parse(path.read_text(encoding="utf-8"))
    for part in parts:
        inner = getattr(scope, "body", ())
        scope = next((one for one in inner if getattr(one, "name", None) == part), None)
    return scope is not None
