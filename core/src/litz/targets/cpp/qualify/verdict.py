"""Whether the compiler builds right code: probes built, run and compared, and what came of it kept in the disk cache.

In: options, the cache, and the constructs that are asked for. Out: a `Verdict`, which is data: for each construct that
the compiler gets wrong, the safe form in which the compiler gets it right. A construct is tested when a kernel first
has it. The compiler, its flags, libraries, the processor and litz's own sources are the key. The first process that
meets a key tests the construct, which takes a tenth of a second; every other process reads a small file.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from litz.cache.disk import Cache, digest
from litz.codegen.kernel_plan import plan_kernel
from litz.errors import KernelBuildError
from litz.ir import Buffer, Layout, Loop, Program, Range, TensorRef
from litz.ir.index import loop_var, reduction_var, to_expr
from litz.ir.interpret import interpret
from litz.options import Options
from litz.runtime.builders import Builders, processors
from litz.runtime.cpp_compiler import find_compiler
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz.targets.cpp import build as cpp_build
from litz.targets.cpp.constructs import CONSTRUCTS, find_construct
from litz.targets.cpp.generate import generate
from litz_plugins import CodegenContext, KernelSource, Verdict

from .probes import Probe, make_probes

KIND, FILE = "compiler", "finding.json"
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Finding:
    """The result of testing a construct: is it right as it is; else its safe form, None if it has none; seconds."""

    right: bool
    form: str | None = None
    seconds: float = 0.0


Findings = Mapping[str, Finding]
"""The findings by construct."""
EVERY = tuple(construct.name for construct in CONSTRUCTS)


def qualify(options: Options, cache: Cache, constructs: Collection[str] = EVERY) -> Verdict:
    """Returns the verdict on the options' compiler. Raises CompilerNotFoundError or CacheError."""
    compiler = find_compiler(options.cpp_compiler)
    blank = Verdict(f"{compiler.version}, -march={options.cpp_march}")
    if not options.cpp_qualify:
        return blank
    toolchain = (*cpp_build.toolchain(options), _sources())
    keys = {name: digest(*toolchain, name) for name in EVERY if name in constructs}
    known = _found_here()
    for key in keys.values():
        found = None if key in known else _read(cache.find(KIND, key, (FILE,)))
        if found is not None:
            known[key] = found
    missing = [name for name, key in keys.items() if key not in known]
    for name, finding in judge(options, missing).items() if missing else ():
        known[keys[name]] = finding
        _keep(keys[name], finding, cache)
    findings = {name: known[key] for name, key in keys.items() if key in known}
    wrong = {name: found.form for name, found in findings.items() if not found.right}
    return replace(
        blank,
        safe_forms=wrong,
        constructs=len(findings),
        seconds=round(sum(found.seconds for found in findings.values()), 2),
    )


def qualify_target(constructs: Collection[str] | None, context: CodegenContext) -> Verdict:
    """As `qualify`, for a `TargetSpec` whose kernels are core's C++. constructs: None for every one."""
    options: Any = context.options
    return qualify(options, context.cache, EVERY if constructs is None else constructs)


@functools.cache
def _found_here() -> dict[str, Finding]:
    """Returns what this process has met, by key: a fact of the machine, like the compiler itself. With the cache
    switched off no compile but the first has to test a construct."""
    return {}


@functools.cache
def known() -> dict[str, str]:
    """Returns the right bits of every probe whose results are exact, as `bits_of` digests them. A file has the bits:
    torch's own kernels differ between processors (its root of float64). A test holds them against the interpreter."""
    found: dict[str, str] = json.loads((files("litz.targets.cpp.qualify") / "known.json").read_text(encoding="utf-8"))
    return found


@functools.cache
def _sources() -> str:
    """Returns a digest of the generator's and the probes' source files."""
    folders = (files("litz.targets.cpp"), files("litz.targets.cpp.qualify"), files("litz.tiles"))
    found = (file for folder in folders for file in sorted(folder.iterdir(), key=lambda file: file.name))
    sources = (file for file in found if file.name.endswith((".py", ".json")))
    return digest(*(file.read_bytes() for file in (files("litz.codegen") / "dialect.py", *sources)))


def _keep(key: str, finding: Finding, cache: Cache) -> None:
    def make(folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(finding)), encoding="utf-8")

    cache.build(KIND, key, make, (FILE,))


def _read(folder: Path | None) -> Finding | None:
    """Returns what a file of the cache says, None where there is none that can be read."""
    try:
        return None if folder is None else Finding(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (ValueError, TypeError, OSError):
        return None


# ---------------------------------------------------------------------- judging


def judge(options: Options, constructs: Collection[str] = EVERY) -> Findings:
    """Builds and runs the probes of constructs; those of constructs that fail again in their safe forms. Empty where
    the compiler builds no probe at all: the first kernel's error says so, and better."""
    with Builders(options.threads or processors()) as builders:
        bench, every = _Bench(options, builders), make_probes()
        probes = {label: probe for label, probe in every.items() if probe.construct in constructs}
        found = bench.test(probes)
        if not any(run.built for run in found.values()) and not any(run.built for run in bench.test(every).values()):
            return {}
        return {name: bench.finding(name, found) for name in constructs if name in found}


@dataclass(frozen=True)
class _Run:
    """The results of a construct's probes in a form: all of them are right, any was built, the seconds of building."""

    forms: tuple[str, ...]
    right: bool = True
    built: bool = False
    seconds: float = 0.0


class _Bench:
    """Builds probes, each a kernel like any other, in a cache of its own that goes with it."""

    def __init__(self, options: Options, builders: Builders) -> None:
        self.options, self.builders = options, builders
        self.cache = Cache(options.cache_dir, enabled=False)

    def test(self, probes: Mapping[str, Probe], forms: tuple[str, ...] = ()) -> dict[str, _Run]:
        """Builds all probes at once, runs them, and returns what became of each, by construct."""
        waiting = {label: self.builders.submit(self._load, probe, forms) for label, probe in probes.items()}
        runs = {probe.construct: _Run(forms) for probe in probes.values()}
        for label, future in waiting.items():
            probe = probes[label]
            source, launch, seconds = self.builders.result(future)
            built = launch is not None
            right = launch is not None and is_right(label, probe, run(probe, source, launch))
            so_far = runs[probe.construct]
            runs[probe.construct] = replace(
                so_far, right=so_far.right and right, built=so_far.built or built, seconds=so_far.seconds + seconds
            )
        return runs

    def finding(self, construct: str, first: Mapping[str, _Run]) -> Finding:
        """Returns what is found of a construct. first: the runs of the constructs as they are, by name."""
        run = first[construct]
        if run.right:
            return Finding(True, seconds=round(run.seconds, 3))
        own = {label: probe for label, probe in make_probes().items() if probe.construct == construct}
        tried = (self.test(own, (form,))[construct] for form in find_construct(construct).forms)
        right = next((run for run in tried if run.right), None)
        return Finding(False, right.forms[0] if right else None, round(run.seconds, 3))

    def _load(self, probe: Probe, forms: tuple[str, ...]) -> tuple[KernelSource, Callable[..., Any] | None, float]:
        """A probe's source, what launches it, None where it does not build, and the seconds of that."""
        start = time.perf_counter()
        source, context = source_of(probe, self.options, self.cache)
        if forms:
            source = replace(source, settings={**source.settings, "forms": list(forms)})
        try:
            launch: Callable[..., Any] | None = cpp_build.load_kernel(source, context)
        except KernelBuildError:
            launch = None
        return source, launch, time.perf_counter() - start


def run(probe: Probe, source: KernelSource, launch: Callable[..., Any]) -> list[torch.Tensor] | None:
    """Returns what the kernel makes of copies of the probe's inputs; None if the kernel refuses an index."""
    memory = {name: tensor.clone() for name, tensor in probe.inputs.items()}
    for name, (size, dtype) in probe.outputs.items():
        memory.setdefault(name, torch.full(tuple(size), 7).to(dtype))
    try:
        launch(*(memory[item].data_ptr() if isinstance(item, str) else int(item) for item in source.arguments))
    except IndexError:
        return None
    return [memory[name] for name in probe.outputs]


def is_right(label: str, probe: Probe, made: list[torch.Tensor] | None) -> bool:
    """Returns whether a probe's kernel computed what it should. made: None if the kernel refused an index."""
    if made is None or probe.raises:
        return made is None and probe.raises
    if not probe.tolerance:
        return bits_of(made) == known()[label]
    close = functools.partial(torch.allclose, rtol=probe.tolerance, atol=probe.tolerance)
    return all(close(mine, right) for mine, right in zip(made, reference(probe), strict=True))


def bits_of(tensors: Sequence[torch.Tensor]) -> str:
    """Returns a digest, 16 hex digits, of the values' bits. All NaNs count as one."""
    parts = [t.masked_fill(t.isnan(), math.nan) if t.dtype.is_floating_point else t for t in tensors]
    return digest(*(ctypes.string_at(part.data_ptr(), part.nbytes) for part in parts))[:16]


def reference(probe: Probe) -> list[torch.Tensor]:
    """Returns the right values, by the IR's interpreter, which runs on torch's own kernels."""
    return interpret(_program(probe), [tensor.clone() for tensor in probe.inputs.values()])


def source_of(probe: Probe, options: Options, cache: Cache) -> tuple[KernelSource, CodegenContext]:
    """Returns the kernel of a probe as the generator writes it for every compiler."""
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
