"""The page that shows the compiler: each stage is called by its name, from the page, in its order, and from nowhere
else. The first, capture, is called where dynamo enters: a process that finds its graphs does without the page."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

import litz
from litz import pipeline
from litz.driver import entry

STAGES = (
    "capture",
    "prepare_graph",
    "lower_graph",
    "schedule_program",
    "choose_variant",
    "plan_schedule",
    "generate",
    "generate_wrapper",
    "load_kernels",
    "keep",
)
ROOT = Path(litz.__file__).parent
AWAY: Mapping[str, frozenset[str]] = {
    "prepare_graph": frozenset({"execution", "codegen", "runtime"}),
    "lower_graph": frozenset({"schedule", "execution", "codegen", "runtime"}),
    "schedule_program": frozenset({"capture", "lower", "execution", "runtime"}),
    "plan_schedule": frozenset({"capture", "lower", "codegen", "runtime"}),
    "generate": frozenset({"capture", "lower"}),
    "generate_wrapper": frozenset({"capture", "lower", "runtime"}),
}
"""The rooms of other stages, in which a stage runs no function."""


def stage(name: str) -> object:
    return getattr(entry if name == "capture" else pipeline, name)


@contextmanager
def traced() -> Iterator[list[tuple[str, str, tuple[str, ...]]]]:
    """Collects each call of a function of litz: its room or loose file, the stage that it is or "", and the stages that
    run by then."""
    calls: list[tuple[str, str, tuple[str, ...]]] = []
    running: list[str] = []

    def see(frame, event, _):
        path = frame.f_code.co_filename
        if not path.startswith(str(ROOT)) or event not in ("call", "return"):
            return
        name = frame.f_code.co_name
        is_stage = name in STAGES and getattr(stage(name), "__code__", None) is frame.f_code
        if event == "return" and is_stage:
            running.pop()
        elif event == "call":
            calls.append((Path(path).relative_to(ROOT).parts[0], name if is_stage else "", tuple(running)))
            if is_stage:
                running.append(name)

    sys.setprofile(see)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def called(function) -> list[str]:
    """The stages that a function of the page calls, in the order of its lines."""
    tree = ast.parse(inspect.getsource(function))
    names = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [(node.lineno, node.col_offset, node.id) for node in names if isinstance(node, ast.Name)]
    return [name for _, _, name in sorted(names) if name in STAGES]


def test_the_page_calls_each_stage_once_in_order() -> None:
    functions = (entry._capture, pipeline.make_graph_code, pipeline._make_code)
    assert [name for function in functions for name in called(function)] == list(STAGES)


def test_a_compile_goes_down_the_page_and_back_up_nowhere(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    fn = torch.compile(lambda x, w: torch.softmax(x, -1) @ w, backend="litz")
    with traced() as calls:
        fn(torch.randn(8, 16), torch.randn(16, 4))
    stages = [(name, inside) for _, name, inside in calls if name]
    assert [name for name, _ in stages] == list(STAGES)
    for name, inside in stages:  # AOTAutograd, inside of capture, calls the page for each graph
        assert inside == (() if name == "capture" else ("capture",)), f"{name} runs inside of {inside}"
    for stage, rooms in AWAY.items():
        entered = {room for room, _, inside in calls if inside and inside[-1] == stage}
        assert entered, f"nothing ran in {stage}"
        assert not entered & rooms, f"{stage} runs functions of {entered & rooms}"
