"""Templates' choices: what takes a contraction's place, alone or with the operations that use its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz import pipeline
from litz import report as reports
from litz.codegen.kernel_plan import plan_kernel
from litz.driver.builtin import Core, builtin_plugins
from litz.driver.template_choice import choose_contractions
from litz.ir import Buffer, Extern, KernelCall, Layout, Loop, Program, Range, Store, Template, TensorRef
from litz.ir.build import call, load, reduce
from litz.ir.index import loop_var, reduction_var
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.pipeline import make_compiler
from litz.report.log import Log
from litz.schedule.choices import Replacement, by_estimate, needed_outside, substituted
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz.targets.cpp.codegen import CppCodegen
from litz_plugins import (
    VETOED,
    Choice,
    ChoiceContext,
    CodegenContext,
    Estimate,
    Gate,
    TemplateSpec,
    hookimpl,
)
from litz_plugins.manager import make_plugins

CPU = torch.device("cpu")


def compiled(fn: Callable[..., Any], make: Callable[[Any, ChoiceContext], list[Choice]]) -> Callable[..., Any]:
    """`fn` compiled with a template for mm whose first choice is taken."""

    class Plugin:
        @hookimpl
        def litz_register_templates(self, options: Any) -> Sequence[TemplateSpec]:
            return [TemplateSpec("mine", ("mm",), make)]

        @hookimpl
        def litz_select_choice(self, choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
            context.record(choices[-1].name, "it is mine", plugin="mine")
            return choices[-1]

    torch._dynamo.reset()
    plugins = make_plugins(builtin_plugins(), extra=[("mine", Plugin())], entry_points=())
    options = {"debug": True}
    return torch.compile(
        fn, backend=lambda gm, inputs: pipeline.compile_backend(gm, inputs, options=options, plugins=plugins)
    )


def users_of(program: Program, name: str) -> list[Any]:
    return [op for op in program.operations if name in op.reads]


def mm_relu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b)


def test_a_choice_may_do_the_work_of_users_too() -> None:
    def make(operation: Any, context: ChoiceContext) -> list[Choice]:
        (user,) = users_of(context.program, operation.outputs[0])
        extern = Extern(operation.name, operation.device, mm_relu, operation.args, outputs=user.writes)
        return [Choice("mm and relu", "template", Replacement((extern,), absorbs=(user.name,)))]

    a, b = torch.randn(4, 5), torch.randn(5, 6)
    with reports.collect() as collected:
        out = compiled(lambda a, b: (a @ b).relu(), make)(a, b)
    torch.testing.assert_close(out, (a @ b).relu())
    assert collected[0].kernels_after == 0
    reasons = [d.reason for d in collected[0].decisions if d.chosen == "mm and relu"]
    assert reasons == ["it is mine", "chosen by mine"]


def test_a_replacement_may_be_several_operations_with_a_workspace() -> None:
    def make(operation: Any, context: ChoiceContext) -> list[Choice]:
        name = operation.outputs[0]
        out = context.program.buffers[name]
        workspace = replace(out, name="doubled")
        first = Extern("twice", CPU, lambda a, b: 2 * (a @ b), operation.args, outputs=("doubled",))
        ref = TensorRef("doubled", Layout(out.layout.size, out.layout.stride))
        second = Extern("halve", CPU, lambda x: x / 2, (ref,), outputs=(name,))
        return [Choice("in two", "template", Replacement((first, second), (workspace,)))]

    a, b = torch.randn(4, 5), torch.randn(5, 6)
    torch.testing.assert_close(compiled(lambda a, b: (a @ b).cos(), make)(a, b), (a @ b).cos())


def test_a_kernel_call_is_built_and_launched_like_cores_own_kernels() -> None:
    def make(operation: Any, context: ChoiceContext) -> list[Choice]:
        program = context.program
        (out,) = operation.outputs
        left, right = operation.args
        i, j, r = loop_var(0), loop_var(1), reduction_var(0)
        product = call("mul", load(left.buffer, (i, r), torch.float32), load(right.buffer, (r, j), torch.float32))
        ranges = tuple(Range(v, s) for v, s in zip((i, j), program.buffers[out].layout.size))
        inner = (Range(r, left.layout.size[1]),)
        loop = Loop("k", CPU, ranges, inner, (Store(out, (i, j), reduce("sum", product)),))
        source = CppCodegen().generate(
            plan_kernel(Kernel("k", loop), program),
            CodegenContext(context.options, context.target, program, context.cache),
        )
        kernel = KernelCall(operation.name, CPU, torch.mm, operation.args, outputs=(out,), source=source)
        return [Choice("a kernel", "template", kernel)]

    a, b = torch.randn(4, 5), torch.randn(5, 6)
    with reports.collect() as collected:
        out = compiled(lambda a, b: (a.sin() @ b).cos(), make)(a, b)
    torch.testing.assert_close(out, (a.sin() @ b).cos())
    (kernel,) = (step for step in collected[0].steps if step.what == "mm")
    assert kernel.kind == "kernel"
    assert not any(step.kind in ("extern", "template") for step in collected[0].steps)


# Where a replacement may stand.


def program_of(*operations: Any, outputs: Sequence[str]) -> Program:
    four = Layout.contiguous((4, 4))
    names = {name for op in operations for name in (*op.reads, *op.writes)}
    written = {name for op in operations for name in op.writes}
    buffers = {
        name: Buffer(name, torch.float32, CPU, four, "temporary" if name in written else "input")
        for name in sorted(names)
    }
    inputs = tuple(sorted(names - written))
    program = Program("p", inputs, buffers, operations, tuple(TensorRef(name, four) for name in outputs))
    verify(program)
    return program


def ref(name: str) -> TensorRef:
    return TensorRef(name, Layout.contiguous((4, 4)))


def mm(name: str, a: str, b: str, out: str) -> Template:
    return Template(name, CPU, torch.ops.aten.mm.default, (ref(a), ref(b)), outputs=(out,), kind="mm")


def pointwise(name: str, out: str, *names: str) -> Loop:
    i, j = loop_var(0), loop_var(1)
    value = load(names[0], (i, j), torch.float32)
    for other in names[1:]:
        value = call("add", value, load(other, (i, j), torch.float32))
    four = ref("x").layout.size
    return Loop(name, CPU, (Range(i, four[0]), Range(j, four[1])), (), (Store(out, (i, j), call("cos", value)),))


def fused(outputs: tuple[str, ...], *inputs: str) -> Extern:
    return Extern("fused", CPU, lambda *args: args, tuple(map(ref, inputs)), outputs=outputs)


def test_it_stands_where_the_last_of_what_it_replaces_stood() -> None:
    program = program_of(
        mm("m", "a", "b", "c"), pointwise("other", "d", "a"), pointwise("use", "e", "c", "d"), outputs="e"
    )
    template = program.operations[0]
    after = substituted(program, template, Replacement((fused(("e",), "a", "b", "d"),), absorbs=("use",)))
    assert [op.name for op in after.operations] == ["other", "fused"]
    verify(after)


def test_nothing_between_may_depend_on_what_moves() -> None:
    program = program_of(
        mm("m", "a", "b", "c"), pointwise("other", "d", "c"), pointwise("use", "e", "c", "d"), outputs="e"
    )
    template = program.operations[0]
    with pytest.raises(ValueError, match="needs a result that depends on m, and one operation would replace both"):
        substituted(program, template, Replacement((fused(("e", "c"), "a", "b", "d"),), absorbs=("use",)))


def test_what_others_read_must_be_written() -> None:
    program = program_of(mm("m", "a", "b", "c"), pointwise("use", "e", "c"), outputs="ec")
    assert needed_outside(program, {"m", "use"}) == {"c", "e"}
    with pytest.raises(ValueError, match="writes c, e; e"):
        substituted(program, program.operations[0], Replacement((fused(("e",), "a", "b"),), absorbs=("use",)))


class Offering:
    """A plugin that offers one choice for each product, and takes it. payload: of the choice for a product. asked: for
    which products."""

    def __init__(self, payload):
        self.payload, self.asked = payload, []

    @hookimpl
    def litz_register_templates(self, options):
        return [TemplateSpec("one", ("mm",), self.make_choices)]

    def make_choices(self, operation, context):
        self.asked.append(operation.name)
        return [Choice("mine", "template", self.payload(operation))]

    @hookimpl
    def litz_select_choice(self, choices, context):
        return choices[1]


def chosen(program, plugin, **options):
    """The program with its products decided by a plugin, and the decisions."""
    known = (("core", Core()), ("me", plugin))  # as core's own: what it offers is not marked as a plugin's
    compiler, log = make_compiler(None, options, make_plugins(known, entry_points=())), Log()
    log.gate = Gate("g", compiler.vetoes)
    return choose_contractions(program, compiler, log), log


def test_an_absorbed_contraction_is_not_asked_about_again() -> None:
    program = program_of(mm("m1", "a", "b", "c"), mm("m2", "a", "b", "d"), pointwise("use", "e", "c", "d"), outputs="e")
    plugin = Offering(lambda operation: Replacement((fused(("e",), "a", "b"),), absorbs=("m2", "use")))
    after, _ = chosen(program, plugin)
    assert plugin.asked == ["m1"] and [op.name for op in after.operations] == ["fused"]


def test_a_payload_that_is_no_operation_is_an_error_that_names_the_choice() -> None:
    program = program_of(mm("m", "a", "b", "c"), outputs="c")
    with pytest.raises(TypeError, match="'mine' for m: the payload is str, not an operation"):
        chosen(program, Offering(lambda operation: "text"))


def test_a_vetoed_choice_is_the_library_call() -> None:
    program = program_of(mm("m", "a", "b", "c"), mm("n", "a", "c", "d"), outputs="cd")
    plugin = Offering(lambda operation: fused(operation.outputs, "a", "b"))
    after, log = chosen(program, plugin, veto=("g:choose/m",))
    assert [op.name for op in after.operations] == ["m", "fused"]
    assert [(note.key, note.reason, note.plugin) for note in log.decisions] == [
        ("g:choose/m", VETOED, "core"),
        ("g:choose/n", "chosen by me", "me"),
    ]
    assert list(log.gate.taken) == ["g:choose/n"] and list(log.gate.left_out) == ["g:choose/m"]


def test_kernel_calls_print_and_interpret() -> None:
    kernel = KernelCall("m", CPU, torch.mm, (ref("a"), ref("b")), outputs=("c",))
    program = program_of(kernel, outputs="c")
    assert "kernel m c = @mm(" in str(program)
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(interpret(program, [a, b])[0], a @ b)


LIBRARY_US, USER_US = Estimate(20.0, 10.0, 30.0, "told"), Estimate(5.0, 4.0, 6.0, "told")


@pytest.mark.parametrize(
    ("estimates", "expected"),
    [
        ([Estimate(8.0, 7.0, 9.5, "told")], 1),  # at its worst below the library at its best
        ([Estimate(8.0, 7.0, 10.0, "told")], None),
        ([None], None),
        ([Estimate(9.0, 8.0, 9.5, "told"), Estimate(6.0, 5.0, 7.0, "told")], 2),  # the one that saves more
    ],
)
def test_without_a_measurement_the_estimate_decides(estimates: list[Estimate | None], expected: int | None) -> None:
    program = program_of(mm("m", "a", "b", "c"), pointwise("use", "d", "c", "c"), outputs="d")
    noted: list[Any] = []
    template = program.operations[0]
    known = lambda operation: LIBRARY_US if operation is template else USER_US
    context = ChoiceContext(template, target_of(CPU), {}, program, note=noted.append, estimate=known)
    offers = [Choice(f"t{n}", "template", template, estimate) for n, estimate in enumerate(estimates, 1)]
    choices = [Choice("library", "extern", template), *offers]
    found = by_estimate(choices, context)
    assert found is (None if expected is None else choices[expected])
    assert len(noted) == (estimates != [None]) and all("µs" in decision.reason for decision in noted)


def test_what_a_choice_absorbs_counts_as_saved() -> None:
    """13 µs at worst is more than the library alone at best, and less than it with its user."""
    program = program_of(mm("m", "a", "b", "c"), pointwise("use", "d", "c", "c"), outputs="d")
    template = program.operations[0]
    known = lambda operation: LIBRARY_US if operation is template else USER_US
    context = ChoiceContext(template, target_of(CPU), {}, program, estimate=known)
    both = Choice("both", "template", Replacement((template,), absorbs=("use",)), Estimate(12.0, 11.0, 13.0, "told"))
    assert by_estimate([Choice("library", "extern", template), both], context) is both
