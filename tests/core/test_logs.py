"""What is logged: litz's loggers, torch's names for the like, torch's trace; and nothing unless somebody asks."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from litz import logs
from litz.logs import torch_logging
from support.warm import run_warm

SCRIPT = """
import torch
f = torch.compile(lambda x: (x.sin() + 1).sum(), backend="litz")
f(torch.ones(3, 4))
"""


def ran(**environment: str) -> str:
    """What the script prints, to either stream."""
    from os import environ

    if not environment:  # torch reads the environment when it is imported
        done = run_warm(["-c", SCRIPT])
    else:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env={**environ, **environment}, text=True, capture_output=True
        )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    logs.register()  # as `import litz` does after torch: here another file of tests may have imported litz first
    yield
    torch._logging.set_logs()


def run() -> None:
    torch.compile(lambda x: (x.sin() + 1).sum(), backend="litz")(torch.ones(3, 4))


def test_a_line_for_each_graph_and_texts_for_those_who_ask(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "litz"):
        run()
    names = {record.name for record in caplog.records if record.name.startswith("litz")}
    assert names <= {"litz", "litz.graph_cache", "litz.plugins"}  # the last of a plugin that a busy machine makes slow
    (record,) = [record for record in caplog.records if record.name == "litz"]
    assert record.getMessage().startswith("graph0_inference: 1 loop in 1 kernel, 0 library calls")
    caplog.clear()
    torch._dynamo.reset()
    with caplog.at_level(logging.DEBUG, "litz.schedule"):
        run()
    (record,) = [record for record in caplog.records if record.name == "litz.schedule"]
    assert "kernel kernel0 = op2" in record.getMessage()


def test_every_artifact_has_a_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "litz"):
        run()
    texts = {record.name.removeprefix("litz."): record.getMessage() for record in caplog.records}
    assert set(logs.ARTIFACTS) <= set(texts)
    for name, part in {
        "graph": "aten.sin",
        "program": "loop op0",
        "output_code": "def call",
        "kernel_code": "sin",
    }.items():
        assert part in texts[name]
    assert "recompute" in texts["fusion"] or "inlined" in texts["fusion"] or "nothing" in texts["fusion"]


def test_no_text_is_made_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_logging, "trace", lambda name, text: None)  # pytest's handlers take torch's traces

    def text() -> str:
        raise AssertionError("nobody asked")

    logs.show("program", "graph0", text)


def test_who_asks_under_two_names_gets_it_once(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_logging, "trace", lambda name, text: None)
    torch._logging.set_logs(output_code=True)
    made: list[int] = []
    with caplog.at_level(logging.DEBUG, "litz"):
        logs.show("output_code", "graph0", lambda: made.append(1) or "text of it")  # type: ignore[func-returns-value]
    assert len(made) == 1
    assert "text of it" not in capfd.readouterr().err


def test_a_name_that_is_asked_for_before_it_is_registered_is_found_afterwards() -> None:
    assert torch_logging.artifact_logger("litz_made_for_this_test") is None
    torch_logging.register({"litz_made_for_this_test": "a text"})
    assert torch_logging.artifact_logger("litz_made_for_this_test") is not None


def test_names_that_torch_has_and_names_of_litzs_own(capfd: pytest.CaptureFixture[str]) -> None:
    """As TORCH_LOGS=output_code, and as `set_logs(modules=...)` has it for what other packages register."""
    torch._logging.set_logs(output_code=True, modules={"litz_program": True})
    run()
    err = capfd.readouterr().err
    assert "def call(args):" in err and "[__output_code]" in err
    assert "loop op0" in err and "[__litz_program]" in err
    assert "kernel kernel0" not in err, "the schedule was not asked for"


def test_a_torch_without_an_artifact_or_logging_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_logging.known_logger.cache_clear()
    assert torch_logging.artifact_logger("there_is_no_such_thing") is None
    monkeypatch.setitem(sys.modules, "torch._logging", None)
    assert torch_logging.artifact_logger("output_code") is None
    torch_logging.trace("name", lambda: "text")
    monkeypatch.setitem(sys.modules, "torch._logging._internal", None)
    logs.register()
    torch_logging.known_logger.cache_clear()


def test_the_environment_switches_on_what_it_names(tmp_path: Path) -> None:
    text = ran(TORCH_LOGS="litz,litz_schedule,fusion", TORCH_TRACE=str(tmp_path))
    assert "1 loop in 1 kernel" in text, "the line"
    assert "kernel kernel0 = op2" in text and "[__litz_schedule]" in text
    assert "[__fusion]" in text and "def call" not in text
    events = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines() if '"artifact"' in line]
    traced = {json.loads(line[line.index("{") :])["artifact"]["name"] for line in events}
    assert {f"litz_graph0_inference_{name}" for name in logs.ARTIFACTS} <= traced
    assert all('"frame_id": 0' in line for line in events if "litz_" in line), "beside dynamo's of the same compile"


def test_quiet_by_default() -> None:
    assert ran() == ""
