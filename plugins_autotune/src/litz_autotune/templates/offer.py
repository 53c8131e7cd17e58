"""Offers: in, a contraction and its context; out, the choices that are worth measuring.

Each choice does the contraction with as many of its users as one kernel can; where core's fusion could have joined such
a user with something else, the contraction alone is offered too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from litz.ir import Buffer, KernelCall, Layout, Loop, Operation, Program, Range, Template
from litz.ir.build import load, reduce
from litz.ir.index import reduction_var
from litz.ir.node import Node
from litz.ir.transform import replace_loads
from litz.schedule.choices import Replacement
from litz_plugins import Choice, ChoiceContext, Estimate

from ..epilogue import ACCUMULATOR, Epilogue, fused
from ..subprogram import Meaning, cut
from .configs import Config, Shape, rank
from .gemm import BIAS, Gemm, Unsuitable, make_gemm
from .kernel import write_gemm

SEARCH = {"fast": 4, "default": 10, "exhaustive": 1000}
"""How many configurations are measured, by `autotune.search`."""


@dataclass(frozen=True)
class Offer:
    """What can be done for a contraction: choices, and (candidate, why not) of the rest."""

    choices: tuple[Choice, ...]
    rejected: tuple[tuple[str, str], ...]


def offer_gemm(template: Template, context: ChoiceContext) -> Offer:
    """Kernels for mm, addmm, bmm and baddbmm."""
    program: Program = context.program
    facts = dict(context.device.facts)
    try:
        gemm = make_gemm(template, program, tf32=bool(facts.get("tf32.matmul")))
    except Unsuitable as why:
        return Offer((), ((f"triton {template.kind}", str(why)),))
    shape = shape_of(gemm, program)
    if 0 in (shape.m, shape.n, shape.batch):
        return Offer((), ((f"triton {template.kind}", "the result is empty"),))
    ranked = rank(shape, context.device)
    count = SEARCH[str(context.options["autotune.search"])]
    epilogues = [*fused(program, template, gemm.epilogue)]
    choices: list[Choice] = []
    for epilogue, share in _variants(gemm.epilogue, epilogues, count):
        for config, estimate in ranked.best[:share]:
            choice = make_choice(replace(gemm, epilogue=epilogue), config, estimate, template, program)
            choices += [] if choice is None else [choice]
    return Offer(tuple(choices), ranked.rejected)


def _variants(alone: Epilogue, fused_ones: Sequence[Epilogue], count: int) -> Iterator[tuple[Epilogue, int]]:
    """(epilogue, how many configurations of it)."""
    if not fused_ones:
        yield alone, count
        return
    yield fused_ones[-1], count
    if fused_ones[-1].shared:
        yield alone, max(1, count // 2)


def shape_of(gemm: Gemm, program: Program) -> Shape:
    """The likely sizes of a product."""
    hint = program.hint
    result = [program.buffers[name] for name in gemm.epilogue.writes]
    read = {node.buffer for node in gemm.epilogue.loop.loads} - {ACCUMULATOR, BIAS}
    extra = sum(hint(program.buffers[name].nbytes) for name in read)
    extra += sum(hint(buffer.nbytes) for buffer in result[1:])
    return Shape(
        hint(gemm.batch),
        hint(gemm.m),
        hint(gemm.n),
        sum(hint(product.k) for product in gemm.products),
        gemm.dtype,
        gemm.dtype.itemsize,
        result[0].dtype.itemsize,
        extra,
        gemm.tf32,
    )


def make_choice(
    gemm: Gemm, config: Config, estimate: Estimate | None, template: Template, program: Program
) -> Choice | None:
    """One configuration as a choice; None where k cannot be split, as the epilogue reads a view."""
    epilogue = gemm.epilogue
    name = f"triton {template.kind} {config}"
    if epilogue.absorbed:
        name += f" with {len(epilogue.absorbed)} user{'s' if len(epilogue.absorbed) > 1 else ''}"
    if config.split == 1:
        call = kernel_call(gemm, config, template, program)
        return Choice(name, "template", Replacement((call,), absorbs=epilogue.absorbed), estimate)
    if BIAS in epilogue.buffers:
        return None
    operations, buffers = _split(gemm, config, template, program)
    return Choice(name, "template", Replacement(operations, buffers, epilogue.absorbed), estimate)


def kernel_call(gemm: Gemm, config: Config, template: Template, program: Program) -> KernelCall:
    """One kernel for the product and its epilogue."""
    replaced = [op for op in program.operations if op.name in {template.name, *gemm.epilogue.absorbed}]
    meaning = Meaning(cut(program, replaced, gemm.epilogue.writes))
    source = write_gemm(gemm, config, program, template.name)
    return KernelCall(
        template.name,
        template.device,
        meaning,
        meaning.arguments(),
        outputs=gemm.epilogue.writes,
        origins=gemm.epilogue.loop.origins,
        source=source,
    )


# Split k: partial sums in a kernel, their sum and the epilogue in one of core's own.


def _split(
    gemm: Gemm, config: Config, template: Template, program: Program
) -> tuple[tuple[Operation, ...], tuple[Buffer, ...]]:
    """The operations and the workspace. The partial sums are added in a fixed order, so results repeat bit for bit."""
    workspace = f"{template.outputs[0]}_parts"
    size = (sympy.Integer(config.split), gemm.batch, gemm.m, gemm.n)
    buffer = Buffer(workspace, gemm.accumulate, template.device, Layout.contiguous(size))
    extended = replace(program, buffers={**program.buffers, workspace: buffer})
    parts = _Parts(config.split, gemm.accumulate)
    source = write_gemm(gemm, config, extended, template.name, workspace)
    call = KernelCall(
        template.name,
        template.device,
        parts,
        template.args if template.kind in ("mm", "bmm") else template.args[1:],
        outputs=(workspace,),
        origins=template.origins,
        source=source,
    )
    return (call, _sum_of_parts(gemm.epilogue.loop, workspace, config.split, template)), (buffer,)


def _sum_of_parts(loop: Loop, workspace: str, split: int, template: Template) -> Loop:
    part = reduction_var(0)

    def change(node: Node) -> Node | None:
        if node.buffer != ACCUMULATOR:
            return None
        position = (part, *(() if len(node.index) == 3 else (sympy.Integer(0),)), *node.index)
        return reduce("sum", load(workspace, position, node.dtype))

    return replace(
        loop,
        name=f"{template.name}_sum",
        stores=replace_loads(loop.stores, change),
        reduction_ranges=(Range(part, sympy.Integer(split)),),
    )


@dataclass(frozen=True)
class _Parts:
    """The meaning of a split kernel: partial sums of shape (part, batch, m, n)."""

    split: int
    accumulate: torch.dtype

    @property
    def __name__(self) -> str:
        return f"matrix product in {self.split} parts"

    def __call__(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left = left.to(self.accumulate).reshape(-1, *left.shape[-2:])
        right = right.to(self.accumulate).reshape(-1, *right.shape[-2:])
        # Where the cuts lie does not matter: what reads the parts adds them up.
        chunks = zip(left.tensor_split(self.split, -1), right.tensor_split(self.split, -2))
        return torch.stack([a @ b for a, b in chunks])


__all__ = ["SEARCH", "Offer", "kernel_call", "make_choice", "offer_gemm", "shape_of"]
