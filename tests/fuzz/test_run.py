"""A run's worker processes: who dies is on record, torch's own ends are told from others, and the run goes on."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from litz_testing.fuzz.check import _deadline
from litz_testing.fuzz.run import _dies_alone, run
from litz_testing.fuzz.torch_alone import ENDS
from support.warm import run_warm
from support.warm_children import warm_python


def test_a_worker_that_dies_is_on_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process is killed by a program; the run goes on without it."""
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import os, sys\n"
        "if 'litz_testing.fuzz.worker' in sys.orig_argv:\n"
        "    import litz_testing.fuzz.check as check\n"
        "    real = check.Checker._prepare\n"
        "    def prepare(self, program, reference):\n"
        "        self.note(program)\n"
        "        if program.label == 'made:1': os.abort()\n"
        "        return real(self, program, reference)\n"
        "    check.Checker._prepare = prepare\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sys, "executable", warm_python(imported=True))
    monkeypatch.setattr("litz_testing.fuzz.run._dies_alone", lambda worker: False)
    record = run("made", 3, workers=1, compiled=False, folder=tmp_path / "failures")
    assert record.programs == 2
    assert json.loads(record.to_json())["counts"]["runs, interpreted"] >= 2
    assert record.counts["static"] + record.counts["dynamic"] == 2 and "made: 2 programs" in record.summary()
    assert [(f["label"], f["kind"]) for f in record.failures] == [("made:1", "crash -6")]
    assert "Fatal Python error: Aborted" in Path(record.failures[0]["script"]).read_text()


def test_a_program_that_cannot_be_made_is_on_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """s51n:2714 ended a process while it was made: the program before it was blamed, and after a second time its
    worker's share of the run was left out."""
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import sys\n"
        "if 'litz_testing.fuzz.worker' in sys.orig_argv:\n"
        "    import litz_testing.fuzz.generate as generate\n"
        "    real = generate.generate\n"
        "    def refuse(label, **named):\n"
        "        if label == 'made:1': raise OverflowError('int too big to convert')\n"
        "        return real(label, **named)\n"
        "    generate.generate = refuse\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sys, "executable", warm_python(imported=True))
    record = run("made", 3, workers=1, compiled=False, folder=tmp_path / "failures")
    assert [(f["label"], f["kind"]) for f in record.failures] == [("made:1", "crash 1")]
    assert record.programs == 2 and "int too big" in Path(record.failures[0]["script"]).read_text()


def test_a_program_that_torch_alone_cannot_run_is_not_litzs() -> None:
    """A process makes and runs it by torch alone, as a worker names it. Where that process dies, torch is at fault:
    torch 2.11 divides by 0 in an attention on a CPU whose value has no rows (s51n:2269). An error of Python's in the
    worker is the fuzzer's own fault."""
    worker = [warm_python(imported=True), "-m", "litz_testing.fuzz.worker"]
    task = {"level": 1, "device": "cpu", "dynamic": None}
    runs = [*worker, json.dumps(task), "ci-c:3"]
    assert run_warm(runs[1:]).returncode == 0 and not _dies_alone(runs)
    for ending, dies in (("os.kill(os.getpid(), 8)", True), (f"sys.exit({ENDS})", True), ("raise OSError", False)):
        assert _dies_alone([sys.executable, "-c", f"import os, sys; {ending}"]) == dies


@pytest.mark.ci_cases("check.Checker.run_alone = refuse-70", "worker.generate = refuse-1")
@pytest.mark.parametrize(
    ("fault", "status"), [("", 0), ("check.Checker.run_alone = refuse", ENDS), ("worker.generate = refuse", 1)]
)
def test_what_torch_alone_ends_is_told_from_an_error_of_the_fuzzers(fault: str, status: int) -> None:
    code = (
        "import json, sys\nfrom litz_testing.fuzz import check, worker\n"
        "def refuse(*args, **named): raise RuntimeError('the device is lost')\n"
        f"{fault}\nsys.exit(worker.alone({{'level': 1, 'device': 'cpu', 'dynamic': None}}, 'ci-c:3'))"
    )
    assert run_warm(["-c", code]).returncode == status


def test_a_stage_that_waits_for_a_processor_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage's limit is of the process's own time; one by the clock ends what waits for ever."""
    monkeypatch.setattr("litz_testing.fuzz.check.TIME_LIMIT", 0.2)
    with _deadline():
        time.sleep(0.5)
    with pytest.raises(TimeoutError), _deadline():
        while True:
            pass
    monkeypatch.setattr("litz_testing.fuzz.check.WAITING_LIMIT", 0.2)
    with pytest.raises(TimeoutError), _deadline():
        time.sleep(5)
