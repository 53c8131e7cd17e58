"""Code generators, what they are handed and what they write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from litz_plugins.nouns import KernelPlan, OptionsView, Program
from litz_plugins.records.decisions import Decision
from litz_plugins.records.targets import Target

SafeForms = Callable[[Collection[str]], Mapping[str, str | None]]
"""The type of `CodegenContext.safe_forms`."""


def _trusted(constructs: Collection[str]) -> Mapping[str, str | None]:
    """The compiler gets nothing wrong."""
    return {}


@dataclass(frozen=True)
class CodegenContext:
    """The place where a kernel is generated and built, and what to ask there.

    options: of the compile. target: the device's `Target`.
    program: the litz.ir.Program of the kernel, for its buffers' layouts and its hints. cache: the on-disk cache
    (litz.cache.disk.Cache) for what `Codegen.load` builds. safe_forms: takes the constructs of a kernel; returns those
    of them that the machine's compiler gets wrong (`TargetSpec.qualify`), each with the form that it is built in
    instead (None: no form is right). A kernel may be generated twice: once to learn the constructs of all kernels,
    which are tested together, and again where the compiler gets one of them wrong.
    """

    options: OptionsView
    target: Target
    program: Program = None
    cache: Any = None
    safe_forms: SafeForms = _trusted


COUNTERS = "_counters"
"""The name of the counters among `KernelSource.arguments`."""


@dataclass(frozen=True)
class KernelSource:
    """One generated kernel as text: what is cached, shown in reports and built.

    name: of the kernel, unique in its graph. language: of the text ("triton", "cpp", ...). text: the whole source.
    symbol: the function to call in it. settings: what the launcher and the builder need, as JSON-able values.
    arguments: what the launch function takes, in order: a str names a buffer, passed as the address of its data (an
    int); anything else is a size expression, passed as an int. The name `COUNTERS` stands for settings["counters"]
    zeros of type int32 that no other launch touches. Text and settings should name no buffer of the graph, so that
    kernels that differ only in their arguments are built once. suffix: of the file that the text lies in ("py"); the
    language where it is ''. plugin: whose template offered it, filled in by core; '' for what a code generator wrote.
    """

    name: str
    language: str
    text: str
    symbol: str
    arguments: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    suffix: str = ""
    plugin: str = ""


@dataclass(frozen=True)
class Verdict:
    """The constructs that the tools which build a target's kernels get wrong (`TargetSpec.qualify`).

    toolchain: the tools, in words ("g++ 12.2.0, -march=native"). safe_forms: the constructs of which wrong code is
    built, each with the form that is right, as `CodegenContext.safe_forms` hands them to the generator; None where no
    form is. constructs: how many were tested, now or ever, 0 where none was. seconds: what the tests took, whenever.
    """

    toolchain: str
    safe_forms: Mapping[str, str | None] = field(default_factory=dict)
    constructs: int = 0
    seconds: float = 0.0

    def decisions(self) -> tuple[Decision, ...]:
        """Returns a decision for each construct that is not trusted, for the report."""
        why = f"{self.toolchain}, miscompiles this construct"
        built = {name: f"built {form or 'by no form'}" for name, form in self.safe_forms.items()}
        return tuple(Decision("codegen", f"kernels with {name}", how, why) for name, how in built.items())


@runtime_checkable
class Codegen(Protocol):
    """A code generator for one type of device, a part of its `TargetSpec`.

    One whose `load` asks a context's program for nothing but `hint` says so by an attribute
    ``loads_from_source = True``: graphs with its kernels can be kept in the graph cache, which keeps no programs. The
    arguments of a source that comes from there are the names of buffers, and likely values in place of sizes.

    One whose texts and settings name no buffer, kernel or graph says so by ``names_nothing = True``: of kernels of a
    graph that differ in such names only, one is generated, and the others are its source with other arguments.
    """

    @property
    def language(self) -> str:
        """Returns the language that `generate` writes: "triton", "cpp", ..."""

    def generate(self, kernel: KernelPlan, context: Any) -> Any:
        """Returns the source of one kernel (a `KernelSource`). Pure: the same kernel gives the same text.

        ``kernel`` is a `litz.codegen.kernel_plan.KernelPlan`: all about the kernel but how it is tiled.
        ``context`` is a `CodegenContext`.
        """

    def load(self, source: Any, context: Any) -> Callable[..., Any]:
        """Builds a kernel (or takes it from the cache) and loads it; returns the function that launches it."""


@runtime_checkable
class JoiningCodegen(Codegen, Protocol):
    """A code generator of a target with the ability "beside"."""

    def join(self, sources: Sequence[Any], name: str) -> Any:
        """Returns one `KernelSource` that does the work of several in one launch."""


@runtime_checkable
class TunableCodegen(Codegen, Protocol):
    """A code generator that can write one kernel in several ways, of which a plugin may measure the fastest."""

    def near(self, kernel: KernelPlan, context: Any) -> Sequence[Mapping[str, int]]:
        """Returns settings that are one step from those of the kernel (``kernel.settings``; empty: as `generate` works
        them out), the most promising first. Each is complete: `generate` takes it as ``kernel.settings`` and writes a
        kernel with the same results. `generate` raises ValueError for settings that the kernel cannot have."""


@runtime_checkable
class PreparingCodegen(Codegen, Protocol):
    """A code generator whose builds need something that takes time to start."""

    def prepare(self, options: OptionsView) -> None:
        """Starts what builds need. Must return at once. Called any number of times before a graph is compiled that the
        graph cache could have had and has not, and long before `load`."""


@dataclass(frozen=True)
class TargetSpec:
    """A type of device that litz compiles for.

    type: torch's ("cpu", "cuda", "xpu", ...). describe: called as ``describe(device, options)`` with a torch.device,
    once a compile for each device; returns its `Target` as its maker or driver says, to which core adds what a
    calibration file measured. codegen: writes, builds and loads its kernels. plugin: filled in by the manager.

    qualify: tries the tool that builds the kernels before litz trusts the tool. None: litz trusts the tool untried.
    Called as ``qualify(constructs, context)`` once the texts of a graph's kernels are known, if the generator has asked
    ``context.safe_forms`` for any: ``constructs`` are all that the generator asked for, None for every construct there
    is (`litz doctor`); ``context`` is a `CodegenContext` without a program. Returns a `Verdict`. Where the verdict has
    safe forms, the kernels are generated again. Keep what was found in ``context.cache``: a compile should test nothing
    twice.
    """

    type: str
    describe: Callable[[Any, OptionsView | None], Target]
    codegen: Codegen
    plugin: str = ""
    qualify: Callable[[Collection[str] | None, CodegenContext], Verdict] | None = None

    def __post_init__(self) -> None:
        if not self.type:
            raise ValueError("a target needs a type of device")
        if not callable(self.describe):
            raise TypeError(f"target {self.type!r}: describe must be callable as describe(device, options)")
        if self.qualify is not None and not callable(self.qualify):
            raise TypeError(f"target {self.type!r}: qualify must be callable as qualify(constructs, context)")
