"""`python -m litz_testing.compilers`: litz with every C++ compiler of this machine, for every processor that it can be.

In: a checkout of litz, whose tests of the C++ generator are run. Out: a table with a row for each pair of compiler and
processor; exit status 1 if some row failed. Each pair is a few processes with LITZ_CXX and LITZ_CPP_MARCH set: the
verdict on the compiler (`litz.targets.cpp.qualify`), the tests, and a slice of the fuzzer.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from litz.runtime.cpp_compiler import find_compiler
from litz.targets.cpp.build import cpu_flags

TESTS = ("test_cpp_loops.py", "test_cpp_gathers.py", "test_cpp_masked.py", "test_cpp_ops.py", "test_cpp_segments.py")
"""The files of tests/core/codegen that build kernels and compare their results."""

PROCESSORS = {
    "x86-64-v2": ("ssse3", "sse4_2", "popcnt"),
    "x86-64-v3": ("avx2", "bmi2", "f16c", "fma", "movbe"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
"""-march= of x86-64 psABI's levels, and the flags of /proc/cpuinfo that a processor of each has."""

_NAME = re.compile(r"(g|clang)\+\+(-\d+)?")


@dataclass(frozen=True)
class Row:
    """The result of a pair. tests, programs: how many ran. wrong: constructs that the compiler gets wrong. problem:
    what failed, '' if nothing did."""

    compiler: str
    march: str
    tests: int
    programs: int
    wrong: str
    problem: str
    seconds: float


def compilers() -> list[str]:
    """Returns the path of every g++ and clang++ on the path, one for each version."""
    found: dict[str, str] = {}
    for folder in map(Path, os.get_exec_path()):
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        for name in filter(_NAME.fullmatch, names):
            found.setdefault(_version(str(folder / name)), str(folder / name))
    return list(found.values())


def _version(compiler: str) -> str:
    """Returns what the table calls a compiler, such as "g++ 12.2.0"."""
    found = find_compiler(compiler)
    number = re.findall(r"\d+\.\d+\.\d+", found.version)
    return f"{'clang' if found.clang else 'g++'} {number[-1] if number else found.version}"


def processors() -> list[str]:
    """Returns the levels of instruction sets that this processor has, and the processor itself."""
    has = set(cpu_flags().split())
    return [*(level for level, flags in PROCESSORS.items() if has.issuperset(flags)), "native"]


def check(compiler: str, march: str, programs: int, tests: Path) -> Row:
    """Runs the tests and the fuzzer with one compiler and one instruction set, and returns the table's row."""
    start, problems = time.time(), []
    with tempfile.TemporaryDirectory(prefix="litz-compilers-") as folder:
        settings = (
            f"LITZ_CXX={compiler}",
            f"LITZ_CPP_MARCH={march}",
            f"LITZ_CACHE_DIR={folder}/cache",
            f"TMPDIR={folder}",
        )

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            line = ["env", *settings, sys.executable, *arguments]
            return subprocess.run(line, capture_output=True, text=True, encoding="utf-8", check=False)

        doctor = run("-c", _QUALIFY)
        wrong = ", ".join(json.loads(doctor.stdout)) if doctor.returncode == 0 else ""
        if doctor.returncode:
            problems.append(_last_line(doctor.stderr))
        files = [str(tests / "core" / "codegen" / name) for name in TESTS]
        tested = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no", *files)
        counted = re.findall(r"(\d+) (passed|failed)", tested.stdout)
        if tested.returncode:
            problems += re.findall(r"^(?:FAILED|ERROR) .*?::(\S+)", tested.stdout, re.M) or [_last_line(tested.stderr)]
        done = 0
        if programs:
            record = Path(folder) / "record.json"
            numbers = ("--programs", str(programs), "--level", "3", "--json", str(record))
            fuzzed = run("-m", "litz_testing.fuzz", "--seed", "compilers", *numbers)
            known: dict[str, Any] = {"programs": 0, "failures": []}
            if record.exists():
                known = json.loads(record.read_text(encoding="utf-8"))
            done = known["programs"]
            problems += [failure["label"] for failure in known["failures"]]
            if fuzzed.returncode and not known["failures"]:
                problems.append(_last_line(fuzzed.stderr))
    count = sum(int(number) for number, _ in counted)
    return Row(_version(compiler), march, count, done, wrong, "; ".join(problems), time.time() - start)


_QUALIFY = """\
import json
from litz.options import make_options
from litz.targets.cpp.qualify import qualify
from litz.cache.disk import Cache
options = make_options()
print(json.dumps(list(qualify(options, Cache(options.cache_dir)).safe_forms)))
"""


def _last_line(text: str) -> str:
    return next(iter(reversed(text.strip().splitlines())), "it said nothing")


@click.command()
@click.option("--compiler", "wanted", multiple=True, help="a compiler; by default every g++ and clang++ on the path")
@click.option(
    "--march", "marches", multiple=True, help="a processor; by default each level that this one has, and itself"
)
@click.option("--programs", default=200, show_default=True, help="of the fuzzer, for each pair; built with -O3")
@click.option(
    "--tests", default="tests", show_default=True, type=click.Path(path_type=Path), help="the checkout's tests"
)
def main(wanted: Sequence[str], marches: Sequence[str], programs: int, tests: Path) -> None:
    """Test litz with every C++ compiler found, for every processor that this machine can be."""
    click.echo("| compiler | processor | tests | programs | constructs wrong | result |\n|---|---|---|---|---|---|")
    rows = []
    for compiler in wanted or compilers():
        for march in marches or processors():
            row = check(compiler, march, programs, tests)
            rows.append(row)
            result = f"failed: {row.problem}" if row.problem else "right"
            cells = (row.compiler, row.march, row.tests, row.programs, row.wrong or "none", result)
            click.echo(f"| {' | '.join(map(str, cells))} |")
            click.echo(f"{row.compiler}, {row.march}: {row.seconds:.0f} s", err=True)
    sys.exit(1 if not rows or any(row.problem for row in rows) else 0)


if __name__ == "__main__":
    main()
