"""Planned peaks of the zoo's models on a GPU that is not there: what a step holds at most, by its ExecutionPlans.

    PYTHONPATH=tests:. python -m benchmarks.planned_memory [--only MODEL ...] [--tasks inference training]
        [--against rows.json] [--top N]

Models are fake tensors in the sizes for a GPU, captured on the CPU and planned for CUDA; nothing is computed. MiB:
parameters and inputs, and with them the peak of a step: temporaries, outputs, and in a backward what was saved, each
until its last use. Library workspaces are not in it. --against: rows of
`benchmarks.side_by_side`; the peak measured of Inductor, and the ratio to it. --top: the largest tensors at the peak.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode

from benchmarks.rows import read_rows
from benchmarks.zoo import ZOO, find, known, missing
from benchmarks.zoo_step import Subject, cast, make_step, subject_patches, why_not
from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.layout import changed_strides
from litz.driver.stages import capture, prepare_graph, schedule_prepared
from litz.execution import ExecutionPlan
from litz.pipeline import make_compiler, plan_schedule
from litz.report.log import Log
from litz_contractions.traced import written_attention
from support.retarget import captured_for_cuda, to_cuda

MIB = 2**20
_INITIALIZERS = ("normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_", "trunc_normal_", "orthogonal_")


def plans_of(name: str, task: str) -> tuple[Subject, list[tuple[Graph, ExecutionPlan]]]:
    """A model's graphs and their plans, in the order in which they are compiled."""
    compiler, found = make_compiler(), []

    def keep(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        moved, log = to_cuda(graph), Log()
        prepared = prepare_graph(moved, compiler, log)
        found.append((graph, plan_schedule(schedule_prepared(prepared, compiler, log), compiler, log)))

        def run(args: list[Any]) -> Sequence[Any]:
            values = list(args)
            args.clear()
            with torch_api.fake_mode_around(values):
                outputs: Sequence[Any] = torch.fx.Interpreter(graph.module).run(*values, enable_io_processing=False)
            return outputs

        run.output_strides = changed_strides(moved, prepared)  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    subject, mode = fake_subject(name, task)
    backend = partial(capture, compile_graph=keep, compiler=compiler)
    # torch copies the backward's module with its constants, which is an error under a mode for fake tensors.
    as_they_are = mock.patch.object(torch.Tensor, "__deepcopy__", lambda tensor, memo: tensor)
    fused = mock.patch.object(
        written_attention, "is_fused_half", lambda target_of, result: result.dtype == torch.bfloat16
    )
    with mode, as_they_are, fused, captured_for_cuda(), subject_patches(subject.model):
        make_step(subject, torch.compile(subject.module, backend=backend))()
    return subject, found


def fake_subject(name: str, task: str) -> tuple[Subject, FakeTensorMode]:
    """A model of fake tensors, in the size for a GPU, on the CPU."""
    model, training = find(name), task == "training"
    autocast = model.autocast and training
    dtype = torch.bfloat16 if model.half and not autocast else torch.float32
    size = model.training if training else 1 if task == "small" else model.batch
    with _uninitialized():
        module = model.make(False).to(dtype).train(training)
    inputs = cast(model.inputs(size, False), dtype)
    if training and model.targets is not None:
        inputs |= model.targets(size, False)
    mode, made = FakeTensorMode(allow_non_fake_inputs=True), {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        """The same one for tied weights."""
        return made.setdefault(id(tensor), (mode.from_tensor(tensor, static_shapes=True), tensor))[0]

    for part in module.modules():
        for table in (part._parameters, part._buffers):
            table.update({key: fake(value) for key, value in table.items() if value is not None})
    inputs = {key: fake(value) if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
    return Subject(model, task, module, inputs, autocast, torch.device("cpu")), mode


@contextlib.contextmanager
def _uninitialized() -> Iterator[None]:
    """What weights hold plays no part."""
    with contextlib.ExitStack() as stack:
        for name in _INITIALIZERS:
            stack.enter_context(mock.patch.object(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor))
        yield


def peak(graph: Graph, plan: ExecutionPlan) -> tuple[int, int, list[tuple[str, int]]]:
    """(bytes, the step, the tensors that are held then, the largest first), beside parameters and inputs."""
    program, memory = plan.program, plan.memory
    held: dict[str, int] = {}
    if graph.kind == "backward":
        static = {node.name for at, node in enumerate(graph.placeholders) if at in graph.static_inputs}
        held = {name: _nbytes(plan, name) for name in program.input_buffers if name not in static}
    best: tuple[int, int, list[tuple[str, int]]] = (0, 0, [])
    for number in range(len(plan.steps)):
        for name in memory.allocate[number]:
            old = memory.reuse.get(name)
            if name not in memory.arena:
                held[name] = _nbytes(plan, name) if old is None else held.pop(old, _nbytes(plan, name))
        total = memory.arena_bytes + sum(held.values())
        if total > best[0]:
            best = total, number, sorted(held.items(), key=lambda item: -item[1])
        for name in (*memory.free[number], *plan.tensors[number].after):
            held.pop(name, None)
    return best


def _nbytes(plan: ExecutionPlan, name: str) -> int:
    return plan.program.hint(plan.program.buffers[name].nbytes)


def lines(name: str, task: str, theirs: float | None, top: int) -> Iterator[str]:
    subject, plans = plans_of(name, task)
    found = [peak(graph, plan) for graph, plan in plans]
    most = (max((total for total, *_ in found), default=0) + subject.bytes) / MIB
    steps = sum(len(plan.steps) for _, plan in plans)
    us = sum(estimate.us for _, plan in plans for estimate in plan.estimates.values())
    beside = "" if theirs is None else f"{theirs:12.1f}{most / theirs:8.2f}"
    yield f"{name:24}{task:12}{subject.bytes / MIB:10.1f}{most:10.1f}{steps:8}{us:11.1f}{beside}"
    for (_, plan), (total, number, tensors) in zip(plans, found, strict=True):
        for buffer, nbytes in tensors[:top]:
            uses = [step.name for step in plan.steps if buffer in (*step.reads, *step.writes)]
            at = f"{plan.program.name} {total / MIB:.1f} at {plan.steps[number].name}"
            yield f"    {at}: {nbytes / MIB:9.1f} {buffer} {', '.join(uses[:2])} .. {uses[-1] if uses else ''}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each model and task."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planned_memory", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", type=known, default=list(ZOO), metavar="MODEL")
    parser.add_argument("--tasks", nargs="+", choices=["inference", "training", "small"], default=["inference"])
    parser.add_argument("--against", type=Path, nargs="*", default=[])
    parser.add_argument("--top", type=int, default=0)
    args = parser.parse_args(argv)
    rows = [row for file in args.against for row in read_rows(file) if "inductor" in row.peers]
    measured = {(row.model, row.task): row.peers["inductor"].peak_mib for row in rows}
    print(f"{'model':24}{'task':12}{'given':>10}{'peak':>10}{'steps':>8}{'us':>11}{'Inductor':>12}{'ratio':>8}")
    for task in args.tasks:
        for name in args.only:
            if not missing(find(name)) and not why_not(find(name), task):
                try:
                    for text in lines(name, task, measured.get((name, task)), args.top):
                        print(text, flush=True)
                except Exception as error:
                    print(f"{name:24}{task:12}{type(error).__name__}: {error}"[:160], flush=True)


if __name__ == "__main__":
    main()
