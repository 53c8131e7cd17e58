"""One case: the operator in eager, compiled, and where in doubt in float64. In: a Case and its sample. Out: an Outcome.

Compared are the results' values, dtypes, shapes and strides, with whom they share memory, what became of the inputs,
and the gradients of all inputs.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from litz import report as reports
from litz_testing.torch_compile import torch_compiled

from .call import Call, clones, describe, doubled, make_call
from .cases import Case, op_table
from .compare import aliases, differences

UNINITIALISED = ("empty", "new_empty", "resize_", "resize_as_")
"""Operators whose results hold whatever the memory held: names that begin so."""

OTHER_SEEDS = (1, 2, 3)
"""Numbers drawn from the first seed and from each of these are equal by chance once in a thousand cases: three
coins, say."""


@dataclass
class Outcome:
    """What became of a case.

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
        """Whether it ran and did not pass."""
        return self.status in ("wrong", "error", "timeout")


@dataclass
class _Run:
    """What one run of the operator gave."""

    outputs: list[Any]
    aliases: list[str]
    inputs: Sequence[torch.Tensor]
    gradients: list[Any]


def check(case: Case, sample: Any, backend: str | Callable[..., Any] = "litz") -> Outcome:
    """Run one case. Never raises: whatever the compiled function raises is the outcome."""
    start = time.perf_counter()
    op = op_table()[case.job.op]
    call = make_call(op.get_op(), sample)
    outcome = Outcome(str(case), "passed", source=call.text, inputs=describe(call.tensors))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check(case, call, sample.output_process_fn_grad, backend, outcome)
        if outcome.status in ("wrong", "error") and backend != "aot_eager":
            other = Outcome(str(case), "passed")
            _check(case, call, sample.output_process_fn_grad, "aot_eager", other)
            outcome.traced = (other.status, other.detail[:40]) == (outcome.status, outcome.detail[:40])
    outcome.seconds = time.perf_counter() - start
    return outcome


def _check(case: Case, call: Call, process: Callable[[Any], Any], backend: Any, outcome: Outcome) -> None:
    def run(function: Callable[..., Any], tensors: Sequence[torch.Tensor], seed: int = 0) -> _Run:
        return _run(function, tensors, process, case.train, seed)

    try:
        expected = run(call.function, clones(call.tensors))
        again = [run(call.function, clones(call.tensors), seed) for seed in OTHER_SEEDS]
    except Exception as error:
        outcome.status, outcome.detail = "skipped", f"eager: {_message(error)}"
        return
    # Random numbers differ between seeds, and compiled code draws others than eager does.
    values = not case.job.op.startswith(UNINITIALISED) and not any(_differ(expected, other) for other in again)

    def exact() -> _Run | None:
        try:
            return run(call.function, doubled(call.tensors))
        except Exception:
            return None

    torch._dynamo.reset()  # nothing is left of earlier compiles
    try:
        with reports.collect() as collected:
            fast = torch_compiled(call.function, backend, case.dynamic, data=case.dynamic)
            actual = run(fast, clones(call.tensors))
    except Exception as error:
        outcome.status, outcome.detail = "error", _message(error, traces=True)
        return
    finally:
        _note_how(collected, outcome)
    found = _compare(actual, expected, exact, values)
    if found:
        outcome.status, outcome.detail = "wrong", "; ".join(found)


def _run(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], process: Callable[[Any], Any], train: bool, seed: int
) -> _Run:
    torch.manual_seed(seed)
    with torch.set_grad_enabled(train):
        returned = function(*tensors)
    outputs = tree_leaves(returned)
    shared = aliases(tensors, outputs)
    gradients = _gradients(process(returned), tensors) if train else []
    return _Run(outputs, shared, tensors, gradients)


def _gradients(returned: Any, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The gradient of every input that wants one, for random gradients of the outputs."""
    outputs = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = [tensor for tensor in tensors if tensor.requires_grad]
    if not outputs or not inputs:
        return []
    generator = torch.Generator().manual_seed(7)
    given = [
        torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.device, out.dtype) for out in outputs
    ]
    return list(torch.autograd.grad(outputs, inputs, given, allow_unused=True))


def _differ(left: _Run, right: _Run) -> bool:
    return any(
        differences(a, b, strides=False)
        for a, b in ((left.outputs, right.outputs), (left.gradients, right.gradients), (left.inputs, right.inputs))
    )


def _compare(actual: _Run, expected: _Run, exact: Callable[[], _Run | None], values: bool) -> list[str]:
    """What differs between the runs."""

    def part(name: str) -> Callable[[], Any]:
        def get() -> Any:
            judged = exact()
            return None if judged is None else getattr(judged, name)

        return get

    found = differences(actual.outputs, expected.outputs, part("outputs"), values=values)
    if not found and actual.aliases != expected.aliases:
        found.append(f"outputs share memory with {actual.aliases}, eager's with {expected.aliases}")
    changed = differences(actual.inputs, expected.inputs, part("inputs"), values=values)
    found += [f"after the call, {text.replace('result', 'input', 1)}" for text in changed]
    gradients = differences(actual.gradients, expected.gradients, part("gradients"), values=values, strides=False)
    return found + [text.replace("result", "gradient", 1) for text in gradients]


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
