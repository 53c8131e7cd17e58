"""Runs mutants. In: `Mutant`s. Out: a `Result` of each: what its tests saw.

The tree is copied to a temporary folder (tracked files, and new ones that git does not ignore), and each mutant is
applied there and taken back, so the checkout is never touched. Before the first mutant all tests that are named run
without any: a test that fails anyway sees nothing.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .rows import ROOT, Mutant

LIMIT_SECONDS = 600
"""For the tests of one mutant. A mutant may make ranks wait for each other for ever, which its tests see so."""
IN_CI = "not gpu and not gpu2 and not thorough and not nightly"
"""What `make test` runs: a fault that only other tests see is not seen."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """What came of a mutant. blind: its tests that passed. note: why it was not run as it should, else empty."""

    mutant: Mutant
    blind: tuple[str, ...]
    seconds: float
    note: str = ""

    @property
    def killed(self) -> bool:
        return not self.blind and not self.note


@dataclass(frozen=True)
class Ran:
    """What pytest said. failed: the tests with a failed case, without their parameters."""

    status: int | None
    failed: frozenset[str]
    tail: str


@contextmanager
def copied_tree(root: Path = ROOT) -> Iterator[Path]:
    """A copy of the tree at `root` in a temporary folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    with tempfile.TemporaryDirectory(prefix="litz-mutants-") as place:
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, Path(place) / name)
        yield Path(place)


def run_tests(tree: Path, tests: Iterable[str], limit: float = LIMIT_SECONDS) -> Ran:
    """Runs tests in a tree, with the packages of that tree. status: pytest's, None where time was up."""
    packages = [str(path) for path in sorted(tree.glob("*/src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["-m", IN_CI, *dict.fromkeys(tests)]
    with tempfile.TemporaryFile("w+") as said:
        # In a session of its own, so that ranks and workers that never end can be ended with it.
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        status: int | None = None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said.seek(0)
        text = said.read()
    return Ran(status, frozenset(FAILED.findall(text)), "\n".join(text.splitlines()[-12:]))


def judge(mutant: Mutant, ran: Ran, seconds: float) -> Result:
    """Returns what a run of a mutant's tests says of it."""
    if ran.status is None:
        return Result(mutant, (), seconds)  # without end: seen
    if ran.status == 0:
        return Result(mutant, mutant.tests, seconds)
    if ran.status != 1 or any("::" not in name for name in ran.failed):
        return Result(mutant, (), seconds, f"pytest ended with {ran.status}:\n{ran.tail}")
    return Result(mutant, tuple(test for test in mutant.tests if test not in ran.failed), seconds)


class Broken(Exception):
    """Tests that mutants name fail without any."""


def run_mutants(mutants: Sequence[Mutant], jobs: int = 1, *, baseline: bool = True) -> Iterator[Result]:
    """Yields each mutant's result as it is there. jobs: copies of the tree, and mutants at a time. Errors: Broken."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    done: queue.SimpleQueue[Result] = queue.SimpleQueue()
    ended = threading.Event()

    def one(mutant: Mutant) -> None:
        if ended.is_set():
            return
        tree, begin = free.get(), time.monotonic()
        try:
            before = mutant.apply(tree)
            try:
                result = judge(mutant, run_tests(tree, mutant.tests), time.monotonic() - begin)
            finally:
                (tree / mutant.file).write_text(before, encoding="utf-8")
        except ValueError as error:
            result = Result(mutant, (), 0.0, str(error))
        finally:
            free.put(tree)
        done.put(result)

    with copied_tree() as first:
        if baseline:
            ran = run_tests(first, (test for mutant in mutants for test in mutant.tests), limit=3 * LIMIT_SECONDS)
            if ran.status != 0:
                raise Broken(f"tests fail without a mutant: {', '.join(sorted(ran.failed))}\n{ran.tail}")
        trees = [first, *(first.with_name(f"{first.name}-{number}") for number in range(1, jobs))]
        try:
            for tree in trees[1:]:
                shutil.copytree(first, tree)
            for tree in trees:
                free.put(tree)
            with ThreadPoolExecutor(jobs) as pool:
                try:
                    for mutant in mutants:
                        pool.submit(one, mutant)
                    for _ in mutants:
                        yield done.get()
                finally:
                    ended.set()
        finally:
            for tree in trees[1:]:
                shutil.rmtree(tree, ignore_errors=True)
