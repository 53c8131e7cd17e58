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
from dataclasses import dataclass, replace
from functools import cached_property, partial

import sympy
import torch

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Extern, KernelCall, Layout, Program, Range, Template
from litz.ir.build import load, reduce
from litz.ir.index import Expr, reduction_var
from litz.ir.transform import replace_loads
from litz.schedule.choices import Recipe, Replacement
from litz.targets.triton.join import join_sources
from litz_plugins import Choice, Estimate

from ..epilogue import ACCUMULATOR, others
from ..module import TiledSource
from ..subprogram import Meaning, call_of, cut, filled
from .blocks import tiles_of, workspace_size
from .configs import Config
from .gemm import OPERANDS, Gemm
from .kernel import GemmPlan, make_plan, write_gemm


@dataclass(frozen=True)
class Kernels:
    """The kernels of one product, one for each configuration. What they share is made when it is first needed."""

    gemm: Gemm
    template: Template
    program: Program

    @cached_property
    def plan(self) -> GemmPlan:
        """Returns the plan of the kernels."""
        return make_plan(self.gemm, self.program)

    @cached_property
    def meaning(self) -> Meaning:
        """Returns the product and its epilogue as a function of torch."""
        names = {self.template.name, *self.gemm.epilogue.absorbed}
        replaced = [op for op in self.program.operations if op.name in names]
        return Meaning(cut(self.program, replaced, self.gemm.epilogue.loop.writes))

    @cached_property
    def key(self) -> str:
        """Returns a text of what decides the kernels' texts besides the problem and the configuration."""
        gemm = self.gemm
        made = [bool(each) for p in gemm.products for each in (p.left.prologue, p.right.prologue, p.scale)]
        return f"{made} {gemm.tf32} {gemm.epilogue.loop.is_reduction} {len(gemm.epilogue.absorbed)}"

    def choice(self, config: Config, estimate: Estimate | None = None) -> Choice | None:
        """Returns one configuration as a choice; None where k cannot be split beside what the kernel does."""
        gemm, template = self.gemm, self.template
        absorbs, make = gemm.epilogue.absorbed, self._whole
        name = f"triton {template.kind} {config}"
        if absorbs:
            name += f" with {others(self.program, template, absorbs)}"
        if config.split > 1 and not tiles_of(gemm, config).is_Integer:
            made = any(p.scale or o.prologue for p in gemm.products for o in (p.left, p.right))
            plain = set(gemm.epilogue.buffers) == {ACCUMULATOR} and not gemm.epilogue.loop.is_reduction
            if not plain or len(gemm.products) != 1 or made:
                return None
            make = self._split
        return Choice(name, "template", Recipe(absorbs, f"{config!r} {self.key}", partial(make, config)), estimate)

    def _room(self, size: tuple[Expr, ...]) -> tuple[Buffer, Program]:
        """The buffer of partial sums, and the program with it."""
        name, layout = f"{self.template.outputs[0]}_parts", Layout.contiguous(size)
        room = Buffer(name, self.gemm.accumulate, self.template.device, layout)
        return room, replace(self.program, buffers={**self.program.buffers, name: room})

    def _whole(self, config: Config) -> Replacement:
        """One kernel for the product and its epilogue, with a buffer for partial sums where it has some."""
        gemm, template, meaning, program = self.gemm, self.template, self.meaning, self.program
        plan, workspace, buffers = self.plan if config.split == 1 else None, None, tuple[Buffer, ...]()
        if config.split > 1:
            room, program = self._room((workspace_size(gemm, config),))
            workspace, buffers = room.name, (room,)
            operations = (*meaning.program.operations, filled(room))
            made = cut(program, operations, (*gemm.epilogue.loop.writes, workspace))
            meaning = Meaning(made, label=meaning.__name__)
        source = write_gemm(gemm, config, program, template.name, plan=plan, workspace=workspace)
        call = replace(call_of(template, meaning, source), origins=gemm.epilogue.loop.origins)
        return Replacement((call,), buffers, gemm.epilogue.absorbed)

    def _split(self, config: Config) -> Replacement:
        """Two operations and the workspace. The partial sums are added in a fixed order, so results repeat bit for
        bit."""
        gemm, template, ranges = self.gemm, self.template, (*self.gemm.batch, *self.gemm.rows, *self.gemm.columns)
        room, program = self._room((sympy.Integer(config.split), *(r.size for r in ranges)))
        operands = [argument_names(template)[name] for name in OPERANDS[template.kind]]
        given = (*operands, config.split, gemm.accumulate)
        parts = Extern(template.name, template.device, partial_products, given, outputs=(room.name,))
        meaning = Meaning(cut(program, [parts], (room.name,)), label=f"matrix product in {config.split} parts")
        call = call_of(template, meaning, write_gemm(gemm, config, program, template.name, room.name))
        loop, part = gemm.epilogue.loop, Range(reduction_var(0), sympy.Integer(config.split))
        total = reduce("sum", load(room.name, (part.var, *(r.var for r in ranges)), gemm.accumulate))
        stores = replace_loads(loop.stores, lambda node: total if node.buffer == ACCUMULATOR else None)
        added = replace(loop, name=f"{template.name}_sum", stores=stores, reduction_ranges=(part,))
        return Replacement((call, added), (room,), gemm.epilogue.absorbed)


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
    meaning = Meaning(cut(known, operations, outputs), label=" and ".join(each.target_name for each in kernels))
    origins = tuple(dict.fromkeys(origin for each in kernels for origin in each.origins))
    call = replace(call_of(kernels[0], meaning, source), origins=origins)
    absorbs = (*names[1:], *(name for each in replacements for name in each.absorbs))
    return Replacement((call,), buffers, tuple(dict.fromkeys(absorbs)))
