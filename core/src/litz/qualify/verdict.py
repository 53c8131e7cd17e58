"""Whether the compiler builds right code: probes built, run and compared, and the verdict kept in the disk cache.

In: options and the cache. Out: a `Verdict`, which is data: for each construct that the compiler gets wrong, the safe
form in which it gets it right. Compiler, flags, libraries, processor and litz's own sources are the key; whoever meets
a new one first qualifies it, in seconds, and everybody else reads a small file.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import litz.codegen.cpp
from litz.codegen.cpp.codegen import generate
from litz.codegen.cpp.constructs import CONSTRUCTS
from litz.codegen.kernel_plan import plan_kernel
from litz.errors import KernelBuildError
from litz.ir import Buffer, Layout, Loop, Program, Range, TensorRef
from litz.ir.index import loop_var, reduction_var, to_expr
from litz.ir.interpret import interpret
from litz.options import Options
from litz.runtime import cpp_build
from litz.runtime.cache import Cache, digest
from litz.runtime.cpp_compiler import find_compiler
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz_plugins import CodegenContext, Decision, KernelSource

from .known import KNOWN
from .probes import Probe, make_probes

FILE = "verdict.json"
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Verdict:
    """What a compiler gets wrong. compiler: the first line of its `--version`. march: the processor built for.

    safe_forms: constructs that it gets wrong (`litz.codegen.cpp.constructs`), with the form that is right
    (`litz.runtime.cpp_compiler.FORMS`), None where none is. constructs: how many were tested, 0 where it was not asked
    or builds nothing at all. seconds: what qualifying took, whenever that was.
    """

    compiler: str
    march: str
    safe_forms: Mapping[str, str | None] = field(default_factory=dict)
    constructs: int = 0
    seconds: float = 0.0

    def decisions(self) -> tuple[Decision, ...]:
        """For the report: one for each construct that is not trusted."""
        return tuple(
            Decision("codegen", f"C++ with {name}", f"built {form or 'by no form'}", f"{self.compiler} gets it wrong")
            for name, form in self.safe_forms.items()
        )


def qualify(options: Options, cache: Cache) -> Verdict:
    """The verdict on the options' compiler. Errors: CompilerNotFoundError, CacheError."""
    compiler = find_compiler(options.cpp_compiler)
    if not options.cpp_qualify:
        return Verdict(compiler.version, options.cpp_march)
    key = digest(*cpp_build.toolchain(options), _sources())
    known = _found_here()
    if key not in known:
        known[key] = _kept(key, options, cache) or judge(options)
    return known[key]


@functools.cache
def _found_here() -> dict[str, Verdict]:
    """Verdicts that this process has met: a fact of the machine, like the compiler itself. With the cache switched off
    no compile but the first has to qualify."""
    return {}


@functools.cache
def _sources() -> str:
    """What tells one state of generator and probes from another."""
    generator = Path(litz.codegen.cpp.__file__).parent
    files = (path for folder in (generator, Path(__file__).parent) for path in sorted(folder.glob("*.py")))
    return digest(*(path.read_bytes() for path in (generator.parent / "dialect.py", *files)))


def _kept(key: str, options: Options, cache: Cache) -> Verdict | None:
    """The verdict in the cache, put there first if need be; None where the file says nothing that can be read."""

    def make(folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(judge(options)), indent=1))

    try:
        said = json.loads((cache.build("compiler", key, make) / FILE).read_text())
        return Verdict(**said)
    except (ValueError, TypeError):
        return None


# ---------------------------------------------------------------------- judging


def judge(options: Options) -> Verdict:
    """Build and run every probe; those of constructs that fail again in their safe forms."""
    start = time.perf_counter()
    version = find_compiler(options.cpp_compiler).version
    with ThreadPoolExecutor(options.threads or os.cpu_count() or 1, "litz-qualify") as threads:
        bench, probes = _Bench(options, threads), make_probes()
        failed = bench.failures(probes)
        if failed is None:  # nothing builds: the first kernel's error says so, and better
            return Verdict(version, options.cpp_march)
        safe = {}
        for construct in (construct for construct in CONSTRUCTS if construct.name in failed):
            own = {label: probe for label, probe in probes.items() if probe.construct == construct.name}
            right = (form for form in construct.forms if bench.failures(own, (form,)) == frozenset())
            safe[construct.name] = next(right, None)
    seconds = round(time.perf_counter() - start, 2)
    return Verdict(version, options.cpp_march, safe, len(CONSTRUCTS), seconds)


class _Bench:
    """Builds probes, each a kernel like any other, in a cache of its own that goes with it."""

    def __init__(self, options: Options, threads: ThreadPoolExecutor) -> None:
        self.options, self.threads = options, threads
        self.cache = Cache(options.cache_dir, enabled=False)

    def failures(self, probes: Mapping[str, Probe], forms: tuple[str, ...] = ()) -> frozenset[str] | None:
        """The constructs that some probe finds wrong, or that do not build; None if no probe builds."""
        waiting = {label: self.threads.submit(self._load, probe, forms) for label, probe in probes.items()}
        failed, built = set(), 0
        for label, future in waiting.items():
            try:
                source, launch = future.result()
            except KernelBuildError:
                failed.add(probes[label].construct)
                continue
            built += 1
            if not is_right(label, probes[label], run(probes[label], source, launch)):
                failed.add(probes[label].construct)
        return frozenset(failed) if built else None

    def _load(self, probe: Probe, forms: tuple[str, ...]) -> tuple[KernelSource, Callable[..., Any]]:
        source, context = source_of(probe, self.options, self.cache)
        if forms:
            source = replace(source, settings={**source.settings, "forms": list(forms)})
        return source, cpp_build.load_kernel(source, context)


def run(probe: Probe, source: KernelSource, launch: Callable[..., Any]) -> list[torch.Tensor] | None:
    """What the kernel makes of the probe's inputs; None if it refuses an index."""
    memory = {name: tensor.clone() for name, tensor in probe.inputs.items()}
    for name, (size, dtype) in probe.outputs.items():
        memory.setdefault(name, torch.full(tuple(size), 7).to(dtype))
    try:
        launch(*(memory[item].data_ptr() if isinstance(item, str) else int(item) for item in source.arguments))
    except IndexError:
        return None
    return [memory[name] for name in probe.outputs]


def is_right(label: str, probe: Probe, made: list[torch.Tensor] | None) -> bool:
    """Whether a probe's kernel made what it has to."""
    if made is None or probe.raises:
        return made is None and probe.raises
    if not probe.tolerance:
        return bits_of(made) == KNOWN[label]
    close = functools.partial(torch.allclose, rtol=probe.tolerance, atol=probe.tolerance)
    return all(close(mine, right) for mine, right in zip(made, reference(probe), strict=True))


def bits_of(tensors: Sequence[torch.Tensor]) -> str:
    """A digest of the values' bits; all NaNs are one."""
    parts = [t.masked_fill(t.isnan(), math.nan) if t.dtype.is_floating_point else t for t in tensors]
    return digest(*(ctypes.string_at(part.data_ptr(), part.nbytes) for part in parts))[:16]


def reference(probe: Probe) -> list[torch.Tensor]:
    """What is right by the IR's interpreter, which runs on torch's own kernels."""
    return interpret(_program(probe), [tensor.clone() for tensor in probe.inputs.values()])


def source_of(probe: Probe, options: Options, cache: Cache) -> tuple[KernelSource, CodegenContext]:
    """The kernel of a probe, as the generator writes it for everybody."""
    program = _program(probe)
    (loop,) = program.loops
    context = CodegenContext(options, target_of(_CPU), program, cache)
    kernel = plan_kernel(Kernel(f"probe of {probe.construct}", loop), program)
    return generate(kernel, context), context


def _program(probe: Probe) -> Program:
    ranges = tuple(Range(loop_var(n), to_expr(size)) for n, size in enumerate(probe.ranges))
    inner = tuple(Range(reduction_var(n), to_expr(size)) for n, size in enumerate(probe.reduction))
    loop = Loop("probe", _CPU, ranges, inner, tuple(probe.stores))
    shapes = {name: (tuple(size), dtype) for name, (size, dtype) in probe.outputs.items()}
    shapes |= {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in probe.inputs.items()}
    buffers = {
        name: Buffer(name, dtype, _CPU, Layout.contiguous(size), "input" if name in probe.inputs else "temporary")
        for name, (size, dtype) in shapes.items()
    }
    outputs = tuple(TensorRef(name, buffers[name].layout) for name in probe.outputs)
    return Program("probe", tuple(probe.inputs), buffers, (loop,), outputs)
