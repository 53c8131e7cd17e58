"""The offer for attention's backward. In: an `AttentionBackward` and its context. Out: choices, one for each pair of
tiles that fits, the one thought best first; none, with the reason on record, where there is no kernel for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz.ir import Buffer, KernelCall, Layout, Program, TensorRef
from litz.ir.attention_backward import AttentionBackward
from litz.schedule.choices import Recipe, Replacement
from litz_plugins import Choice, ChoiceContext, Decision

from .backward import make_plan, write_key_gradients, write_query_gradient
from .backward_tiles import Pair, estimate, tiles_for

KIND = "flex_attention_backward"
LOOKED_AT = 0.5
"""The part of the scores that a mask is taken to leave: half, as a causal one does."""


def offer_attention_backward(operation: AttentionBackward, context: ChoiceContext) -> Sequence[Choice]:
    """Choices of two kernels each."""
    program, target = context.program, context.target
    why = _unsuitable(operation, program, target)
    if why:
        context.record(Decision("schedule", operation.name, "no kernels", why))
        return ()
    dtype = program.buffers[operation.query.buffer].dtype
    depth, width = (int(ref.layout.size[3]) for ref in (operation.query, operation.value))
    precision = _precision(dtype, target)
    batch, heads, queries, _ = map(program.hint, operation.query.layout.size)
    keys = program.hint(operation.key.layout.size[2])
    share = 1.0 if operation.mask is None and operation.blocks is None else LOOKED_AT
    expected = estimate(batch * heads, queries, keys, (depth, width), dtype, target, share, "tf32" in precision)
    choices = []
    for number, pair in enumerate(tiles_for(max(depth, width), dtype)):
        name = f"triton {KIND} {pair[0]} and {pair[1]}"
        recipe = Recipe((), f"{pair!r} {precision}", lambda pair=pair: replacement(operation, program, pair, precision))  # type: ignore[misc]
        choices.append(Choice(name, "template", recipe, expected if number == 0 else _slower(expected, number)))
    return choices


def _slower(first: Any, number: int) -> Any:
    from dataclasses import replace

    factor = 1 + 0.1 * number
    return replace(first, us=first.us * factor, low_us=first.low_us * factor, high_us=first.high_us * factor)


def _precision(dtype: torch.dtype, target: Any) -> str:
    """What `tl.dot` is told of float32 operands."""
    if dtype != torch.float32:
        return ""
    return ', input_precision="tf32"' if "matmul" in target.tf32 else ', input_precision="ieee"'


def _unsuitable(operation: AttentionBackward, program: Program, target: Any) -> str:
    """Why there is no kernel; "" if there is."""
    if target.type != "cuda":
        return f"no kernels for a {target.type} device"
    widths = [ref.layout.size[3] for ref in (operation.query, operation.value)]
    if not all(width.is_Integer for width in widths):
        return "heads of a width that is not known when compiling"
    dtype = program.buffers[operation.query.buffer].dtype
    if not tiles_for(max(map(int, widths)), dtype):
        return f"no tiles for heads of {max(widths)} elements of {dtype}"
    blocks = operation.blocks
    if blocks is not None and not (blocks.queries.is_Integer and blocks.keys.is_Integer):
        return "blocks of a size that is not known when compiling"
    return ""


def replacement(operation: AttentionBackward, program: Program, pair: Pair, precision: str) -> Replacement:
    """The two kernels and what is between them: a number for each query."""
    layout = Layout.contiguous(operation.query.layout.size[:3])
    delta = Buffer(f"{operation.name}_delta", torch.float32, operation.device, layout)
    ref = TensorRef(delta.name, layout)
    from dataclasses import replace

    extended = replace(program, buffers={**program.buffers, delta.name: delta})
    plan = make_plan(operation, extended, ref, precision)
    query, key, value = operation.outputs[:3]
    first = KernelCall(
        f"{operation.name}_query",
        operation.device,
        BackwardMeaning(operation.target, (0,), delta=True),
        operation.args,
        outputs=(query, delta.name),
        origins=operation.origins,
        source=write_query_gradient(plan, pair[0], f"{operation.name}_query"),
    )
    second = KernelCall(
        f"{operation.name}_key",
        operation.device,
        BackwardMeaning(operation.target, (1, 2)),
        (*operation.args, ref),
        outputs=(key, value),
        origins=operation.origins,
        source=write_key_gradients(plan, pair[1], f"{operation.name}_key"),
    )
    return Replacement((first, second), (delta,))


@dataclass(frozen=True)
class BackwardMeaning:
    """What a kernel computes: of the library call's results those numbered `results`, and delta if asked for."""

    target: Any
    results: tuple[int, ...]
    delta: bool = False

    @property
    def __name__(self) -> str:
        return f"{KIND} {', '.join(('query', 'key', 'value')[number] for number in self.results)}"

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        found = self.target(*args[:14])
        return (*(found[number] for number in self.results), *([_delta(*args[3:7])] if self.delta else []))


def _delta(
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    grad_out: torch.Tensor | None,
    grad_logsumexp: torch.Tensor | None,
) -> torch.Tensor:
    total = torch.zeros_like(logsumexp)
    if grad_out is not None:
        total = total + (out.float() * grad_out.float()).sum(-1)
    return total if grad_logsumexp is None else total - grad_logsumexp / math.log(2)


__all__ = ["KIND", "BackwardMeaning", "offer_attention_backward", "replacement"]
