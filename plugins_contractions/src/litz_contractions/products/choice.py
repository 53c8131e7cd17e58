"""A configuration of a product as a choice. In: a `Gemm` and a `Config`. Out: a `Choice` whose kernel's text is written
when it is needed: most candidates are only looked up.

A product whose depth is split into parts is one kernel, where the number of its tiles is known: the last program of a
tile adds the parts. Else there are two operations: partial sums in a kernel, their sum and the epilogue in core's.

Several products in one launch (`together`): programs do the first product's tiles, then the second's, and so on. A
launch that is over in a few microseconds spends half of them on getting started and on its last tiles; together the
products of one activation (queries, keys and values; gate and up) keep the device busy from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import sympy
import torch

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Extern, KernelCall, Layout, Loop, Program, Range, Template
from litz.ir.build import load, reduce
from litz.ir.index import reduction_var
from litz.ir.node import Node
from litz.ir.transform import replace_loads
from litz.schedule.choices import Recipe, Replacement
from litz.targets.triton.join import join_sources
from litz_plugins import Choice, Estimate

from ..epilogue import ACCUMULATOR, others
from ..module import TiledSource, call_of
from ..subprogram import Meaning, cut, filled
from .blocks import tiles_of, workspace_size
from .configs import Config
from .gemm import OPERANDS, Gemm
from .kernel import GemmPlan, make_plan, write_gemm


class Shared:
    """The values that all kernels of one product share, whatever their configuration, each made when first needed."""

    def __init__(self, gemm: Gemm, template: Template, program: Program) -> None:
        self._gemm, self._template, self._program = gemm, template, program

    @cached_property
    def plan(self) -> GemmPlan:
        """Returns the plan of the product's kernels, made when it is first needed."""
        return make_plan(self._gemm, self._program)

    @cached_property
    def meaning(self) -> Meaning:
        """Returns the product and its epilogue as a function of torch, made when it is first needed."""
        names = {self._template.name, *self._gemm.epilogue.absorbed}
        replaced = [op for op in self._program.operations if op.name in names]
        return Meaning(cut(self._program, replaced, self._gemm.epilogue.writes))

    @cached_property
    def key(self) -> str:
        """Returns a text of what decides the kernels' texts besides the problem and the configuration."""
        gemm = self._gemm
        made = [bool(each) for p in gemm.products for each in (p.left.prologue, p.right.prologue, p.scale)]
        return f"{made} {gemm.tf32} {gemm.epilogue.loop.is_reduction} {len(gemm.epilogue.absorbed)}"


def make_choice(
    gemm: Gemm,
    config: Config,
    estimate: Estimate | None,
    template: Template,
    program: Program,
    shared: Shared | None = None,
) -> Choice | None:
    """Returns one configuration as a choice; None where k cannot be split, as the epilogue reads a view. shared: what
    the choices of one product share."""
    shared = shared or Shared(gemm, template, program)
    absorbs = gemm.epilogue.absorbed
    name = f"triton {template.kind} {config}"
    if absorbs:
        name += f" with {others(program, template, absorbs)}"
    counted = bool(tiles_of(gemm, config).is_Integer)
    if config.split > 1 and not counted:
        made = any(p.scale or o.prologue for p in gemm.products for o in (p.left, p.right))
        plain = set(gemm.epilogue.buffers) == {ACCUMULATOR} and not gemm.epilogue.loop.is_reduction
        if not plain or len(gemm.products) != 1 or made:
            return None

    def make() -> Replacement:
        if config.split > 1 and not counted:
            return _split(gemm, config, template, program)
        return _whole(gemm, config, template, program, shared)

    return Choice(name, "template", Recipe(absorbs, f"{config!r} {shared.key}", make), estimate)


def _whole(gemm: Gemm, config: Config, template: Template, program: Program, shared: Shared) -> Replacement:
    """Returns one kernel for the product and its epilogue, with a buffer for partial sums where it has some."""
    plan, workspace, buffers = shared.plan if config.split == 1 else None, None, tuple[Buffer, ...]()
    if config.split > 1:
        workspace = f"{template.outputs[0]}_parts"
        layout = Layout.contiguous((workspace_size(gemm, config),))
        buffers = (Buffer(workspace, gemm.accumulate, template.device, layout),)
        program = replace(program, buffers={**program.buffers, workspace: buffers[0]})
    outputs = (*gemm.epilogue.writes, *(buffer.name for buffer in buffers))
    source = write_gemm(gemm, config, program, template.name, plan=plan, workspace=workspace)
    operations = (*shared.meaning.program.operations, *map(filled, buffers))
    meaning = Meaning(cut(program, operations, outputs), label=shared.meaning.__name__)
    call = call_of(template, meaning, meaning.arguments(), outputs, source)
    return Replacement((replace(call, origins=gemm.epilogue.loop.origins),), buffers, gemm.epilogue.absorbed)


def _split(gemm: Gemm, config: Config, template: Template, program: Program) -> Replacement:
    """Two operations and the workspace. The partial sums are added in a fixed order, so results repeat bit for bit."""
    workspace = f"{template.outputs[0]}_parts"
    size = (sympy.Integer(config.split), *(r.size for r in (*gemm.batch, *gemm.rows, *gemm.columns)))
    buffer = Buffer(workspace, gemm.accumulate, template.device, Layout.contiguous(size))
    extended = replace(program, buffers={**program.buffers, workspace: buffer})
    source = write_gemm(gemm, config, extended, template.name, workspace)
    operands = [argument_names(template)[name] for name in OPERANDS[template.kind]]
    given = (*operands, config.split, gemm.accumulate)
    parts = Extern(template.name, template.device, partial_products, given, outputs=(workspace,))
    meaning = Meaning(cut(extended, [parts], (workspace,)), label=f"matrix product in {config.split} parts")
    call = call_of(template, meaning, meaning.arguments(), (workspace,), source)
    total = _sum_of_parts(gemm, workspace, config.split, template)
    return Replacement((call, total), (buffer,), gemm.epilogue.absorbed)


def _sum_of_parts(gemm: Gemm, workspace: str, split: int, template: Template) -> Loop:
    loop, part = gemm.epilogue.loop, reduction_var(0)
    walked = tuple(r.var for r in (*gemm.batch, *gemm.rows, *gemm.columns))

    def change(node: Node) -> Node | None:
        if node.buffer != ACCUMULATOR:
            return None
        return reduce("sum", load(workspace, (part, *walked), node.dtype))

    return replace(
        loop,
        name=f"{template.name}_sum",
        stores=replace_loads(loop.stores, change),
        reduction_ranges=(Range(part, sympy.Integer(split)),),
    )


def partial_products(left: torch.Tensor, right: torch.Tensor, split: int, accumulate: torch.dtype) -> torch.Tensor:
    """Returns the sums of so many parts of the depth, of shape (part, m, n) or (part, batch, m, n)."""
    # Where the cuts lie does not matter: what reads the parts adds them up.
    chunks = zip(left.to(accumulate).tensor_split(split, -1), right.to(accumulate).tensor_split(split, -2))
    return torch.stack([a @ b for a, b in chunks])


def together(replacements: Sequence[Replacement], names: Sequence[str], program: Program) -> Replacement | None:
    """Returns one replacement for several products; names: of the products, in the same order. None where kernels
    differ in what a launch sets, or sizes are symbols."""
    calls = [replacement.operations[0] for replacement in replacements]
    if any(len(each.operations) != 1 for each in replacements):
        return None
    kernels = [call for call in calls if isinstance(call, KernelCall)]
    source = join_sources([call.source for call in kernels], calls[0].name) if len(kernels) == len(calls) else None
    if source is None:
        return None
    assert isinstance(source, TiledSource)
    source = replace(source, tiles=tuple(each for call in kernels for each in call.source.tiles))
    outputs = tuple(name for each in kernels for name in each.writes)
    buffers = tuple(buffer for each in replacements for buffer in each.buffers)
    meanings = [each.target for each in kernels if isinstance(each.target, Meaning)]
    operations = [operation for each in meanings for operation in each.program.operations]
    known = replace(program, buffers={**program.buffers, **{buffer.name: buffer for buffer in buffers}})
    label = " and ".join(each.target_name for each in kernels)
    meaning = Meaning(cut(known, operations, outputs), label=label)
    origins = tuple(dict.fromkeys(origin for each in kernels for origin in each.origins))
    call = replace(
        kernels[0], target=meaning, args=meaning.arguments(), outputs=outputs, origins=origins, source=source
    )
    absorbs = (*names[1:], *(name for each in replacements for name in each.absorbs))
    return Replacement((call,), buffers, tuple(dict.fromkeys(absorbs)))
