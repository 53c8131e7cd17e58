"""Whole compiles where something of the machine is at fault: each goes on and is right, or ends in one message."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest

import litz
from support.warm import run_warm

LITZ = Path(litz.__file__).parent

PROGRAM = """
import os, sys, warnings
import torch
sys.path.insert(0, os.environ["TESTS"])
exec(os.environ.get("BEFORE", ""))

def first(x):
    return (x * 2).amax(-1) + 1  # Umlaute in einer Zeile: äöü, x²

def second(x):
    return x.relu() + 1

x = torch.rand(30, 40)
for function in (first, second):
    result = torch.compile(function, backend="litz")(x)
    torch.testing.assert_close(result, function(x))
    print("right")
"""


def run(
    folder: Path, before: str = "", timeout: float = 60, *, imported: bool = True, **variables: object
) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own. before: code that it runs first. imported: may it begin with litz?"""
    environ = {
        **os.environ,
        "TESTS": str(Path(__file__).parents[1]),
        "LITZ_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "traces"),
        "LITZ_CPP_QUALIFY": "0",
        "LITZ_GRAPH_CACHE": "1",
        "BEFORE": before,
    }
    environ |= {name: str(value) for name, value in variables.items()}
    return run_warm(["-c", PROGRAM], environ, timeout, imported=imported)


def warned(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.partition("Warning: ")[2] for line in done.stderr.splitlines() if "Warning: litz" in line]


def assert_right(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Both graphs are right, and there is one warning with these words, or none."""
    assert done.returncode == 0 and done.stdout.split() == ["right", "right"], done.stderr[-3000:]
    found = warned(done)
    assert len(found) == bool(words), found
    assert all(word in found[0] for word in words), found
    assert "Traceback" not in done.stderr


def message_of(done: subprocess.CompletedProcess[str]) -> str:
    """The error in which a program ended: litz's own, with what to do, and no bug of litz's."""
    assert done.returncode == 1
    message = done.stderr[done.stderr.rindex("\nlitz.errors.") if "\nlitz.errors." in done.stderr else 0 :]
    message = message[message.index("raised:") :] if "raised:" in message else message
    assert "to do: " in message and "bug in litz" not in message, done.stderr[-3000:]
    return message


def compiler(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


ANSWER = 'case "$*" in *--version*) exec g++ --version;; esac\n'


def test_a_cache_that_is_emptied_while_another_process_compiles(tmp_path: Path) -> None:
    cxx = compiler(
        tmp_path / "cxx", f'{ANSWER}rm -rf {tmp_path}/cache\ng++ "$@"; status=$?\nrm -rf {tmp_path}/cache\nexit $status'
    )
    assert_right(run(tmp_path, LITZ_CXX=cxx))
    assert list((tmp_path / "cache").glob("cpp/*/kernel.so"))


def test_an_unwritable_cache_is_said_once_and_not_once_a_graph(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(0o555)
    before = "from support.plain_user import become_plain; become_plain(); warnings.simplefilter('always')"
    done = run(tmp_path, before)
    assert_right(done, "goes on without its disk cache", "Permission denied", "LITZ_CACHE_DIR=/path")


@pytest.mark.ci_cases("127", "146")
@pytest.mark.parametrize("mask", [0o177, 0o222, 0o777])
def test_a_mask_that_takes_rights_from_the_owner(tmp_path: Path, mask: int) -> None:
    before = f"from support.plain_user import become_plain; become_plain(); os.umask({mask})"
    before += "; import torch._functorch.config as config; config.enable_autograd_cache = False"
    kernels = []
    for _ in range(2):
        assert_right(run(tmp_path, before))
        kernels.append({path: path.stat().st_mtime for path in (tmp_path / "cache").glob("cpp/*/kernel.so")})
    assert len(kernels[0]) >= 2 and kernels[0] == kernels[1], "what was kept can be read"


def test_no_folder_that_can_be_written(tmp_path: Path) -> None:
    before = (
        "import tempfile; tempfile.tempdir = None; from support.plain_user import become_plain; become_plain(); "
        "os.chdir('/proc/self'); "
        "tempfile._candidate_tempdir_list = lambda: ['/proc/self']"
    )
    done = run(tmp_path, before, LITZ_CACHE_DIR="/proc/self/cache", TMPDIR="/proc/self")
    message = message_of(done)
    assert "no temporary folder can be made" in message and "set TMPDIR to a folder that can be written" in message


@pytest.mark.ci_cases("zero", "unwritable")
@pytest.mark.parametrize("fault", ["zero", "pipe", "unwritable"])
def test_torchs_cache_of_traces(tmp_path: Path, fault: str) -> None:
    """torch reads whatever lies there, and nothing stops it."""
    if fault == "unwritable":
        (tmp_path / "traces").mkdir(0o555)
        before = "from support.plain_user import become_plain; become_plain(); warnings.simplefilter('always')"
        assert_right(run(tmp_path, before), "traces", "cannot be written", "TORCHINDUCTOR_CACHE_DIR=/path")
        return
    assert_right(run(tmp_path))
    entries = [path for path in (tmp_path / "traces" / "aotautograd").glob("*/*") if path.is_file()]
    assert len(entries) == 2
    for path in entries:
        path.unlink()
        path.symlink_to("/dev/zero") if fault == "zero" else os.mkfifo(path)
    assert_right(run(tmp_path, timeout=40), "traces", "Remove the folder", "TORCHINDUCTOR_CACHE_DIR=/path")


@pytest.mark.parametrize("what", ["a kernel", "its version"])
def test_ctrl_c_ends_a_compile_whose_compiler_hangs(tmp_path: Path, what: str) -> None:
    hangs = f"echo $$ >> {tmp_path}/numbers\nkill -INT $PPID\nsleep 1000"
    cxx = compiler(tmp_path / "cxx", (ANSWER if what == "a kernel" else "") + hangs)
    done = run(tmp_path, timeout=40, LITZ_CXX=cxx)
    assert done.returncode == 1 and "KeyboardInterrupt" in done.stderr
    for number in (tmp_path / "numbers").read_text().split():
        assert not Path(f"/proc/{number}").exists()


def test_a_compiler_that_leaves_half_a_library(tmp_path: Path) -> None:
    half = (
        'g++ "$@" || exit 1\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done\n'
        'size=$(stat -c %s "$out"); truncate -s $((size / 2)) "$out"'
    )
    message = message_of(run(tmp_path, LITZ_CXX=compiler(tmp_path / "cxx", ANSWER + half)))
    assert "left no whole library: the file has" in message


MEMORY = """
import resource
torch.compile(lambda x: (x * 2).amax(-1) + 1, backend="litz")(torch.rand(30, 40))
torch._dynamo.reset()
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + (int(os.environ["MORE"]) << 20),) * 2)
"""


@pytest.mark.ci_cases("1")
@pytest.mark.parametrize("more", [0, 1])
def test_a_process_whose_threads_have_no_memory_to_start(tmp_path: Path, more: int) -> None:
    """Right or out of memory: without an end, before."""
    done = run(tmp_path, MEMORY, timeout=60, MORE=more)
    assert done.returncode == 0 or "MemoryError" in done.stderr or "memory" in done.stderr


@pytest.mark.parametrize("where", ["TMPDIR", "LITZ_CACHE_DIR"])
def test_a_folder_whose_name_the_loader_reads_otherwise(tmp_path: Path, where: str) -> None:
    odd = tmp_path / "$ORIGIN" / "$LIB"
    odd.mkdir(parents=True)
    more = {} if where == "LITZ_CACHE_DIR" else {"LITZ_CACHE": "0"}
    words = ("replaces $ORIGIN", "LITZ_CACHE_DIR=/path") if where == "LITZ_CACHE_DIR" else ()
    before = "import tempfile; tempfile.tempdir = None"  # the copied process has looked for the folder before
    assert_right(run(tmp_path, before, **{where: odd, **more}), *words)


def test_a_home_that_is_nobodys(tmp_path: Path) -> None:
    message = message_of(run(tmp_path, LITZ_CACHE_DIR="~no_such_user/cache"))
    assert "'cache_dir' cannot be '~no_such_user/cache'" in message and "is no user's of this machine" in message
    assert_right(run(tmp_path, LITZ_CACHE_SHARED="~no_such_user/cache"))


IN_AN_ARCHIVE = """
import litz
from litz.cache.disk import Cache
from litz.runtime import host_memory
from litz.targets.cpp.qualify.verdict import _sources

assert ".zip" in litz.__file__
assert _sources() and host_memory.build(None, Cache(os.environ["LITZ_CACHE_DIR"])).is_file()
litz.register()
"""


@pytest.mark.nightly
def test_litz_in_an_archive(tmp_path: Path) -> None:
    """Python imports from zips. Another archive is another litz: its graphs are its own."""
    for name in ("one", "two"):
        archive = tmp_path / f"{name}.zip"
        with zipfile.ZipFile(archive, "w") as made:
            made.writestr("litz/note", name)
            for file in sorted(LITZ.rglob("*")):
                if file.is_file() and file.suffix != ".pyc":
                    made.write(file, file.relative_to(LITZ.parent))
                compiled = Path(cache_from_source(file)) if file.suffix == ".py" else None
                if compiled is not None and compiled.is_file():  # Python compiles the others at each import
                    made.write(compiled, file.with_suffix(".pyc").relative_to(LITZ.parent))
        assert_right(run(tmp_path, f"sys.path.insert(0, {str(archive)!r})\n{IN_AN_ARCHIVE}", imported=False))
    graphs = [folder for folder in (tmp_path / "cache" / "graph").iterdir() if not folder.name.startswith(".")]
    assert len(graphs) == 4


@pytest.mark.nightly
def test_texts_do_not_depend_on_the_locale(tmp_path: Path) -> None:
    """An interpreter that takes files for ASCII compiles a program that is not."""
    names = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LITZ_CACHE_DIR": str(tmp_path / "cache")}
    environ = {
        **os.environ,
        **names,
        "LITZ_CPP_QUALIFY": "0",
        "TESTS": "",
        "LITZ_REPORT_DIR": str(tmp_path / "reports"),
    }
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, env=environ)
    assert done.stdout.split() == ["right", "right"], done.stderr[-2000:]


def test_every_file_is_opened_with_its_encoding() -> None:
    """In litz's packages no text is read or written, and no program's output decoded, as the locale has it."""
    root = Path(__file__).parents[2]
    files = [path for package in root.glob("*/src") for path in package.rglob("*.py")]
    assert len(files) > 400
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    found = [
        f"{path.relative_to(root)}:{call.lineno}"
        for path, text in texts.items()
        if CALLED.search(text)  # most files need not be parsed
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and is_by_locale(call)
    ]
    assert not found


CALLED = re.compile(r"\b(run|Popen|check_output|fdopen|(Named)?TemporaryFile|open|read_text|write_text)\s*\(")
"""The calls that `is_by_locale` knows."""


def is_by_locale(call: ast.Call) -> bool:
    """Is it a call of a text without `encoding=`?"""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = {keyword.arg for keyword in call.keywords}
    if "encoding" in given or (name == "read_text" and call.args):
        return False
    if name in ("run", "Popen", "check_output"):
        return bool(given & {"text", "universal_newlines"})
    modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    opens = name in ("fdopen", "TemporaryFile", "NamedTemporaryFile") or (name == "open" and is_of_a_file(call))
    text = not any("b" in mode for mode in modes) and (bool(call.args) or name == "open")
    return name in ("read_text", "write_text") or (opens and text)


def is_of_a_file(call: ast.Call) -> bool:
    """`open(...)`, `path.open(...)`; not `os.open`, nor a method of litz's own that takes nothing."""
    if isinstance(call.func, ast.Attribute):
        return getattr(call.func.value, "id", "") != "os" and bool(call.args)
    return True
