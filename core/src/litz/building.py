"""From an ExecutionPlan to a CompiledGraph: the text of each kernel, and the kernels built and loaded."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.autograd.profiler import record_function

from litz.codegen.facts import replay_facts
from litz.codegen.kernel_plan import KernelPlan, plan_kernel
from litz.codegen.plan_rules import verify_plan
from litz.codegen.wrapper import WrapperSource
from litz.codegen.wrapper.words import RANGE, ranged
from litz.compiler import Compiler
from litz.errors import CodegenError, VerifyError
from litz.execution import ExecutionPlan
from litz.execution.inputs import inputs_written_over
from litz.ir import KernelCall, Program
from litz.kernel_bench import SUFFIX, kernel_data
from litz.qualify import qualify
from litz.runtime.cache import digest
from litz.runtime.compiled_graph import CompiledGraph, Entry, Lazily, Site, load_wrapper
from litz.runtime.cuda_graphs import replayed
from litz.runtime.pool import Pool, shared_pool
from litz.runtime.retained import retaining
from litz.runtime.wrapper_support import support
from litz.schedule.schedule import Kernel
from litz_plugins import Codegen, CodegenContext, Decision, JoiningCodegen, KernelSource
from litz_plugins.errors import LitzError, describe


def generate(
    plan: ExecutionPlan, compiler: Compiler, note: Callable[[Decision], None] = lambda decision: None
) -> dict[str, KernelSource]:
    """The source of every kernel, by name; those of all cases where the plan has such. Where some are in C++, the
    C++ compiler has been qualified by then; `note` takes what it is not trusted with."""
    steps = [(step, variant) for variant in plan.variants for step in variant.launched]
    sources = {step.name: step.source for step, _ in steps if isinstance(step, KernelCall)}

    @functools.cache
    def safe_forms() -> Mapping[str, str | None]:
        found = qualify(compiler.options, compiler.cache)
        for decision in found.decisions():
            note(decision)
        return found.safe_forms

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
        with _said_from(kernel, variant.program):
            try:
                context = replace(_codegen_context(kernel, variant, compiler), safe_forms=safe_forms)
                parts = [spec.codegen.generate(_plan(p, variant.program, compiler), context) for p in kernel.parts]
                sources[kernel.name] = parts[0] if len(parts) == 1 else _join(parts, kernel, spec.codegen)
            except Exception as cause:
                if isinstance(cause, LitzError):
                    raise
                problem = f"no code for {' + '.join(kernel.origins)}: {describe(cause)}"
                raise CodegenError(kernel.name, problem, device=str(kernel.device)) from cause
    return sources


@contextmanager
def _said_from(kernel: Kernel | KernelCall, program: Program) -> Iterator[None]:
    """Errors about a kernel name what in the user's model it is of."""
    try:
        yield
    except LitzError as error:
        if origin := program.provenance.text(kernel.origins):
            error.set_origin(origin)
        raise


def _join(parts: list[KernelSource], kernel: Kernel, codegen: Codegen) -> KernelSource:
    if not isinstance(codegen, JoiningCodegen):
        problem = 'its target has the ability "beside", and its code generator no method `join`'
        raise CodegenError(kernel.name, problem, device=str(kernel.device))
    joined: KernelSource = codegen.join(parts, kernel.name)
    return joined


def _plan(kernel: Kernel, program: Program, compiler: Compiler) -> KernelPlan:
    plan = plan_kernel(kernel, program)
    complaints = list(verify_plan(plan)) if compiler.options.debug else []
    if complaints:
        raise VerifyError("kernel plan", kernel.name, complaints)
    return plan


def build(
    plan: ExecutionPlan,
    sources: Mapping[str, KernelSource],
    wrapper: WrapperSource,
    compiler: Compiler,
    built: Callable[[int], None] = lambda kernels: None,
) -> CompiledGraph:
    """Kernels built in parallel, equal ones once; the wrapper loaded around them. built: called for each that is built,
    by any thread, with the number of all."""
    distinct: dict[Any, list[tuple[Kernel | KernelCall, ExecutionPlan]]] = {}
    for variant in plan.variants:
        for kernel in variant.launched:
            source = sources[kernel.name]
            key = (source.language, source.text, str(kernel.device), repr(source.settings))
            distinct.setdefault(key, []).append((kernel, variant))

    def load(kernels: list[tuple[Kernel | KernelCall, ExecutionPlan]]) -> tuple[Callable[..., Any], bool]:
        (first, variant), cache = kernels[0], compiler.cache.counted()
        context = replace(_codegen_context(first, variant, compiler), cache=cache)
        with _said_from(first, variant.program):
            launch = compiler.specs[first.device.type].codegen.load(sources[first.name], context)
        built(len(distinct))
        return launch, cache.hits > 0 and cache.misses == 0

    workers = compiler.options.threads or os.cpu_count() or 1
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="litz-build") as executor:
        loaded = list(executor.map(load, distinct.values()))
    launchers = {k.name: launch for kernels, (launch, _) in zip(distinct.values(), loaded) for k, _ in kernels}
    hits = sum(len(kernels) for kernels, (_, found) in zip(distinct.values(), loaded) if found)

    files = {"wrapper.py": wrapper.text, "schedule.txt": "\n".join(map(str, plan.variants))}
    places = {name: f"{name}.{s.suffix or s.language}" for name, s in sources.items()}
    files |= {places[name]: source.text for name, source in sources.items()}
    if compiler.options.benchmark_kernels:
        files |= {
            f"{kernel.name}{SUFFIX}": kernel_data(
                kernel, sources[kernel.name], places[kernel.name], variant, compiler.options
            )
            for variant in plan.variants
            for kernel in variant.launched
        }

    def write(folder: Any) -> None:
        for name, text in files.items():
            (folder / name).write_text(text)

    folder = compiler.cache.build("graph", digest(*files.values()), write, needs=tuple(files))
    pool = shared_pool() if compiler.options.memory_pool else Pool(keeps=False)
    namespace = {**support(pool), **wrapper.objects, **launchers}
    entry = load_wrapper(wrapper.text, folder / "wrapper.py", namespace)
    kernels = {name: str(folder / place) for name, place in places.items()}
    path = folder / "wrapper.py"
    texts = {str(path): wrapper}

    def load_ranged() -> Entry:
        with_ranges, ranges_path = ranged(wrapper), folder / "wrapper_with_ranges.py"
        texts[str(ranges_path)] = with_ranges
        return load_wrapper(with_ranges.text, ranges_path, {**namespace, RANGE: record_function})

    def sites(path: str) -> tuple[Site, ...]:
        return _sites(texts[path]) if path in texts else ()

    replays = compiler.options.cuda_graphs
    if replays:
        entry = replayed(entry, replay_facts(plan))
    graph = CompiledGraph(
        plan.program.name,
        wrapper.text,
        path,
        entry,
        kernels,
        cache_hits=hits,
        ranged=None if replays else Lazily(load_ranged),  # what is replayed has no steps
        sites=sites,
        inputs=plan.program.provenance.inputs,
    )
    if overwritten := inputs_written_over(plan):
        graph = graph.inside(lambda entry: retaining(entry, overwritten))
    return graph


def _sites(wrapper: WrapperSource) -> tuple[Site, ...]:
    """Where the steps are that come from somewhere."""
    origins = wrapper.words.origins
    return tuple((p.first, p.last, f"{origins[p.step]}, {p.step}") for p in wrapper.places if p.step in origins)


def _codegen_context(kernel: Kernel | KernelCall, plan: ExecutionPlan, compiler: Compiler) -> CodegenContext:
    return CodegenContext(compiler.options, compiler.target_of(kernel.device), plan.program, compiler.cache)
