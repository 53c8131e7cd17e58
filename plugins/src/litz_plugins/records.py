"""The data that plugins return and are handed: frozen records, no behaviour beyond checks of their own fields.

Times are microseconds, sizes bytes, unless a name says otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from litz_plugins.nouns import KernelPlan, Noun, Operation, OptionsView, Program
from litz_plugins.vetoes import Gate, key_of

Stage = Literal["graph", "program", "schedule"]
STAGES: tuple[Stage, ...] = ("graph", "program", "schedule")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OPTION_TYPES = (bool, int, float, str, Path, tuple)


@dataclass(frozen=True)
class Share:
    """What part of a device's peak is reached: at best, usually, at worst."""

    best: float
    usual: float
    worst: float


SHARES: Mapping[str, Share] = {
    # 0.9 or more of the bandwidth is what copies reach (BabelStream; 0.9 on the H100 by litz's own calibration); a
    # kernel with odd strides or a short row reaches half.
    "memory": Share(0.95, 0.85, 0.5),
    "copy": Share(0.95, 0.85, 0.5),
    # Peaks count a multiply-add as two, which a body of other operations cannot have.
    "loop": Share(1.0, 0.4, 0.15),
    # Large square matmuls of cuBLAS: 0.6 to 0.8 of the dense peak; odd sizes far less.
    "matmul": Share(0.9, 0.65, 0.25),
    "convolution": Share(0.85, 0.5, 0.12),
    # FlashAttention-2 and -3 papers: 0.35 (A100, backward) to 0.75 (H100, forward) of the peak.
    "attention": Share(0.8, 0.5, 0.2),
    "other": Share(1.0, 0.5, 0.05),
}
"""The shares of a `Target` that does not say: those of a GPU."""


@dataclass(frozen=True)
class FewRows:
    """What products of few rows take on a processor, in nanoseconds of one thread for each weight.

    In core's own loop: multiply_add, for each row; node, for each operation that makes a weight of what is stored. In
    the library's way, at its best: written, to make a weight and write it out; far, the same for each byte written
    where the last cache does not hold them all; packed, to make one where several lie in an element; library, by kind
    of dtype, its product of 1, 2, 4, 8 and 16 rows.
    """

    multiply_add: float
    node: float
    written: float
    far: float
    packed: float
    library: Mapping[str, tuple[float, float, float, float, float]] = field(hash=False)
    source: str = ""


@dataclass(frozen=True)
class Target:
    """A device as data: what it is, how fast it is, what it can do. Made once a compile for each of its devices, and
    read by every pass, cost model and code generator; nobody else asks the driver or has a figure of a device.

    type: torch's ("cpu", "cuda", ...). index: None for the only one. name: as the driver says it ("NVIDIA H100 80GB
    HBM3"), '' when unknown. capability: CUDA's compute capability times ten, 0 for other devices. source: where the
    figures are from. assumed: there is no such device here, or nobody knows it, and the figures are of a stand-in.
    measured: the figures that a calibration file gave, by its names ("bandwidth_gb_s", "matrix_tflops.bf16"): speeds
    that were reached; the others are peaks, of which `shares` says what kernels of a kind reach. rough: a processor
    that nobody measured; its figures serve to compare loops with each other, not to say what a program takes.

    Speeds: units, which work independently (multiprocessors, threads); bandwidth to and from memory, in bytes per
    microsecond; launch_us, what a kernel adds however little it does; vector and matrix, FLOPs per microsecond of the
    ordinary units and of those for contractions, by kind of dtype ("fp64", "fp32", "tf32", "fp16", "bf16", "int8",
    "fp8"); tf32: where torch allows TF32 for float32 ("matmul", "convolution").

    Room: cache_bytes, of the last cache; row_bytes, how much of a reduction's row stays close enough for a second pass
    to be free; shared_bytes, of the memory that a block of threads shares; registers (32-bit) and threads of a unit;
    most_buffers, that one kernel may take. few_rows: what products of few rows take, of a processor where that was
    measured.

    abilities: words. "blocks": kernels run as blocks of threads, of which a unit takes a few at a time, and memory
    is read in lines that neighbouring threads share. "finish": the last block of a kernel can combine what all have
    stored (`Kernel.finish`). "arena": small buffers are worth having fixed places in one allocation. "recording":
    CUDA graphs can record a call. "separate_bias": the library adds a convolution's bias by a kernel of its own (unless
    it is depthwise and channels first), so that a Loop does as well and may fuse. "attention": core has kernels of it;
    "attention_blocks": one that calls BLAS on blocks.
    "beside": the code generator's `join` puts the sources of several kernels in one launch (`Kernel.beside`).
    "float8": kernels load and store float8, and convert it.

    What the wrapper does for it: allocator, "torch" (`torch.empty_strided`), "pool" (litz's pool of host memory) or
    "cuda" (torch's CUDA allocator, of the current device); guard, a context manager around a call that makes the device
    the current one, as Python text, '' for none; addressed, its tensors have memory, whose addresses kernels take;
    aligned, kernels assume that inputs which they only read start at multiples of 16 bytes; asynchronous, the host goes
    on while a kernel runs.
    """

    type: str
    index: int | None = None
    name: str = ""
    capability: int = 0
    source: str = "nobody knows this device"
    assumed: bool = False
    measured: frozenset[str] = frozenset()
    rough: bool = False
    units: int = 1
    bandwidth: float = 1e4
    launch_us: float = 2.0
    vector: Mapping[str, float] = field(default_factory=lambda: {"fp32": 1e4}, hash=False)
    matrix: Mapping[str, float] = field(default_factory=dict, hash=False)
    shares: Mapping[str, Share] = field(default_factory=lambda: SHARES, hash=False, repr=False)
    tf32: frozenset[str] = frozenset()
    cache_bytes: int = 1 << 20
    row_bytes: int = 128 << 10
    shared_bytes: int = 0
    registers: int = 0
    threads: int = 1
    most_buffers: int = 48
    few_rows: FewRows | None = None
    abilities: frozenset[str] = frozenset()
    allocator: Literal["torch", "pool", "cuda"] = "torch"
    guard: str = ""
    addressed: bool = True
    aligned: bool = False
    asynchronous: bool = False

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    @property
    def usual_bandwidth(self) -> float:
        """Returns the bytes per microsecond that kernels usually reach."""
        return self.bandwidth * (1.0 if "bandwidth_gb_s" in self.measured else self.shares["memory"].usual)

    @property
    def usual_flops(self) -> float:
        """Returns the FLOPs per microsecond that loops in float32 usually reach. A measured rate is discounted too, as
        calibration times contractions, and no loop is as fast as those."""
        return self.vector["fp32"] * self.shares["loop"].usual

    def vector_rate(self, kind: str) -> tuple[float, str]:
        """Returns the FLOPs per microsecond of the ordinary units for a kind of dtype, and the name of that figure."""
        if kind in self.vector:
            return self.vector[kind], f"vector_tflops.{kind}"
        # Integers run at half the fp32 rate (64 of 128 lanes of an SM from Ampere on); 64-bit ones at less, but then
        # they are few beside the bytes they move.
        rate = self.vector["fp32"]
        return (rate / 2 if kind in ("int", "int8") else rate), "vector_tflops.fp32"

    def matrix_rate(self, kind: str, use: str = "matmul") -> tuple[float, str]:
        """Returns the FLOPs per microsecond of a contraction in a kind of dtype, and the name of that figure.

        use: "matmul" or "convolution", for which torch allows TF32 separately. A kind that the matrix units lack runs
        on the ordinary ones.
        """
        if kind == "fp32" and use in self.tf32 and "tf32" in self.matrix:
            kind = "tf32"
        if kind in self.matrix:
            return self.matrix[kind], f"matrix_tflops.{kind}"
        return self.vector_rate(kind)


TargetOf = Callable[[Any], Target]
"""Returns the target of a device (a torch.device) in one compile."""


def unknown_target(device: Any) -> Target:
    """Returns a target for a device that nobody describes: its figures serve only to compare loops."""
    return Target(getattr(device, "type", str(device)), getattr(device, "index", None), assumed=True)


@dataclass(frozen=True)
class Estimate:
    """How long something is expected to run: ``us`` microseconds, surely between ``low_us`` and ``high_us``.

    ``why`` is for the report: what bounds the time, or where the number was measured. A decision is kept only where
    its gain survives the interval. ValueError unless 0 <= low_us <= us <= high_us and ``us`` is finite.
    """

    us: float
    low_us: float
    high_us: float
    why: str

    def __post_init__(self) -> None:
        if not (0 <= self.low_us <= self.us <= self.high_us) or not math.isfinite(self.us):
            raise ValueError(
                f"an estimate needs 0 <= low_us <= us <= high_us with a finite us; got low_us={self.low_us}, "
                f"us={self.us}, high_us={self.high_us}"
            )


@dataclass(frozen=True)
class Decision:
    """One decision on record: what was chosen for ``subject``, why, and what else was considered.

    stage: "graph", "lower", "program", "schedule" or a later one ("codegen", "runtime"). considered: (name,
    microseconds) of each candidate, None where no cost is known. plugin: who decided; "core" for core itself. key: what
    the option `veto` calls it (`litz_plugins.vetoes`), '' where it cannot be left out alone. gained_us: by how much it
    was measured to be faster than what there would be without it, None where nobody measured.
    """

    stage: str
    subject: str
    chosen: str
    reason: str
    considered: tuple[tuple[str, float | None], ...] = ()
    plugin: str = "core"
    key: str = ""
    gained_us: float | None = None

    def __str__(self) -> str:
        text = f"{self.subject}: {self.chosen} ({self.reason})"
        if self.considered:
            costs = ", ".join(name if us is None else f"{name} {us:.4g} us" for name, us in self.considered)
            text += f"; considered {costs}"
        return text


@dataclass(frozen=True)
class Uncacheable:
    """What `litz_cache_fingerprint` answers where compiled graphs must not be kept for other processes, and why."""

    reason: str


Ask = Callable[[Operation, "Target", Program], "tuple[str, Estimate] | None"]
"""Returns the time that plugins expect of an operation and the name of the plugin that answered; None where all plugins
decline."""


def _no_estimate(operation: Operation, target: Target, program: Program) -> Estimate | None:
    return None


def _no_attachment(name: str, text: str) -> None:
    pass


def _no_verdict(name: str, why: str) -> None:
    pass


def _no_doubt(reason: str) -> None:
    pass


def _no_note(decision: Decision) -> None:
    return None


@dataclass(frozen=True)
class PassContext:
    """What a pass is handed beside its noun.

    options: the compile's options. stage, pass_name, plugin: of the pass that runs, for the record. estimate: called as
    ``estimate(operation, target, program)``, asks ``litz_estimate_runtime``; None when nobody knows. note: takes a
    Decision (use `record`). target_of: called with a torch.device, gives its `Target`. ask: as `estimate`, of the
    plugins other than core, with the name of the one that answers; remembered by the structure of a loop. None where
    no plugin has an opinion on any operation. gate: the decisions that this compile must not take (use `allows`).
    """

    options: OptionsView
    stage: str = "program"
    pass_name: str = ""
    plugin: str = "core"
    estimate: Callable[[Operation, Target, Program], Estimate | None] = _no_estimate
    note: Callable[[Decision], None] = _no_note
    attach: Callable[[str, str], None] = _no_attachment
    target_of: TargetOf = unknown_target
    ask: Ask | None = None
    gate: Gate = field(default_factory=Gate)

    def allows(self, about: str) -> bool:
        """May the pass do what it is about to do? False where the option `veto` names it: do the other thing then.

        about: what the decision is about, the same in every run: the name of the node or operation that it is taken
        for. A pass that asks can be undone decision by decision, and `litz bisect` finds the one that does harm.
        """
        return self.gate.take(self.pass_name, about)

    def weigh(self, about: str, pays: bool, without_us: float | None, with_us: float | None) -> tuple[bool, str]:
        """Returns whether a decision whose estimates are known is taken, and why; the reason is '' for the estimates.

        pays: do the estimates favour the decision? without_us, with_us: the expected time (µs) of everything that the
        decision concerns, if it is not taken and if it is. Ask also where the decision does not pay:
        `mode="max-autotune"` measures close ones, and the option `prefer` may name a way.
        """
        return self.gate.weigh(self.pass_name, about, pays, without_us, with_us)

    @property
    def tries(self) -> bool:
        """Do the options `prefer` or `max_autotune` ask for ways that the estimates do not choose? If not, their times
        need not be worked out."""
        return bool(getattr(self.options, "max_autotune", False) or self.gate.preferences.ways)

    def choose(self, about: str, ways: Sequence[tuple[str, float | None]], best: str, without: str) -> tuple[str, str]:
        """Returns the way of a decision that has several, and why. ways: each with its expected time in µs. without:
        the way that is taken if nothing is decided, one of `ways`."""
        return self.gate.choose(self.pass_name, about, ways, best, without)

    def record(
        self,
        subject: str,
        chosen: str,
        reason: str,
        considered: Sequence[tuple[str, float | None]] = (),
        plugin: str = "",
        about: str = "",
    ) -> None:
        """Puts a decision on record: ``chosen`` for ``subject`` because of ``reason``; considered: (name, µs) pairs.
        plugin: who decided, where that is not the pass's own. about: what `allows` was asked about, where it was."""
        key = key_of(self.gate.graph, self.pass_name, about) if about else ""
        self.note(Decision(self.stage, subject, chosen, reason, tuple(considered), plugin or self.plugin, key))


@dataclass(frozen=True)
class Pass:
    """A pure function from noun to noun, with a place in the order.

    name: unique among all plugins' passes. stage: which noun ``run`` takes and returns. run: called as
    ``run(noun, context)``; must return a noun of the same kind (the same object if nothing changed) and change nothing
    in place. after, before: names of passes of the same stage, of any plugin; a name that nobody registers is an error,
    unless it ends in "?": that pass need not be there, as its plugin may be absent. plugin: filled in by the manager.
    """

    name: str
    stage: Stage
    run: Callable[[Noun, PassContext], Noun]
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    plugin: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a pass needs a name")
        if self.stage not in STAGES:
            raise ValueError(f"pass {self.name!r}: stage is one of {', '.join(STAGES)}; got {self.stage!r}")
        if not callable(self.run):
            raise TypeError(f"pass {self.name!r}: run must be callable; got {type(self.run).__name__}")
        for side in ("after", "before"):
            names = getattr(self, side)
            if isinstance(names, str):  # after="fuse" would otherwise mean f, u, s and e
                raise TypeError(f"pass {self.name!r}: {side} is a tuple of names; write {side}=({names!r},)")
            object.__setattr__(self, side, tuple(names))


@dataclass(frozen=True)
class OptionSpec:
    """One option of a plugin, set as ``options={"plugin.name": value}`` or LITZ_PLUGIN_NAME in the environment.

    name: lower-case identifier, without the plugin's name (the manager adds it). type: bool, int, float, str, Path or
    tuple (of strings). default: of that type, or None for "not set". help: one sentence. choices: allowed values, None
    for any. unit: of an int that is an amount of memory, the bytes that 1 stands for (1 << 20 for MiB); such an option
    takes sizes like "8GiB" too. 0 for every other option.
    """

    name: str
    type: type[Any]
    default: Any
    help: str
    choices: tuple[Any, ...] | None = None
    unit: int = 0

    def __post_init__(self) -> None:
        if not all(_NAME.fullmatch(part) for part in self.name.split(".")):
            raise ValueError(f"option {self.name!r}: a name is lower-case letters, digits and underscores")
        if self.type not in _OPTION_TYPES:
            raise ValueError(f"option {self.name!r}: type is one of bool, int, float, str, Path, tuple")
        if self.default is not None and not _is_of(self.default, self.type):
            raise ValueError(f"option {self.name!r}: the default {self.default!r} is no {self.type.__name__}")
        if self.choices is not None:
            object.__setattr__(self, "choices", tuple(self.choices))
            if self.default is not None and self.default not in self.choices:
                raise ValueError(f"option {self.name!r}: the default {self.default!r} is none of its choices")
        if self.unit and self.type is not int:
            raise ValueError(f"option {self.name!r}: only an int counts units of memory")
        if not self.help:
            raise ValueError(f"option {self.name!r}: needs a help text")


def _is_of(value: object, type_: type[Any]) -> bool:
    """Is the value an instance of the type? True is no int, and an int is a float."""
    if type_ in (int, float) and isinstance(value, bool):
        return False
    if type_ is float:
        return isinstance(value, (int, float))
    return isinstance(value, type_)


def _not_known(operation: Operation) -> None:
    return None


@dataclass(frozen=True)
class Choice:
    """One way to run a contraction: the library call ("extern") or a kernel template with its parameters filled in.

    payload: the litz.ir operation that takes the contraction's place and writes the same buffers (a `KernelCall` brings
    its kernel along), or a `litz.schedule.choices.Replacement`, which may do the work of the contraction's users too,
    or a `Recipe` for one.
    estimate: of the payload, None when unknown. replaced: of what it takes the place of, where the offer knows that
    better than the cost models do; None asks them.
    """

    name: str
    kind: Literal["extern", "template"]
    payload: object = None
    estimate: Estimate | None = None
    replaced: Estimate | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("extern", "template"):
            raise ValueError(f"choice {self.name!r}: kind is 'extern' or 'template'; got {self.kind!r}")


@dataclass(frozen=True)
class ChoiceContext:
    """Where a choice is made: for which operation, on which target, under which options.

    program: the litz.ir.Program that the operation is part of, as it is by then. cache: the on-disk cache
    (litz.runtime.cache.Cache). note: takes a Decision (use `record`). attach: takes a file name and a text for the
    graph's report, in place of what had that name; a ".txt" is shown by `litz explain` too, an ".svg" as a picture.
    estimate: what all cost models say of an operation of the program, None where none knows. verdict: takes the name
    of a way to run the contraction and why it is not offered, not chosen, or chosen: reports show both. unsettled:
    takes the reason why another process may choose otherwise (a measurement that is still to be made): the graph is not
    kept in the graph cache then.
    """

    operation: Operation
    target: Target
    options: OptionsView
    program: Program = None
    cache: Any = None
    note: Callable[[Decision], None] = _no_note
    attach: Callable[[str, str], None] = _no_attachment
    estimate: Callable[[Operation], Estimate | None] = _not_known
    verdict: Callable[[str, str], None] = _no_verdict
    unsettled: Callable[[str], None] = _no_doubt

    def record(
        self,
        chosen: str,
        reason: str,
        considered: Sequence[tuple[str, float | None]] = (),
        plugin: str = "core",
        gained_us: float | None = None,
    ) -> None:
        """Put on record why the operation is done as it is; considered: (name, us) pairs. gained_us: as of
        `Decision`."""
        about = (self.operation.name, chosen, reason, tuple(considered))
        self.note(Decision("schedule", *about, plugin, gained_us=gained_us))


LayoutNeed = Literal["any", "traced", "contiguous"]
"""How a library call takes a tensor argument: in any strides, in those of the trace, or row-major."""


@dataclass(frozen=True)
class Conversion:
    """A copy of a tensor in another layout, made once in a graph and read by some of the tensor's users.

    tensor: FX node name. order: of the copy, as in `LayoutPlan.strides`. users: names of the FX nodes that read the
    copy in place of the tensor; the graph's output node is one like any other ("output"). us: expected time, None where
    it is not known. reason: who asked for it.
    """

    tensor: str
    order: tuple[int, ...]
    users: tuple[str, ...]
    reason: str = ""
    us: float | None = None

    def __post_init__(self) -> None:
        _check_order(self.tensor, self.order)
        if not self.users or isinstance(self.users, str):
            raise ValueError(f"conversion of {self.tensor!r}: users is a tuple of one or more node names")


@dataclass(frozen=True)
class LayoutPlan:
    """Memory layouts chosen for a graph's tensors.

    strides: FX node name -> dimensions from the outermost (largest stride) to the innermost, e.g. (0, 2, 3, 1) for a
    channels-last NCHW tensor; a result of an op with several is named by its getitem node. reasons: node name -> why.
    Nodes that are not named keep their layout. conversions: copies to insert. decisions: more for the record (a graph
    that was left alone, say). attachments: file name -> text, for the report's folder; a ".txt" is shown by
    `litz explain`, a ".svg" in the HTML page. us: what all that it is about is expected to take as traced, and as
    planned; None where nobody knows. pays: is it to be applied? One that is not may still be measured.
    """

    strides: Mapping[str, tuple[int, ...]]
    reasons: Mapping[str, str] = field(default_factory=dict)
    conversions: tuple[Conversion, ...] = ()
    decisions: tuple[Decision, ...] = ()
    keep_outputs: bool = True
    attachments: Mapping[str, str] = field(default_factory=dict)
    us: tuple[float, float] | None = None
    pays: bool = True

    def __post_init__(self) -> None:
        for name, order in self.strides.items():
            _check_order(name, order)


def _check_order(name: str, order: tuple[int, ...]) -> None:
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"layout of {name!r}: {order} is no permutation of its {len(order)} dimensions")


@dataclass(frozen=True)
class TemplateSpec:
    """A kernel template. kinds: the contractions it implements ("mm", "bmm", "addmm", "convolution", "attention", ...).

    make_choices: called as ``make_choices(operation, context)`` once per contraction of one of the kinds; returns the
    candidates (a Choice of kind "template" each), none when the shapes do not suit it.
    """

    name: str
    kinds: tuple[str, ...]
    make_choices: Callable[[Operation, ChoiceContext], Sequence[Choice]]
    plugin: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str):
            raise TypeError(f"template {self.name!r}: kinds is a tuple of names; write kinds=({self.kinds!r},)")
        object.__setattr__(self, "kinds", tuple(self.kinds))


SafeForms = Callable[[Collection[str]], Mapping[str, str | None]]
"""The type of `CodegenContext.safe_forms`."""


def _trusted(constructs: Collection[str]) -> Mapping[str, str | None]:
    """The compiler gets nothing wrong."""
    return {}


@dataclass(frozen=True)
class CodegenContext:
    """Where a kernel is generated and built: under which options, for which target.

    program: the litz.ir.Program of the kernel, for its buffers' layouts and its hints. cache: the on-disk cache
    (litz.runtime.cache.Cache) for what `Codegen.load` builds. safe_forms: for C++, takes the constructs of a kernel;
    returns those of them that the machine's compiler gets wrong, each with the form that it is built in instead (None:
    no form is right). A kernel may be generated twice: once to learn the constructs of all kernels, which are tested
    together, and again where the compiler gets one of them wrong.
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
        """The language that `generate` writes: "triton", "cpp", ..."""

    def generate(self, kernel: KernelPlan, context: Any) -> Any:
        """Source of one kernel (a `KernelSource`). Pure: the same kernel gives the same text.

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
class PreparingCodegen(Codegen, Protocol):
    """A code generator whose builds need something that takes time to start."""

    def prepare(self, options: OptionsView) -> None:
        """Start it. Called before a graph is compiled that the graph cache could have had and has not, any number of
        times, and long before `load`: must return at once."""


@dataclass(frozen=True)
class TargetSpec:
    """A type of device that litz compiles for.

    type: torch's ("cpu", "cuda", "xpu", ...). describe: called as ``describe(device, options)`` with a torch.device,
    once a compile for each device; returns its `Target` as its maker or driver says, to which core adds what a
    calibration file measured. codegen: writes, builds and loads its kernels. plugin: filled in by the manager.

    packing: the name of a module that puts its kernels into packages (`litz.aot_compile`), '' if there is none. A
    process that loads a package imports that module and no compiler. It has four functions:

    - ``here()``: the `Target` of this process's device, `assumed` if there is none.
    - ``made_for(target)``: what the binaries depend on, as text: a package is loaded where that is the same.
    - ``pack(source, context, folder, common)``: puts the files that a `KernelSource` needs into its own folder, and
      what all kernels need into another; returns what `unpack` is to know, as JSON-able data.
    - ``unpack(source, files, data)``: what `Codegen.load` would return, from the files by name. The source has no text.
    """

    type: str
    describe: Callable[[Any, OptionsView | None], Target]
    codegen: Codegen
    packing: str = ""
    plugin: str = ""

    def __post_init__(self) -> None:
        if not self.type:
            raise ValueError("a target needs a type of device")
        if not callable(self.describe):
            raise TypeError(f"target {self.type!r}: describe must be callable as describe(device, options)")
