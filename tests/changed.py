"""Which test files reach what changed: `python -m tests.changed [SINCE]` prints them, those nearest to a change first.

In: the files that differ from SINCE (`main` by default), as git has them, with those that git does not know yet. Out:
test files whose imports lead to a changed module, however many imports that takes; `--within N` gives those at most N
imports away. Imports of the dists, of `tests/support` and of what tests use beside them are grimp's; those of a test
file are read from its text. So are modules that are named in strings: what is loaded by name, programs that tests
start, names that they patch. A test that reads a whole tree of files, or imports nothing, always runs: last.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
BESIDE = ("website", "release", "benchmarks")
"""Packages of the checkout that are no dists, and that tests import."""
OF_TESTS = ("support", "mutants", "stress")
PROGRAMS = (*BESIDE, *OF_TESTS, "litz_testing")
"""Packages that start programs, and have them in strings."""
ALL = ("constraints.txt", "tests/conftest.py", "tests/support/__init__.py")
"""Every test reaches these."""
LOADERS = ("litz.backend", "litz.cli.main")
"""What loads plugins, by the entry points of their dists."""
NAMED = re.compile(r"[A-Za-z_][\w.]*")
BACKEND = re.compile(r"""["']litz["']""")
"""`torch.compile(backend="litz")`, in a program that a string has."""
SIBLINGS = re.compile(r"import_module\(f|iter_modules|with_name\(f")
"""What loads or reads the files of its own folder, by names that are no strings."""
READS_TREES = re.compile(r"\brglob\(|ls-files|tracked_")


def changed_files(since: str) -> list[str]:
    """Paths, from the root: what differs from where this branch left SINCE, in the working tree."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    (base,) = git("merge-base", since, "HEAD")
    return sorted({*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")})


def package_folders() -> dict[str, Path]:
    """Each package by name, with its folder."""
    dists = [path.parent for path in ROOT.glob("*/pyproject.toml")]
    packages = [init.parent for dist in dists for init in (dist / "src").glob("*/__init__.py")]
    own = [ROOT / name for name in BESIDE] + [ROOT / "tests" / name for name in OF_TESTS]
    return {folder.name: folder for folder in packages + own}


def plugin_modules() -> set[str]:
    """The modules that entry points of the dists name, for litz and for torch."""
    groups = [
        points
        for path in ROOT.glob("*/pyproject.toml")
        for points in tomllib.loads(path.read_text(encoding="utf-8"))["project"].get("entry-points", {}).values()
    ]
    return {value.partition(":")[0] for points in groups for value in points.values()}


@dataclass(frozen=True)
class Source:
    """What a file says of others. froms: (module, name) of each `from module import name`. strings: but for prose."""

    imports: tuple[str, ...]
    froms: tuple[tuple[str, str], ...]
    strings: tuple[str, ...]
    text: str

    @staticmethod
    def read(path: Path) -> Source:
        """Returns what the file says; nothing for one that is not there: a folder without a module of its own."""
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        imports, froms, strings, prose = [], [], [], set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr):  # before what is in it
                prose.add(id(node.value))
            elif isinstance(node, ast.Import):
                imports += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                froms += [(node.module, alias.name) for alias in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                strings.append(node.value)
        return Source(tuple(imports), tuple(froms), tuple(strings), text)


class Reach:
    """Who imports whom, of packages and test files.

    folders: the packages, by name. tests: the test files. Both are made of the checkout unless given.
    """

    def __init__(self, folders: Mapping[str, Path] | None = None, tests: Iterable[Path] | None = None) -> None:
        self.folders = package_folders() if folders is None else folders
        for folder in self.folders.values():
            if str(folder.parent) not in sys.path:
                sys.path.append(str(folder.parent))
        first, *others = self.folders
        self.graph = grimp.build_graph(first, *others, cache_dir=None)
        self.modules = set(self.graph.modules)
        self.programs = {f"{name.rpartition('.')[2]}.py": name for name in self.modules if self._of(name, OF_TESTS)}
        plugins = plugin_modules() & self.modules
        for loader in self.modules & set(LOADERS):
            self._imports(loader, plugins)
        self.sources = {module: Source.read(self.file_of(module)) for module in self.modules}
        for module, source in self.sources.items():
            self._imports(module, self.named(source, programs=self._of(module, PROGRAMS)))
            if SIBLINGS.search(source.text):
                room = module if self.path_of(module).is_dir() else module.rpartition(".")[0]
                self._imports(module, self.graph.find_children(room))
        found = sorted((ROOT / "tests").rglob("test_*.py")) if tests is None else tests
        self.read = cache(Source.read)
        self.tests = {path: {each: self.read(each) for each in self._with_helpers(path)} for path in found}
        """Each test file with the files beside it that it imports, and the conftest.py of its folder."""
        named = cache(self.named)
        self.imports = {path: set().union(*map(named, own.values())) for path, own in self.tests.items()}

    def _imports(self, importer: str, imported: Iterable[str]) -> None:
        for name in set(imported) - {importer}:
            self.graph.add_import(importer=importer, imported=name)

    def _with_helpers(self, path: Path) -> set[Path]:
        edge, seen = [path, *path.parent.glob("conftest.py")], set()
        while edge:
            file = edge.pop()
            seen.add(file)
            beside = {
                (ROOT / "tests" / module.replace(".", "/")).with_suffix(".py") for module, _ in self.read(file).froms
            }
            edge += [helper for helper in beside - seen if helper.exists()]
        return seen

    def named(self, source: Source, programs: bool = True) -> frozenset[str]:
        """The modules that a file imports, or names in a string. programs: in the midst of one, too: of a program."""
        found = {self._known(name) for name in (*source.imports, *map(".".join, source.froms))}
        for string in source.strings:
            names = NAMED.findall(string) if programs else [string.partition(":")[0]]
            named = {self.programs.get(name) or self._known(name) for name in names if "." in name}
            found |= named - set(self.folders)  # a package is what "litz.no_such_name" leaves
            if programs and (string == "litz" or BACKEND.search(string)):
                found.add("litz.backend")
        return frozenset(found & self.modules)

    def _known(self, name: str) -> str:
        """The longest start of a dotted name that is a module; '' if none is."""
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return name

    @staticmethod
    def _find(pattern: re.Pattern[str], own: Mapping[Path, Source]) -> bool:
        return any(pattern.search(source.text) for source in own.values())

    @staticmethod
    def _of(module: str, packages: Iterable[str]) -> bool:
        return module.partition(".")[0] in packages

    def path_of(self, module: str) -> Path:
        """Of a package its folder; of another module its file's path without `.py`."""
        package, *rest = module.split(".")
        return self.folders[package].joinpath(*rest)

    def file_of(self, module: str) -> Path:
        """The module's file, which a folder may lack."""
        path = self.path_of(module)
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def module_of(self, file: str) -> str:
        """The module that a file is, or whose data it is; '' for a file of no package."""
        path = ROOT / file
        for package, folder in self.folders.items():
            if path.is_relative_to(folder):
                parts = path.relative_to(folder).with_suffix("").parts
                return self._known(".".join((package, *parts)))
        return ""

    def distances(self, files: Collection[str]) -> dict[Path, int]:
        """How many imports lead from each test file to the nearest change; those that none leads to are left out."""
        if set(files) & set(ALL):
            return dict.fromkeys(self.tests, 0)
        changed = {ROOT / file for file in files}
        far = {path: 0 for path, own in self.tests.items() if own.keys() & changed}
        steps: dict[str, int] = {}
        for file in files:
            if module := self.module_of(file):  # modules of a package run its `__init__`, and read its data
                steps.update(dict.fromkeys((module, *self.graph.find_descendants(module)), 0))
            elif not file.startswith("tests/"):  # a page, an example: read by whatever names it
                quoted = re.compile(rf"""["']({re.escape(file.split("/")[0])}|{re.escape(Path(file).name)})["'/]""")
                far.update({path: 0 for path, own in self.tests.items() if self._find(quoted, own)})
                beside = [name for name in self.modules if self._of(name, (*OF_TESTS, *BESIDE))]
                steps.update({name: 0 for name in beside if quoted.search(self.sources[name].text)})
        edge = set(steps)
        while edge:
            importers = {
                importer for module in edge for importer in self.graph.find_modules_that_directly_import(module)
            }
            edge = importers - steps.keys()
            steps.update(dict.fromkeys(edge, max(steps.values()) + 1))
        for path, imported in self.imports.items():
            if reached := [steps[module] + 1 for module in imported if module in steps]:
                far.setdefault(path, min(reached))
        last = max(far.values(), default=0)
        for path, own in self.tests.items():
            if files and (not self.imports[path] or self._find(READS_TREES, own)):
                far.setdefault(path, last)
        return far


def nearest_first(far: Mapping[Path, int], within: int | None) -> Iterator[str]:
    """The paths from the root, by distance, then by name."""
    for path, distance in sorted(far.items(), key=lambda item: (item[1], item[0])):
        if within is None or distance <= within:
            yield str(path.relative_to(ROOT))


def main() -> None:
    """Prints the files, and how many there are on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__)
    parser.add_argument("since", nargs="?", default="main", help="a branch or commit (default: main)")
    parser.add_argument("--within", type=int, metavar="N", help="only files at most N imports from a change")
    arguments = parser.parse_args()
    files = changed_files(arguments.since)
    reach = Reach()
    chosen = list(nearest_first(reach.distances(files), arguments.within))
    print(f"{len(files)} files changed; {len(chosen)} of {len(reach.tests)} test files reach them", file=sys.stderr)
    print("\n".join(chosen))


if __name__ == "__main__":
    main()
