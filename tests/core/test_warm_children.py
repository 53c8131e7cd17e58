"""Copies of a process that has imported torch, in place of interpreters: they end, and are ended, as those are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.warm_children import warm_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux alone")
COPIED = "'torch._dynamo' in __import__('sys').modules"


def run(*arguments: str, **how: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([warm_python(), *arguments], capture_output=True, text=True, timeout=60, **how)  # type: ignore[call-overload,no-any-return]


def test_what_it_is_given() -> None:
    done = run(
        "-c", f"import os, sys; print({COPIED}, sys.argv, os.getppid(), os.environ['MINE'])", "a", env={"MINE": "b"}
    )
    assert done.stdout.split() == ["True", "['-c',", "'a']", str(os.getpid()), "b"], done.stderr
    read, write = os.pipe()
    run("-c", f"import os; os.write({write}, b'found')", pass_fds=[write])
    os.close(write)
    assert os.read(read, 100) == b"found"
    os.close(read)


def test_how_it_ends() -> None:
    assert run("-c", "raise SystemExit(7)").returncode == 7
    failed = run("-c", "print('so far'); raise KeyError('mine')")
    assert (failed.returncode, failed.stdout) == (1, "so far\n") and "KeyError: 'mine'" in failed.stderr
    for signal in (9, 11):
        assert run("-c", f"import os; os.kill(os.getpid(), {signal})").returncode == -signal
    aborted = run("-u", "-X", "faulthandler", "-c", "print('so far'); import os; os.abort()")
    assert aborted.stdout == "so far\n" and "Fatal Python error: Aborted" in aborted.stderr


def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(f'{{os.getpid()}} '); time.sleep(60)"
    started = subprocess.Popen([warm_python(), "-c", code])
    until = time.monotonic() + 30
    while not (told.exists() and told.read_text().endswith(" ")) and time.monotonic() < until:
        time.sleep(0.02)
    copy = Path("/proc", told.read_text().strip())
    assert copy.exists()
    started.kill()
    started.wait()
    while copy.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not copy.exists()


def test_what_a_copy_cannot_be_is_an_interpreter() -> None:
    assert run("-O", "-c", "import sys; print(sys.flags.optimize)").stdout == "1\n"
    interpreting = run("-c", f"print({COPIED})", env={**os.environ, "TRITON_INTERPRET": "1"})
    assert interpreting.stdout == "False\n"
