"""The gradients that a program with `grad` should have: by eager, in float64, and in float64 with noise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from typing import Any

import torch

from .compare import Expected
from .inputs import make_inputs
from .program import NAMES, FuzzProgram, Statement, is_trained
from .reference import DEEP_RUNS, Reference, further, in_double, magnitude, same_specials
from .rounding import Rounding

KERNEL_ROUNDINGS = 4
"""Roundings of its operands that one kernel's result may be off by."""


def gradients(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the gradients of a weighted sum of the outputs, by the inputs that require them; zeros where nothing
    depends on an input."""
    ends, starts = [o for o in outputs if o.requires_grad], [x for x in inputs if x.requires_grad]
    if not ends or not starts:
        return []
    found = torch.autograd.grad(ends, starts, [_weights(o) for o in ends], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, starts, strict=True)]


def _weights(output: torch.Tensor) -> torch.Tensor:
    # Not all the same: the gradient of a softmax's plain sum is zero.
    return (torch.arange(output.numel(), device=output.device).reshape(output.shape) % 5 - 2).to(output.dtype)


def expected_gradients(program: FuzzProgram, reference: Reference) -> list[Expected]:
    """Returns expected gradients; none if they overflow, float64 has other rules, or eager itself fails."""
    made = {dtype for statement in program.statements if (dtype := _rounds_within(statement, reference)) is not None}
    deep = sorted(torch.finfo(dtype).eps for dtype in made) or [0.0]
    try:
        eager, exact = _run(program, None, reference), _run(program, "exact", reference)
        each = product(deep, (1, -1), range(DEEP_RUNS if made else 1))
        noisy = [(way[0], _run(program, "noisy", reference, *way)) for way in each]
    except RuntimeError:
        return []
    if len({len(run) for run in (eager, exact, *(run for _, run in noisy))}) > 1:
        return []
    trained = [f"x{n}" for n, spec in enumerate(program.inputs) if is_trained(spec)]
    names = [f"gradient of {name}" for name in trained]
    dtypes = [_dtypes_after(program, name, reference) for name in trained]
    furthest = list[torch.Tensor]()
    for at, (judge, seen) in enumerate(zip(exact, dtypes, strict=False)):
        # The roundings of a type that the gradient does not pass through, and that is coarser, would hide a fault.
        most = max(deep[0], *(torch.finfo(dtype).eps for dtype in seen))
        furthest.append(reduce(partial(further, judge), [run[at] for eps, run in noisy if eps <= most]))
    runs = [eager, exact, furthest]
    tiny = "tiny" in reference.scales
    rows = [replace(Expected(*row), tiny=tiny) for row in zip(names, *runs, dtypes, strict=False)]
    fair = all(same_specials(row.eager.double(), row.exact) and same_specials(row.exact, row.noisy) for row in rows)
    return rows if fair and all(len(run) == len(rows) for run in runs) else []


def _dtypes_after(program: FuzzProgram, name: str, reference: Reference) -> frozenset[torch.dtype]:
    """The floating-point dtypes that a gradient passes through on its way to an input: a float64 input that is summed
    in float32 has a gradient with the error of float32."""
    reached = {name}
    for statement in program.statements:
        if reached & set(statement.uses):
            reached.add(statement.writes or statement.target)
    found = (reference.eager[variable].dtype for variable in reached)
    return frozenset(dtype for dtype in found if dtype.is_floating_point)


def _run(
    program: FuzzProgram, judge: str | None, reference: Reference, deep: float = 0.0, sign: int = 0, seed: int = 0
) -> list[torch.Tensor]:
    """deep: the rounding of each op in statements that round within, and of each op of the backward if there are such.
    sign: whether noise adds to the results of rough statements or takes off what a kernel may be off by. At a kink the
    gradient is another one there: `logaddexp2(-1, -1)` is 0 or a rounding of 1, as the processor has it. seed: of the
    noise."""
    rng = torch.Generator().manual_seed(seed)
    values = dict(zip((f"x{n}" for n in range(len(program.inputs))), make_inputs(program.inputs, bool(judge))))
    for spec, value in zip(program.inputs, values.values()):
        value.requires_grad_(is_trained(spec))
    inputs = list(values.values())
    if judge == "noisy":
        for spec, (name, value) in zip(program.inputs, list(values.items())):
            if is_trained(spec):
                values[name] = _Noise.apply(value, 0.0, torch.finfo(spec.dtype).eps, rng)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if judge else before)
    try:
        for statement in program.statements:
            text = in_double(statement.text) if judge else statement.text
            operands = [values[name].detach() for name in statement.uses if name in values]
            with ExitStack() as noise:
                if judge == "noisy":
                    noise.enter_context(_read_again(_largest_rounding(statement, reference), rng))
                    if _rounds_within(statement, reference) is not None:
                        noise.enter_context(Rounding(deep, rng))
                value = eval(text, dict(NAMES), values)
            if judge == "noisy" and value.dtype.is_floating_point:
                eps = torch.finfo(reference.eager[statement.target].dtype).eps
                forward = 0.0 if reference.is_exact(statement.target) else eps
                value = _Noise.apply(value, forward, eps, rng)
                if statement.rough and forward:
                    value = value + sign * KERNEL_ROUNDINGS * eps * magnitude(value, operands)
            values[statement.target] = value
        with Rounding(deep, rng) if judge == "noisy" and deep else nullcontext():
            return gradients([values[name] for name in program.outputs], inputs)
    finally:
        torch.set_default_dtype(before)


def _rounds_within(statement: Statement, reference: Reference) -> torch.dtype | None:
    """The type that a statement's own ops round in, where that shows in gradients: a deep statement's result has it.
    What subtracts a mean sums in float32 at least, and its gradient may be terms that cancel. None: nothing shows."""
    dtype = reference.eager[statement.target].dtype if statement.deep or statement.centred else None
    if dtype is None or statement.deep:
        return dtype
    return torch.float64 if dtype == torch.float64 else torch.float32


def _largest_rounding(statement: Statement, reference: Reference) -> float:
    """The largest rounding of what a statement reads and makes; 0.0 where all of that is exact."""
    rounded = [name for name in (*statement.uses, statement.target) if name in reference.eager]
    dtypes = (reference.eager[name].dtype for name in rounded if not reference.is_exact(name))
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)


def _read_again(eps: float, rng: torch.Generator) -> AbstractContextManager[Any]:
    """Values that a backward reads may be rounded otherwise than in the forward: a kernel that computes them anew does
    not round them, while the result that is saved is rounded (of `exp(x - logsumexp(x))` a half type's rounding of x =
    400 is a factor)."""

    def unpack(value: torch.Tensor) -> torch.Tensor:
        return value * _factors(value, eps, rng) if value.dtype.is_floating_point else value

    return torch.autograd.graph.saved_tensors_hooks(lambda value: value, unpack) if eps else nullcontext()


class _Noise(torch.autograd.Function):
    """Random relative errors: of size `forward` for the value, `backward` for its gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, forward: float, backward: float, rng: torch.Generator) -> torch.Tensor:
        ctx.backward_size, ctx.rng = backward, rng
        return value * _factors(value, forward, rng)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        return gradient * _factors(gradient, ctx.backward_size, ctx.rng), None, None, None


def _factors(value: torch.Tensor, size: float, rng: torch.Generator) -> torch.Tensor:
    return 1 + size * (torch.rand(value.shape, generator=rng, dtype=torch.float64) * 2 - 1)
