"""The data that plugins return and are handed: frozen records, no behaviour beyond checks of their own fields.

Times are microseconds, sizes bytes, unless a name says otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from litz_plugins.nouns import Kernel, Noun, Operation, OptionsView, Program

Stage = Literal["graph", "program", "schedule"]
STAGES: tuple[Stage, ...] = ("graph", "program", "schedule")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OPTION_TYPES = (bool, int, float, str, Path, tuple)


@dataclass(frozen=True)
class DeviceInfo:
    """A device as data, so that a hook needs no torch. ``type`` is torch's ("cpu", "cuda", ...), ``index`` None for
    the only one, ``name`` what the driver calls it ("NVIDIA H100 80GB HBM3"), '' when unknown.

    ``facts`` are numbers that core knows of this very device, sorted pairs of a name and a value: what the driver says,
    what a calibration file measured, what torch allows. `litz.cost.speeds` documents the names.
    """

    type: str
    index: int | None = None
    name: str = ""
    facts: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


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

    def surely_faster_than(self, other: Estimate) -> bool:
        """True when this is faster even if it is slow and ``other`` is fast."""
        return self.high_us < other.low_us


@dataclass(frozen=True)
class Decision:
    """One decision on record: what was chosen for ``subject``, why, and what else was considered.

    stage: "graph", "lower", "program", "schedule" or a later one ("codegen", "runtime"). considered: (name,
    microseconds) of each candidate, None where no cost is known. plugin: who decided; "core" for core itself.
    """

    stage: str
    subject: str
    chosen: str
    reason: str
    considered: tuple[tuple[str, float | None], ...] = ()
    plugin: str = "core"

    def __str__(self) -> str:
        text = f"{self.subject}: {self.chosen} ({self.reason})"
        if self.considered:
            costs = ", ".join(name if us is None else f"{name} {us:.4g} us" for name, us in self.considered)
            text += f"; considered {costs}"
        return text


def _no_estimate(operation: Operation, device: DeviceInfo, program: Program) -> Estimate | None:
    return None


def _no_attachment(name: str, text: str) -> None:
    pass


def _no_note(decision: Decision) -> None:
    return None


@dataclass(frozen=True)
class PassContext:
    """What a pass is handed beside its noun.

    options: the compile's options. stage, pass_name, plugin: of the pass that runs, for the record. estimate: called as
    ``estimate(operation, device, program)``, asks ``litz_estimate_runtime``; None when nobody knows. note: takes a
    Decision (use `record`).
    """

    options: OptionsView
    stage: str = "program"
    pass_name: str = ""
    plugin: str = "core"
    estimate: Callable[[Operation, DeviceInfo, Program], Estimate | None] = _no_estimate
    note: Callable[[Decision], None] = _no_note
    attach: Callable[[str, str], None] = _no_attachment

    def record(
        self, subject: str, chosen: str, reason: str, considered: Sequence[tuple[str, float | None]] = ()
    ) -> None:
        """Put a decision on record: ``chosen`` for ``subject`` because of ``reason``; considered: (name, us) pairs."""
        self.note(Decision(self.stage, subject, chosen, reason, tuple(considered), self.plugin))


@dataclass(frozen=True)
class Pass:
    """A pure function from noun to noun, with a place in the order.

    name: unique among all plugins' passes. stage: which noun ``run`` takes and returns. run: called as
    ``run(noun, context)``; must return a noun of the same kind (the same object if nothing changed) and change nothing
    in place. after, before: names of passes of any plugin; names that nobody registers are ignored, as a plugin may be
    absent. plugin: filled in by the manager.
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
    for any.
    """

    name: str
    type: type[Any]
    default: Any
    help: str
    choices: tuple[Any, ...] | None = None

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
        if not self.help:
            raise ValueError(f"option {self.name!r}: needs a help text")


def _is_of(value: object, type_: type[Any]) -> bool:
    """isinstance, except that True is no int and an int is a float."""
    if type_ in (int, float) and isinstance(value, bool):
        return False
    if type_ is float:
        return isinstance(value, (int, float))
    return isinstance(value, type_)


@dataclass(frozen=True)
class Choice:
    """One way to run a contraction: the library call ("extern") or a kernel template with its parameters filled in.

    payload: the litz.ir operation that takes the contraction's place and writes the same buffers (a `KernelCall` brings
    its kernel along), or a `litz.schedule.choices.Replacement`, which may do the work of the contraction's users too,
    or a `Recipe` for one.
    estimate: of the payload, None when unknown.
    """

    name: str
    kind: Literal["extern", "template"]
    payload: object = None
    estimate: Estimate | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("extern", "template"):
            raise ValueError(f"choice {self.name!r}: kind is 'extern' or 'template'; got {self.kind!r}")


@dataclass(frozen=True)
class ChoiceContext:
    """Where a choice is made: for which operation, on which device, under which options.

    program: the litz.ir.Program that the operation is part of, as it is by then. cache: the on-disk cache
    (litz.runtime.cache.Cache). note: takes a Decision (use `record`). attach: takes a file name and a text for the
    graph's report, in place of what had that name; a ".txt" is shown by `litz explain` too, an ".svg" as a picture.
    """

    operation: Operation
    device: DeviceInfo
    options: OptionsView
    program: Program = None
    cache: Any = None
    note: Callable[[Decision], None] = _no_note
    attach: Callable[[str, str], None] = _no_attachment

    def record(
        self, chosen: str, reason: str, considered: Sequence[tuple[str, float | None]] = (), plugin: str = "core"
    ) -> None:
        """Put on record why the operation is done as it is; considered: (name, us) pairs."""
        self.note(Decision("schedule", self.operation.name, chosen, reason, tuple(considered), plugin))


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
    `litz explain`, a ".svg" in the HTML page.
    """

    strides: Mapping[str, tuple[int, ...]]
    reasons: Mapping[str, str] = field(default_factory=dict)
    conversions: tuple[Conversion, ...] = ()
    decisions: tuple[Decision, ...] = ()
    keep_outputs: bool = True
    attachments: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, order in self.strides.items():
            _check_order(name, order)


def _check_order(name: str, order: tuple[int, ...]) -> None:
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"layout of {name!r}: {order} is no permutation of its {len(order)} dimensions")


@dataclass(frozen=True)
class TemplateSpec:
    """A kernel template. kinds: the contractions it implements ("mm", "bmm", "addmm", "conv2d", "attention", ...).

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


@dataclass(frozen=True)
class CodegenContext:
    """Where a kernel is generated and built: under which options, for which device.

    program: the litz.ir.Program of the kernel, for its buffers' layouts and its hints. cache: the on-disk cache
    (litz.runtime.cache.Cache) for what `Codegen.load` builds. safe_forms: for C++, the constructs that the machine's
    compiler gets wrong, and the form that each is built in instead (None: none is right).
    """

    options: OptionsView
    device: DeviceInfo
    program: Program = None
    cache: Any = None
    safe_forms: Mapping[str, str | None] = field(default_factory=dict)


COUNTERS = "_counters"
"""See `KernelSource.arguments`."""


@dataclass(frozen=True)
class KernelSource:
    """One generated kernel as text: what is cached, shown in reports and built.

    name: of the kernel, unique in its graph. language: of the text ("triton", "cpp", ...). text: the whole source.
    symbol: the function to call in it. settings: what the launcher and the builder need, as JSON-able values.
    arguments: what the launch function takes, in order: a str names a buffer, passed as the address of its data (an
    int); anything else is a size expression, passed as an int. The name `COUNTERS` stands for settings["counters"]
    zeros of type int32 that no other launch touches. Text and settings should name no buffer of the graph, so that
    kernels that differ only in their arguments are built once.
    """

    name: str
    language: str
    text: str
    symbol: str
    arguments: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Codegen(Protocol):
    """A code generator for one device type, registered by ``litz_register_codegens``."""

    @property
    def language(self) -> str:
        """What `generate` writes: "triton", "cpp", ..."""

    def generate(self, kernel: Kernel, context: Any) -> Any:
        """Source of one kernel of the schedule (a `KernelSource`). Pure: the same kernel gives the same text.

        ``context`` is a `CodegenContext`.
        """

    def load(self, source: Any, context: Any) -> Callable[..., Any]:
        """Build (or fetch from the cache) and load; returns the function that launches the kernel."""
