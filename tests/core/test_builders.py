"""What builds: programs that hang and their children, threads that do not start, libraries that end in the middle."""

from __future__ import annotations

import _thread
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import litz
import litz_tools
from litz.errors import CompilerNotFoundError
from litz.runtime import cpp_compiler
from litz.runtime.builders import Builders, run_program
from litz.runtime.cpp_compiler import compile_library, find_compiler
from litz.runtime.libraries import load_library, problem_of
from litz_plugins import threads

WAIT = 20.0


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def hanging(folder: Path) -> Path:
    """A program that hangs in a child, and notes the numbers of both."""
    return script(folder / "hangs", f"sleep 1000 &\necho $$ $! > {folder}/new\nmv {folder}/new {folder}/numbers\nwait")


def numbers(folder: Path) -> list[int]:
    until = time.monotonic() + WAIT
    while not (folder / "numbers").exists() and time.monotonic() < until:
        time.sleep(0.01)
    return [int(word) for word in (folder / "numbers").read_text().split()]


def assert_ended(processes: list[int]) -> None:
    """Nobody is left but who waits to be reaped."""
    until = time.monotonic() + WAIT
    while (left := [n for n in processes if not has_ended(n)]) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(processes) == 2 and not left


def has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_a_program_did(tmp_path: Path) -> None:
    done = run_program([str(script(tmp_path / "a", "printf 'gr\\374n'; echo bad >&2; cat; exit 3"))])
    assert (done.problem, done.output, done.errors) == ("ended with 3", "gr\ufffdn", "bad\n"), "it has nothing to read"
    assert run_program([str(script(tmp_path / "a", "kill -9 $$"))]).problem == "was ended by signal 9"
    assert run_program(["true"]).problem == ""
    assert run_program([str(tmp_path / "none")]).problem.startswith("cannot be started: ")


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    done = run_program([str(hanging(tmp_path))], 0.3)
    assert done.problem == "did not end in 0.3 s, and was ended"
    assert_ended(numbers(tmp_path))


def test_who_interrupts_ends_the_programs_and_waits_for_nothing(tmp_path: Path) -> None:
    program = str(hanging(tmp_path))
    with pytest.raises(KeyboardInterrupt), Builders(1) as builders:
        builders.submit(run_program, [program])
        found = numbers(tmp_path)
        started = time.monotonic()
        raise KeyboardInterrupt
    assert_ended(found)
    assert time.monotonic() - started < WAIT / 2


def test_an_error_ends_the_programs_and_waits_for_the_threads(tmp_path: Path) -> None:
    with pytest.raises(ValueError), Builders(1) as builders:
        first = builders.submit(run_program, [str(hanging(tmp_path))])
        second = builders.submit(run_program, ["true"])
        found = numbers(tmp_path)
        raise ValueError
    assert first.done() and first.result().problem == "was ended by signal 9" and second.cancelled()
    assert_ended(found)


def never(work: Callable[[], object]) -> None:
    return None


def dead(work: Callable[[], object]) -> threads.Alive:
    """As a thread that has no memory to begin."""
    return lambda: False


def no_memory_in(monkeypatch: pytest.MonkeyPatch, name: str, first: int) -> None:
    """The first so many threads that enter a method of Builders have no memory there, nor to say so."""
    method, calls = getattr(Builders, name), []

    def ends(self: Builders, *arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            calls.append(0)
            if len(calls) <= first:
                with self._changed:
                    if name == "_do_one" and self._waiting:
                        self._under_way[self._waiting.popleft()[0]] = arguments[0]
                _thread.exit()
        return method(self, *arguments)

    monkeypatch.setattr(Builders, name, ends)


@pytest.fixture(autouse=True)
def looked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks after threads that have ended ten times as often as usual."""
    monkeypatch.setattr(threads, "LOOK_SECONDS", threads.LOOK_SECONDS / 10)


@pytest.mark.parametrize("start", [threads.start, never, dead])
def test_work_is_done_whether_threads_start_or_not(start: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "start", start)
    done: list[int] = []
    with Builders(2) as builders:
        jobs = [builders.submit(lambda n=n: done.append(n) or n * n) for n in range(5)]
        last = builders.submit(done.append, 5)
        assert [builders.result(job) for job in jobs] == [0, 1, 4, 9, 16]
        wrong = builders.submit(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            builders.result(wrong)
        late = builders.submit(done.append, 6)
    assert last.done() and late.done() and sorted(done) == list(range(7)), "at the end nothing is under way"


@pytest.mark.parametrize("count", [1, 2])
def test_work_that_ended_with_its_thread_is_an_error(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    no_memory_in(monkeypatch, "_do_one", 1)
    with Builders(count) as builders:
        jobs = [builders.submit(int) for _ in range(3)]
        with pytest.raises(MemoryError, match="has ended"):
            builders.result(jobs[0])
        assert [builders.result(job) for job in jobs[1:]] == [0, 0]


def test_threads_that_end_while_they_wait_leave_the_work_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    no_memory_in(monkeypatch, "_next", 2)
    with Builders(2) as builders:
        jobs = [builders.submit(int) for _ in range(3)]
        assert [builders.result(job) for job in jobs] == [0, 0, 0]


@pytest.mark.parametrize("begins", [True, False])
def test_what_a_thread_without_memory_was_to_do_is_done_by_who_waits(
    begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        if begins:
            threading.Thread(target=ended, args=(function, arguments)).start()

    def ended(function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        with suppress(MemoryError):
            function(*arguments)

    def work() -> str:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError
        return "done"

    class NoMemory(list[Any]):
        def append(self, thing: object) -> None:
            if isinstance(thing, BaseException):
                raise MemoryError
            super().append(thing)

    monkeypatch.setattr(threads._thread, "start_new_thread", ends)
    monkeypatch.setattr(threads, "list", NoMemory, raising=False)
    started = time.monotonic()
    assert threads.within(100, work) == "done"
    assert time.monotonic() - started < WAIT


def test_a_compiler_whose_version_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_compiler, "VERSION_SECONDS", 0.3)
    name, seconds = str(hanging(tmp_path)), []
    for _ in range(2):
        start = time.monotonic()
        with pytest.raises(CompilerNotFoundError, match=r"hangs \(whose --version did not end in 0.3 s"):
            find_compiler(name)
        seconds.append(time.monotonic() - start)
    assert_ended(numbers(tmp_path))
    assert seconds[1] < 0.2


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "three.cpp").write_text(
        '#include <cmath>\nextern "C" double three(double x) { return std::cbrt(x) + 3; }'
    )
    line = ["g++", "-shared", "-fPIC", str(folder / "three.cpp"), "-o", str(folder / "three.so")]
    assert compile_library(line, folder / "three.so") == ""
    return folder / "three.so"


@pytest.mark.parametrize("share", [0, 0.0005, 0.004, 0.01, 0.3, 0.5, 0.9, 0.99999, 1])
def test_a_library_that_ends_in_the_middle_is_not_loaded(library: Path, share: float, tmp_path: Path) -> None:
    whole = library.read_bytes()
    (tmp_path / "part.so").write_bytes(whole[: int(len(whole) * share)])
    if share == 1:
        assert load_library(tmp_path / "part.so").three is not None
        return
    with pytest.raises(OSError, match=r"the file (has \d+ of \d+ bytes|is empty|ends in its header)"):
        load_library(tmp_path / "part.so")


def test_the_libraries_of_this_machine_are_whole() -> None:
    import torch

    files = [path for path in (Path(torch.__file__).parent / "lib").glob("*.so*") if path.is_file()]
    assert len(files) > 3 and {path: problem for path in files if (problem := problem_of(path))} == {}


def test_a_name_that_the_loader_would_change(library: Path, tmp_path: Path) -> None:
    for token in ("$ORIGIN", "${LIB}"):
        (tmp_path / token).mkdir()
        (tmp_path / token / "three.so").write_bytes(library.read_bytes())
        with pytest.raises(OSError, match="the loader of libraries replaces"):
            load_library(tmp_path / token / "three.so")
    (tmp_path / "$cost").mkdir()
    (tmp_path / "$cost" / "three.so").write_bytes(library.read_bytes())
    assert load_library(tmp_path / "$cost" / "three.so").three is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit 0", "left no whole library: No such file"),
        ("for last; do :; done; : > library.so; exit 0", "left no whole library: the file is empty"),
        ('g++ "$@" && head -c 5000 library.so > x && mv x library.so', r"no whole library: the file has 5000 of"),
        ("exit 7", "the compiler ended with 7"),
        ("kill -9 $$", "the compiler was ended by signal 9"),
        ("echo no room >&2; exit 1", "^no room"),
    ],
)
def test_what_a_compiler_leaves(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.cpp").write_text("int k;")
    compiler = script(tmp_path / "compiler", text)
    problem = compile_library([str(compiler), "-shared", "-fPIC", "k.cpp", "-o", "library.so"], Path("library.so"))
    assert re.search(said, problem), problem


def test_subprocess_is_used_where_a_limit_is_set() -> None:
    """Whatever the packages start has a limit or somebody who ends it: `run_program`, a worker, a measuring process."""
    known = {"builders.py", "workers.py", "sides.py", "run.py"}
    files = [path for module in (litz, litz_tools) for path in Path(module.__file__ or "").parent.rglob("*.py")]
    assert {path.name for path in files if "import subprocess" in path.read_text()} == known
