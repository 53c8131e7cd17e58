"""A plugin out of litz's tree adds a kind of contraction: the kind as data, the ops that become the kind, and a kernel.

The kind is the max-plus product of matrices: result[i, j] is the greatest of a[i, k] + b[k, j]. No file of litz
names the kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from litz import report as reports
from litz.cost import count_work
from litz.driver.builtin import builtin_plugins
from litz.ir import Contraction, Extern, Loop, Part, Program, Range, Store, Template, TensorRef
from litz.ir.build import call, load, reduce
from litz.ir.index import loop_var, reduction_var
from litz.ir.interpret import interpret
from litz.ir.printer import objects_in
from litz.ir.verify import verify
from litz.lower import LoweringContext, Tensor, fallback
from litz.pipeline import compile_backend
from litz_plugins import Choice, TemplateSpec, hookimpl, make_plugins
from litz_testing.parse import parse_program

KIND = "own_kind.maxplus"


# ----------------------------------------------------------------------------------------------------------- the plugin


@dataclass(frozen=True)
class Operands(Part):
    """The matrices as they are read."""

    left: TensorRef
    right: TensorRef


@dataclass(frozen=True)
class MaxPlus(Template):
    """The product as data: the library's call, and its matrices."""

    operands: Operands | None = None

    def contraction(self, program: Program) -> Contraction | None:
        (m, k), (_, n) = (map(program.hint, ref.layout.size) for ref in self.refs)
        return Contraction("matmul", 2.0 * m * n * k, program.buffers[self.refs[0].buffer].dtype, m * n)


def lower_maxplus(ctx: LoweringContext, a: Tensor, b: Tensor) -> Any:
    operands = Operands(ctx.ref(a), ctx.ref(b))
    return fallback(ctx, (a, b), {}, operation=MaxPlus, kind=KIND, effect=False, operands=operands)


def offer_maxplus(operation: MaxPlus, context: Any) -> list[Choice]:
    """A loop, where the matrices are whole buffers."""
    left, right = operation.refs
    dtype = context.program.buffers[left.buffer].dtype
    (rows, depth), columns = left.layout.size, right.layout.size[1]
    i, j, k = loop_var(0), loop_var(1), reduction_var(0)
    summed = call("add", load(left.buffer, (i, k), dtype), load(right.buffer, (k, j), dtype))
    store = Store(str(operation.outputs[0]), (i, j), reduce("max", summed))
    ranges = Range(i, rows), Range(j, columns)
    loop = Loop(operation.name, operation.device, ranges, (Range(k, depth),), (store,), operation.origins)
    return [Choice("max-plus as a loop", "template", loop)]


def plugin(own_kinds: tuple[str, ...] = (KIND,)) -> SimpleNamespace:
    template = TemplateSpec("max-plus", (KIND,), offer_maxplus, own_kinds=own_kinds)
    return SimpleNamespace(
        litz_register_lowerings=hookimpl(lambda: {torch.ops.own_kind.maxplus.default: lower_maxplus}),
        litz_register_templates=hookimpl(lambda options: [template]),
        litz_select_choice=hookimpl(lambda choices, context: choices[-1]),
    )


# ------------------------------------------------------------------------------------------------------------ the tests


@pytest.fixture(scope="module", autouse=True)
def op() -> Iterator[None]:
    with torch.library._scoped_library("own_kind", "FRAGMENT") as library:
        library.define("maxplus(Tensor a, Tensor b) -> Tensor")
        library.impl("maxplus", lambda a, b: (a[:, :, None] + b).amax(1), "CPU")
        torch.library.register_fake("own_kind::maxplus", lambda a, b: a.new_empty(a.shape[0], b.shape[1]), lib=library)
        yield


def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.ops.own_kind.maxplus(a * 2, b).relu()


A, B = torch.randn(12, 7, generator=torch.Generator().manual_seed(0)), torch.ones(7, 5).cumsum(1)


def compiled(*extra: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    plugins = make_plugins(builtin_plugins(), extra=[("own_kind", each) for each in extra], entry_points=())
    given = {"graph_cache": False, "cpp.qualify": False, **options}
    backend = lambda module, inputs: compile_backend(module, inputs, options=given, plugins=plugins)
    with reports.collect() as found:
        result = torch.compile(function, backend=backend)(A, B)
    torch.testing.assert_close(result, function(A.double(), B.double()).float())
    return found[0]


def test_its_kernel_runs_in_the_place_of_the_call() -> None:
    report = compiled(plugin())
    (record,) = report.contractions
    assert (record.op, record.chosen.name) == ("own_kind.maxplus.default", "max-plus as a loop")
    assert not report.program.externs and len(report.program.loops) >= 1


def test_without_the_plugin_it_is_a_call() -> None:
    report = compiled()
    (found,) = report.program.externs
    assert type(found) is Extern and not report.contractions


def test_it_is_printed_read_verified_run_and_costed_by_its_fields() -> None:
    chosen = plugin()
    chosen.litz_select_choice = hookimpl(lambda choices, context: choices[0], specname="litz_select_choice")
    program = compiled(chosen).program
    (found,) = program.externs
    assert isinstance(found, MaxPlus) and "is MaxPlus" in str(program) and "operands = Operands(" in str(program)
    assert parse_program(str(program), objects_in(program)) == program
    verify(program)
    (result,) = interpret(program, [A, B])
    torch.testing.assert_close(result, function(A, B))
    work = count_work(found, program)
    assert (work.kind, work.total_flops) == ("matmul", 2.0 * 12 * 7 * 5)


def test_a_kind_that_nothing_makes_is_an_error() -> None:
    with pytest.raises(BackendCompilerFailed, match=r"(?s)no contraction is of kind 'own_kind.maxplus'.*own_kinds"):
        compiled(plugin(own_kinds=()))
