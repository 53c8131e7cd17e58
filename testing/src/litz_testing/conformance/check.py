"""One case: the operator in eager, compiled, and where in doubt in float64. In: a Case and its sample. Out: an Outcome.

Compared are the results' values, dtypes, shapes and strides, with whom they share memory, what became of the inputs,
and the gradients of all inputs.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from litz import report as reports
from litz_testing.torch_compile import torch_compiled

from .call import Call, clones, describe, doubled, make_call
from .cases import Case, op_table
from .compare import differences
from .runs import Run, compare_runs, run_once

UNINITIALISED = ("empty", "new_empty", "resize_", "resize_as_")
"""Operators whose results hold whatever the memory held: names that begin so."""

OTHER_SEEDS = (1, 2, 3)
"""Numbers drawn from the first seed and from each of these are equal by chance once in a thousand cases: three
coins, say."""


@dataclass(frozen=True)
class Way:
    """Says how a case is compiled and judged. backend: as torch.compile takes it. options: the backend's. bits: values
    are to be eager's bit for bit, random ones too."""

    backend: str | Callable[..., Any] = "litz"
    options: Mapping[str, Any] = field(default_factory=dict)
    bits: bool = False

    def compiled(self, function: Callable[..., Any], dynamic: bool) -> Callable[..., Any]:
        """Returns the function compiled."""
        return torch_compiled(function, self.backend, dynamic, data=dynamic, options=self.options)


@dataclass
class Outcome:
    """The outcome of a case.

    status: "passed", "wrong", "error", "timeout", or "skipped" where eager refuses the sample. how: "native" where
    every step is a generated kernel or a view, "extern" where some are library calls, "eager" where dynamo handed
    nothing to the backend. externs: the library ops called. traced: the backend "aot_eager", which compiles nothing,
    fails in the same way, so that the failure is of torch's tracing. source: the function that was compiled.
    """

    case: str
    status: str
    detail: str = ""
    how: str = ""
    externs: list[str] = field(default_factory=list)
    traced: bool = False
    source: str = ""
    inputs: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Returns whether it ran and did not pass."""
        return self.status in ("wrong", "error", "timeout")


def check(case: Case, sample: Any, way: Way) -> Outcome:
    """Runs one case and returns its outcome. Never raises: what the compiled function raises is the outcome."""
    call = make_call(op_table()[case.job.op].get_op(), sample)
    return check_call(case, call, way, sample.output_process_fn_grad)


def check_call(
    case: Case,
    call: Call,
    way: Way,
    process: Callable[[Any], Any] = lambda result: result,
    refused: bool = False,
) -> Outcome:
    """Runs one call and returns its outcome. process: of the results, the part that counts. refused: eager raises an
    error, and the compiled function has to raise one of its type. Never raises."""
    start = time.perf_counter()
    run = _check_refusal if refused else _check
    outcome = Outcome(str(case), "passed", source=call.text, inputs=describe(call.tensors))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(case, call, process, way, outcome)
        if outcome.status in ("wrong", "error") and way.backend != "aot_eager":
            other = Outcome(str(case), "passed")
            run(case, call, process, Way("aot_eager", bits=way.bits), other)
            outcome.traced = (other.status, other.detail[:40]) == (outcome.status, outcome.detail[:40])
    outcome.seconds = time.perf_counter() - start
    return outcome


def _check(case: Case, call: Call, process: Callable[[Any], Any], way: Way, outcome: Outcome) -> None:
    def run(function: Callable[..., Any], tensors: Sequence[torch.Tensor], seed: int = 0) -> Run:
        return run_once(function, tensors, process, case.train, seed)

    try:
        expected = run(call.function, clones(call.tensors))
        again = [run(call.function, clones(call.tensors), seed) for seed in OTHER_SEEDS]
    except Exception as error:
        outcome.status, outcome.detail = "skipped", f"eager: {_message(error)}"
        return
    # Random numbers differ between seeds, and compiled code draws others than eager does unless it is told not to.
    random = not way.bits and any(_differ(expected, other) for other in again)
    values = not case.job.op.startswith(UNINITIALISED) and not random

    def exact() -> Run | None:
        try:
            return run(call.function, doubled(call.tensors))
        except Exception:
            return None

    torch._dynamo.reset()  # nothing is left of earlier compiles
    try:
        with reports.collect() as collected:
            fast = way.compiled(call.function, case.dynamic)
            actual = run(fast, clones(call.tensors))
    except Exception as error:
        outcome.status, outcome.detail = "error", _message(error, traces=True)
        return
    finally:
        _note_how(collected, outcome)
    found = compare_runs(actual, expected, exact, values, way.bits)
    if found:
        outcome.status, outcome.detail = "wrong", "; ".join(found)


def _check_refusal(case: Case, call: Call, process: Callable[[Any], Any], way: Way, outcome: Outcome) -> None:
    try:
        run_once(call.function, clones(call.tensors), process, case.train)
    except Exception as error:
        expected = error
    else:
        outcome.status, outcome.detail = "skipped", "eager takes the call"
        return
    torch._dynamo.reset()
    try:
        with reports.collect() as collected:
            fast = way.compiled(call.function, case.dynamic)
            actual = run_once(fast, clones(call.tensors), process, case.train)
    except Exception as error:
        # While tracing, dynamo has the error of a fake tensor's kernel as the cause of its own.
        if not isinstance(error, (type(expected), torch._dynamo.exc.TorchDynamoException)):
            outcome.status, outcome.detail = "error", f"eager: {_message(expected)}; raised: {_message(error, True)}"
    else:
        given = str(actual.outputs)[:100]
        outcome.status, outcome.detail = "wrong", f"eager refuses: {_message(expected)}; the result is {given}"
    finally:
        _note_how(collected, outcome)


def _differ(left: Run, right: Run) -> bool:
    return any(
        differences(a, b, strides=False)
        for a, b in ((left.outputs, right.outputs), (left.gradients, right.gradients), (left.inputs, right.inputs))
    )


def _note_how(collected: Sequence[Any], outcome: Outcome) -> None:
    externs = {step.what for report in collected for step in report.steps if step.kind != "kernel"}
    outcome.externs = sorted(externs)
    outcome.how = ("extern" if externs else "native") if collected else "eager"


def _message(error: BaseException, traces: bool = False) -> str:
    """The first lines of an exception, and where it came from."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: " + " | ".join(lines[:6])[:700]
    if traces:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        text += " @ " + " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in reversed(frames))
    return text
