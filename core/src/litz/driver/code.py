"""From an ExecutionPlan to the code of a graph: kernels as text, all of it as data, joined with what launches them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from litz.codegen.facts import entry_facts
from litz.codegen.kernel_plan import KernelPlan, plan_kernel
from litz.codegen.known import Known
from litz.codegen.plan_rules import verify_plan
from litz.codegen.wrapper import Named, WrapperSource, named_of
from litz.driver.code_loading import graph_of, join_code, write_code
from litz.driver.compiler import Compiler
from litz.driver.kernel_loading import Loads, load_kernels, said_from
from litz.errors import CodegenError, VerifyError
from litz.execution import ExecutionPlan
from litz.execution.inputs import inputs_written_over
from litz.ir import KernelCall, Program
from litz.runtime.compiled_graph import CompiledGraph
from litz.runtime.graph_entry import GraphEntry, StoredKernel
from litz.schedule.schedule import Kernel
from litz_plugins import Codegen, CodegenContext, Decision, JoiningCodegen, KernelSource, TargetSpec, Verdict
from litz_plugins.errors import LitzError, describe
from litz_plugins.records import SafeForms
from litz_plugins.strict import of_type

Begin = Callable[[KernelSource, str, Program], object]
"""Is told of a kernel's source, its device and its program."""


def generate(
    plan: ExecutionPlan,
    compiler: Compiler,
    note: Callable[[Decision], None] = lambda decision: None,
    begin: Begin = lambda source, device, program: None,
) -> dict[str, KernelSource]:
    """Returns the source of every kernel, by name; those of all cases where the plan has such. What builds kernels has
    been qualified for them by then (`TargetSpec.qualify`); `note` takes what it is not trusted with. begin: called with
    each source as soon as it is known, the device that it is for, and its program; where what builds it is not trusted
    with a source as it is, that comes again in another form."""
    asked: dict[torch.device, set[str]] = {}

    def trusting(device: torch.device) -> SafeForms:
        def note_constructs(constructs: Collection[str]) -> Mapping[str, str | None]:
            asked.setdefault(device, set()).update(constructs)
            return {}

        return note_constructs

    sources = _generate(plan, compiler, trusting, begin)
    wrong = {device: _qualified(device, constructs, compiler) for device, constructs in asked.items() if constructs}
    if not any(verdict.safe_forms for verdict in wrong.values()):
        return sources
    for verdict in wrong.values():
        for decision in verdict.decisions():
            note(decision)
    known = {device: verdict.safe_forms for device, verdict in wrong.items()}
    return _generate(plan, compiler, lambda device: lambda constructs: known.get(device, {}), begin)


def _qualified(device: torch.device, constructs: Collection[str], compiler: Compiler) -> Verdict:
    """Returns the verdict of those that build a device's kernels on these constructs: which they get wrong."""
    spec = compiler.specs[device.type]
    if spec.qualify is None:
        return Verdict("")
    context = CodegenContext(compiler.options, compiler.target_of(device), cache=compiler.cache)
    with compiler.plugins.blaming(spec.plugin, f"qualify of target {spec.type!r}"):
        return of_type(Verdict)(spec.qualify(frozenset(constructs), context))


def _generate(
    plan: ExecutionPlan, compiler: Compiler, safe_forms: Callable[[torch.device], SafeForms], begin: Begin
) -> dict[str, KernelSource]:
    steps = [(step, variant) for variant in plan.functions for step in variant.launched]
    sources = {step.name: step.source for step, _ in steps if isinstance(step, KernelCall)}
    known = Known()
    for step, variant in steps:
        if step.name in sources:
            begin(sources[step.name], str(step.device), variant.program)
    for kernel, variant in steps:
        if isinstance(kernel, KernelCall):
            continue
        spec = compiler.specs.get(kernel.device.type)
        if spec is None:
            raise CodegenError(
                kernel.name,
                f"litz generates no code for devices of type {kernel.device.type!r}",
                device=str(kernel.device),
                todo=f"move the model to one of {', '.join(sorted(compiler.specs))}, or install a plugin that has a "
                "target for it (litz_register_targets); to run it as it is: options={'fallback': 'eager'}",
            )
        with said_from(variant.program.provenance.text(kernel.origins)):
            try:
                target, safe = compiler.target_of(kernel.device), safe_forms(kernel.device)
                context = CodegenContext(compiler.options, target, variant.program, compiler.cache, safe_forms=safe)
                sources[kernel.name] = _written(kernel, context, spec, compiler, known)
            except Exception as cause:
                if isinstance(cause, LitzError):
                    raise
                problem = f"no code for {' + '.join(kernel.origins)}: {describe(cause)}"
                raise CodegenError(kernel.name, problem, device=str(kernel.device)) from cause
        begin(sources[kernel.name], str(kernel.device), variant.program)
    return sources


def _written(
    kernel: Kernel, context: CodegenContext, spec: TargetSpec, compiler: Compiler, known: Known
) -> KernelSource:
    """The source of one launch."""

    def write(part: Kernel) -> KernelSource:
        plan = plan_kernel(part, context.program)
        complaints = list(verify_plan(plan)) if compiler.options.debug else []
        if complaints:
            raise VerifyError("kernel plan", part.name, complaints)
        with compiler.plugins.blaming(spec.plugin, f"generate of target {spec.type!r}", node=part.name):
            return _text(spec.codegen.generate(plan, context), plan)

    remembers = not compiler.options.debug and getattr(spec.codegen, "names_nothing", False)
    parts = [known.source(part, context, write) if remembers else write(part) for part in kernel.parts]
    if len(parts) == 1:
        return parts[0]
    with compiler.plugins.blaming(spec.plugin, f"join of target {spec.type!r}", node=kernel.name):
        return _join(parts, kernel, spec.codegen)


def _text(source: Any, plan: KernelPlan) -> KernelSource:
    """Returns what a code generator wrote. TypeError, ValueError for what is no source of the kernel."""
    found = of_type(KernelSource)(source)
    if found.name != plan.name:
        raise ValueError(f"returned the source of {found.name!r}, where {plan.name!r} was asked for")
    return found


def _join(parts: list[KernelSource], kernel: Kernel, codegen: Codegen) -> KernelSource:
    if not isinstance(codegen, JoiningCodegen):
        problem = 'its target has the ability "beside", and its code generator no method `join`'
        raise CodegenError(kernel.name, problem, device=str(kernel.device))
    joined: KernelSource = codegen.join(parts, kernel.name)
    return joined


def describe_code(
    plan: ExecutionPlan,
    sources: Mapping[str, KernelSource],
    wrapper: WrapperSource,
    compiler: Compiler,
    named: Named | None = None,
) -> GraphEntry:
    """Returns what the plan became, as data; its kernels' arguments are buffers' names and the sizes' expressions.
    wrapper: without a word of whose model it is. named: what equal graphs can call as they do."""
    kernels = {}
    for variant in plan.functions:
        for kernel in variant.launched:
            kernels[kernel.name] = StoredKernel(sources[kernel.name], str(kernel.device))
    return GraphEntry(
        wrapper=wrapper.text,
        objects=wrapper.objects,
        kernels=kernels,
        facts=entry_facts(plan),
        overwritten=inputs_written_over(plan),
        named=(named or named_of(plan, wrapper, {})).to_data(),
    )


def other_files(plan: ExecutionPlan) -> dict[str, str]:
    """Returns the texts to write beside an entry's own files, by name: for readers."""
    return {"schedule.txt": "\n".join(map(str, plan.variants))}


def build(
    plan: ExecutionPlan, sources: Mapping[str, KernelSource], wrapper: WrapperSource, compiler: Compiler
) -> CompiledGraph:
    """Builds and loads a plan's kernels and wrapper, and stores no code for other compiles."""
    entry = describe_code(plan, sources, wrapper, compiler)
    with Loads(compiler) as loads:
        loaded = load_kernels(loads, entry, programs_of(plan))
    folder = write_code(entry, other_files(plan), compiler)
    return graph_of(join_code(entry, folder, loaded, compiler), plan.program.name, lambda: wrapper.words, compiler)


def programs_of(plan: ExecutionPlan) -> dict[str, Program]:
    """Returns the program of each kernel, by the kernel's name."""
    return {kernel.name: variant.program for variant in plan.functions for kernel in variant.launched}
