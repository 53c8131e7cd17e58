"""Graphs captured on the CPU, made out to be on a CUDA device: what the CUDA path makes of a model without a GPU.

A CPU-only build of torch cannot trace autograd through fake CUDA tensors, so the graph is captured for the CPU and its
devices are swapped after that. Ops that only a CPU graph has (its flash attention) stay as the library calls they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch

from litz.capture.graph import Graph
from litz.capture.layout import changed_strides
from litz.driver.stages import capture, lower_graph, prepare_graph, schedule_prepared, schedule_program
from litz.driver.variants import Lowered, Variant
from litz.pipeline import Compiler, make_compiler
from litz.report.log import Log
from litz.schedule import Schedule
from litz.schedule.implementations import ContractionRecord
from litz_plugins import Decision
from support.to_cuda import CUDA, to_cuda, zeros_like_outputs

__all__ = ["CUDA", "captured_for_cuda", "cuda_schedules", "to_cuda"]


def captured_for_cuda() -> contextlib.AbstractContextManager[Any]:
    """What a capture decides by its device is decided as for a GPU."""
    return mock.patch("litz_passes.joint.saved_positions.stay_wide", lambda target: False)


def cuda_schedules(
    run: Callable[[Callable[..., Any]], Any],
    compiler: Compiler | None = None,
    decisions: list[Decision] | None = None,
    called: list[list[Any]] | None = None,
    contractions: list[ContractionRecord] | None = None,
    computed: bool = False,
) -> list[Schedule]:
    """The CUDA schedules of what `run(backend)` compiles on the CPU; its graphs of static sizes return zeros.

    decisions: a list to append what was decided before scheduling. called: one to append what graphs were called with.
    contractions: one to append what runs each contraction. computed: the graphs run as they were captured, which takes
    long where a processor has no half types.
    """
    decisions = [] if decisions is None else decisions
    compiler = compiler or make_compiler()
    schedules: list[Schedule] = []

    def keep(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        log, moved = Log(), to_cuda(graph)
        prepared = prepare_graph(moved, compiler, log)
        schedules.append(schedule_prepared(prepared, compiler, log))
        decisions.extend(log.decisions)
        if contractions is not None:
            contractions.extend(log.contractions)

        def run(args: list[Any]) -> Sequence[Any]:
            if called is not None:
                called.append(list(args))
            found = None if computed else zeros_like_outputs(graph)
            return found if found is not None else torch.fx.Interpreter(graph.module).run(*args)

        run.output_strides = changed_strides(moved, prepared)  # type: ignore[attr-defined]
        return run

    with captured_for_cuda():
        run(partial(capture, compile_graph=keep, compiler=compiler))
    return schedules


def first_variant(graph: Graph, compiler: Compiler) -> Variant:
    """What the estimates make of a graph."""
    log = Log()
    prepared = prepare_graph(graph, compiler, log)
    program = lower_graph(prepared, compiler, log)
    lowered = Lowered(prepared, program, log.branch())
    return Variant(lowered, schedule_program(prepared, program, compiler, log), log)
