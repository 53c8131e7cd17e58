"""From an ExecutionPlan to the code of a graph: kernels as text, all of it as data, joined with what launches them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function

from litz.cache.disk import digest
from litz.codegen.facts import entry_facts
from litz.codegen.kernel_plan import KernelPlan, plan_kernel
from litz.codegen.known import Known
from litz.codegen.plan_rules import verify_plan
from litz.codegen.wrapper import Named, Words, WrapperSource, annotated, named_of
from litz.codegen.wrapper.words import RANGE, ranged
from litz.driver.compiler import Compiler
from litz.driver.kernel_loading import Launchers, Loads, load_kernels, said_from
from litz.errors import CodegenError, VerifyError
from litz.execution import ExecutionPlan
from litz.execution.inputs import inputs_written_over
from litz.graph_cache.key import Key
from litz.ir import KernelCall, Program
from litz.runtime.compiled_graph import CompiledGraph, Entry, Lazily, Site, load_wrapper
from litz.runtime.graph_code import GraphCode, Said, load_code
from litz.runtime.graph_entry import ENTRY, KEY, WRAPPER, GraphEntry, StoredKernel, write_entry
from litz.runtime.pool import pool_for
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
    """What those that build a device's kernels get wrong of these constructs."""
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
                context = replace(_codegen_context(kernel, variant, compiler), safe_forms=safe_forms(kernel.device))
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
    """What a code generator wrote. TypeError, ValueError for what is no source of the kernel."""
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


def load_entry(entry: GraphEntry, folder: Path, compiler: Compiler) -> GraphCode:
    """Returns the code of an entry whose texts lie in a folder; builds its kernels or finds them."""
    with Loads(compiler) as loads:
        return join_code(entry, folder, load_kernels(loads, entry, {}), compiler)


def join_code(entry: GraphEntry, folder: Path, loaded: tuple[Launchers, int], compiler: Compiler) -> GraphCode:
    """Returns the code of an entry whose texts lie in a folder. loaded: what `load_kernels` returned."""
    launchers, hits = loaded
    return load_code(entry, folder, launchers, pool_for(compiler.options, compiler.cache), hits)


def write_code(entry: GraphEntry, others: Mapping[str, str], compiler: Compiler, key: Key | None = None) -> Path:
    """Returns the folder in the disk cache with what a graph became: to be read by people, and with a key by other
    processes too. others: more texts by file name. Errors: NotCacheable, only with a key."""
    files, made = {**entry.texts(), **others}, list[Path]()

    def write(folder: Path) -> None:
        made.append(folder)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        if key is not None:
            (folder / KEY).write_text(key.to_json(), encoding="utf-8")
            write_entry(entry, folder)

    if key is None:
        return compiler.cache.build("graph", digest(*files.values()), write, needs=tuple(files), asks=False)
    folder = compiler.cache.build("graph", key.digest, write, needs=(*files, KEY, ENTRY), asks=False)
    if made:
        compiler.cache.offer("graph", key.digest, folder)
    return folder


def likely_values(entry: GraphEntry, programs: Mapping[str, Program]) -> GraphEntry:
    """Returns the entry with likely values in place of the sizes among its kernels' arguments."""

    def known(name: str, kernel: StoredKernel) -> StoredKernel:
        hint, given = programs[name].hint, kernel.source.arguments
        arguments = tuple(item if isinstance(item, str) else hint(item) for item in given)
        return replace(kernel, source=replace(kernel.source, arguments=arguments))

    return replace(entry, kernels={name: known(name, kernel) for name, kernel in entry.kernels.items()})


def build(
    plan: ExecutionPlan, sources: Mapping[str, KernelSource], wrapper: WrapperSource, compiler: Compiler
) -> CompiledGraph:
    """Builds and loads a plan's kernels and wrapper, and stores no code for other compiles."""
    entry = describe_code(plan, sources, wrapper, compiler)
    with Loads(compiler) as loads:
        loaded = load_kernels(loads, entry, programs_of(plan))
    folder = write_code(entry, other_files(plan), compiler)
    return graph_of(join_code(entry, folder, loaded, compiler), plan.program.name, wrapper.words, compiler)


def graph_of(
    code: GraphCode, name: str, words: Words, compiler: Compiler, output_strides: Any = None, key: str = ""
) -> CompiledGraph:
    """Returns one graph of a code, with words of its own, its entry in what plugins wrap around it. See
    `GraphCode.graph` for the other arguments."""
    entry, path = code.entry, code.folder / WRAPPER
    plain = WrapperSource(entry.wrapper, entry.objects, Named.from_data(entry.named).places, words)
    texts = {str(path): plain}  # what is run has no comments: equal graphs share it

    def load_ranged() -> Entry:
        with_ranges, its_path = ranged(plain), code.folder / f"wrapper_of_{name}_with_ranges.py"
        texts[str(its_path)] = with_ranges
        return load_wrapper(with_ranges.text, its_path, {**code.namespace, RANGE: record_function})

    def sites(path: str) -> tuple[Site, ...]:
        return _sites(texts[path]) if path in texts else ()

    said = Said(annotated(plain, words).text, Lazily(load_ranged), sites, words.known_as)
    graph = code.graph(name, output_strides, key, said)
    around = compiler.plugins.wrap_entry(graph.entry, replace(entry.facts, graph=name), compiler.options)
    # What plugins run has no steps to put into a profile.
    return graph if around is graph.entry else replace(graph, entry=around, ranged=None)


def _sites(wrapper: WrapperSource) -> tuple[Site, ...]:
    """Where the steps are that come from somewhere."""
    origins = wrapper.words.origins
    return tuple((p.first, p.last, f"{origins[p.step]}, {p.step}") for p in wrapper.places if p.step in origins)


def programs_of(plan: ExecutionPlan) -> dict[str, Program]:
    """Returns the program of each kernel, by the kernel's name."""
    return {kernel.name: variant.program for variant in plan.functions for kernel in variant.launched}


def _codegen_context(kernel: Kernel | KernelCall, plan: ExecutionPlan, compiler: Compiler) -> CodegenContext:
    return CodegenContext(compiler.options, compiler.target_of(kernel.device), plan.program, compiler.cache)
