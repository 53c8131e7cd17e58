"""Operations: what a Program does, one after the other.

Every operation has a name, the buffers it reads and the buffers it writes; that is all that scheduling needs to know
of what it does not understand. A buffer may be written by more than one operation (a scatter into a copy, a mutation
of an input); then program order counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import sympy
import torch

from .accesses import Access, find_accesses
from .arguments import leaves
from .buffer import TensorRef
from .index import Expr, Symbol, is_placeholder, product, symbols_in
from .node import Node, walk
from .reductions import REDUCTIONS
from .stages import find_depths

if TYPE_CHECKING:
    from .program import Program

StoreMode = Literal["set", "add", "prod", "max", "min"]


@dataclass(frozen=True)
class Range:
    """A loop variable and its extent: 0 <= var < size."""

    var: Symbol  # the variable
    size: Expr  # how many values the variable has, from 0 on

    def __str__(self) -> str:
        return f"{self.var}<{self.size}"


@dataclass(frozen=True)
class Store:
    """One element written per iteration.

    A value at reduction level (it depends on a reduction variable outside of any `reduce`) is stored once per point of
    output and reduction ranges, any other once per point of the output ranges. mode: other than "set", it combines
    with what is there, atomically: iterations may meet at one element. mask: nothing is written where it is False.
    """

    buffer: str  # the name of the buffer that is written
    index: tuple[Expr, ...]  # an expression per dimension of the buffer
    value: Node  # what is stored
    indirect: tuple[Node, ...] = ()  # what the placeholders of the index stand for
    mode: StoreMode = "set"
    mask: Node | None = None

    @property
    def roots(self) -> tuple[Node, ...]:
        """Returns every node that the store needs directly."""
        return (*self.indirect, *(() if self.mask is None else (self.mask,)), self.value)

    @property
    def is_plain(self) -> bool:
        """Returns whether each iteration writes one element that is known without running the loop."""
        return self.mode == "set" and self.mask is None and not self.indirect


@dataclass(frozen=True)
class Loop:
    """Output ranges, reduction ranges and a body: pointwise, reduction, scan, scatter and random alike.

    The body is the stores and the expressions that they need. Fusing two loops over one iteration space gives a Loop,
    so a fused kernel is the same kind of data as what it was made of: it prints, verifies and runs in the interpreter.
    The order of the ranges is not the order of execution; code generation chooses that. A reduction takes its values
    over the reduction ranges, or has ranges of its own and may be part of the values of another (`nested`).
    """

    name: str  # unique in its program
    device: torch.device  # that runs the loop
    ranges: tuple[Range, ...]  # those of its outputs
    reduction_ranges: tuple[Range, ...]  # those that its reductions and scans walk
    stores: tuple[Store, ...]  # the body
    origins: tuple[str, ...] = ()  # the graph's nodes behind it

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Returns every node of the body, arguments before users."""
        return tuple(walk(*(root for store in self.stores for root in store.roots)))

    @cached_property
    def loads(self) -> tuple[Node, ...]:
        """Returns the `load` nodes of the body, arguments before users."""
        return tuple(node for node in self.nodes if node.op == "load")

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Returns the names of the buffers that the loop reads, in order of first use. A buffer that a store combines
        into counts as read."""
        names = [node.buffer for node in self.loads]
        names += [store.buffer for store in self.stores if store.mode != "set"]
        return tuple(dict.fromkeys(names))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Returns the names of the buffers that are stored to, in order of first use."""
        return tuple(dict.fromkeys(store.buffer for store in self.stores))

    @cached_property
    def all_ranges(self) -> tuple[Range, ...]:
        """Returns the output ranges, then the reduction ranges."""
        return (*self.ranges, *self.reduction_ranges)

    @cached_property
    def nested(self) -> tuple[Range, ...]:
        """Returns the ranges that reductions of the body own, each once, in order of first use."""
        return tuple(dict.fromkeys(r for node in self.nodes if node.op == "reduce" for r in node.over))

    @cached_property
    def extents(self) -> Mapping[Symbol, Expr]:
        """Returns the size of each variable: of the loop's ranges, then of those that its reductions own."""
        return {r.var: r.size for r in (*self.all_ranges, *self.nested)}

    @property
    def numel(self) -> Expr:
        """Returns the number of points of the output ranges."""
        return product(r.size for r in self.ranges)

    @property
    def reduction_numel(self) -> Expr:
        """Returns the number of points of the reduction ranges: 1 without any."""
        return product(r.size for r in self.reduction_ranges)

    @property
    def is_reduction(self) -> bool:
        """Returns whether the loop has reduction ranges."""
        return bool(self.reduction_ranges)

    @cached_property
    def has_scan(self) -> bool:
        """Returns whether there is a scan in the body."""
        return any(node.op == "scan" for node in self.nodes)

    @cached_property
    def ordered(self) -> bool:
        """Returns whether the result depends on the order of the reduction ranges, as scans and positions do."""
        return self.has_scan or any(n.op == "reduce" and REDUCTIONS[n.attrs[0]].ordered for n in self.nodes)

    @cached_property
    def levels(self) -> Mapping[Node, bool]:
        """Returns, for each node, whether its value varies along a reduction range."""
        if not self.reduction_ranges:
            return dict.fromkeys(self.nodes, False)
        inner = {r.var for r in self.reduction_ranges}
        return {node: not inner.isdisjoint(found) for node, found in self.variables.items()}

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Returns the loads of the loop, then its stores."""
        return tuple(find_accesses(self))

    @cached_property
    def depths(self) -> Mapping[Node, int]:
        """Returns the reduction depth of each node (`litz.ir.stages.find_depths`)."""
        return find_depths(self)

    @cached_property
    def variables(self) -> Mapping[Node, frozenset[Symbol]]:
        """Returns the variables that each node's value depends on; for a reduction over the loop's reduction ranges,
        those of the output ranges."""
        own, nested = set(self.extents), frozenset(r.var for r in self.nested)
        outer, whole = frozenset(r.var for r in self.ranges), frozenset(r.var for r in self.all_ranges)
        found: dict[Node, frozenset[Symbol]] = {}
        for node in self.nodes:
            if node.over:
                found[node] = frozenset[Symbol]().union(*(found[arg] for arg in node.args)) - {r.var for r in node.over}
            elif node.op in ("reduce", "scan"):
                inside = nested.intersection(*(found[arg] for arg in node.args)) if nested else nested
                found[node] = (outer if node.op == "reduce" else whole) | inside
            else:
                found[node] = (symbols_in(expressions(node)) & own).union(*(found[arg] for arg in node.args))
        return found

    def positions_by(self, access: Access) -> frozenset[Symbol]:
        """Returns the loop variables that the position of an access depends on, through its index or through data:
        gathered elements may lie anywhere."""
        by_data = (self.variables[node] for node in access.site.indirect)
        return (access.symbols & self.extents.keys()).union(*by_data)

    def at_reduction_level(self, store: Store) -> bool:
        """Returns whether the store is made once per point of the reduction ranges too."""
        inner = {r.var for r in self.reduction_ranges}
        return not symbols_in(store.index).isdisjoint(inner) or any(self.levels[root] for root in store.roots)

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """Returns the size symbols that the loop needs at run time, apart from those of its buffers' layouts."""
        found = symbols_in(tuple(self.expressions)) - self.extents.keys()
        return frozenset(symbol for symbol in found if not is_placeholder(symbol))

    @property
    def expressions(self) -> Iterator[Expr]:
        """Yields every index expression: extents, then those of the nodes, then those of the stores."""
        yield from (r.size for r in self.all_ranges)
        for node in self.nodes:
            yield from expressions(node)
        for store in self.stores:
            yield from store.index


def expressions(node: Node) -> tuple[Expr, ...]:
    """Returns the index expressions in a node's attributes."""
    if node.op == "load":
        return node.index
    return node.attrs[:1] if node.op in ("index", "bounded") else tuple(r.size for r in node.over)


@dataclass(frozen=True)
class Unbacked:
    """A size that is known only once an Extern has run: where to read it off.

    `path` leads from the call's result to the value: integers index, ("size", d), ("stride", d) and ("storage_offset",)
    ask a tensor, ("item",) takes a Python scalar as it is, and ("divide", n) an n-th of what was reached.
    """

    symbol: Symbol  # that a result defines
    path: tuple[int | tuple[Any, ...], ...]  # where in the result its value is


Use = Literal["matmul", "convolution", "attention"]


@dataclass(frozen=True)
class Contraction:
    """FLOPs, the inputs' dtype, and how many units of a device it can keep busy. between: bytes of what the call writes
    to memory and reads again. launches: kernels of the call. alone: bytes that one unit reads by itself, at least; 0
    where that is not known."""

    use: Use  # "matmul", "convolution" or "attention"
    flops: float  # of the whole
    dtype: torch.dtype  # the inputs'
    pieces: float  # how many units of a device it can keep busy
    between: float = 0.0
    launches: int = 1
    alone: float = 0.0


@dataclass(frozen=True)
class Extern:
    """A call of a library or of any ATen op that litz does not lower.

    args, kwargs: nested tuples, lists and dicts of TensorRef, sympy expressions and plain constants. outputs: the name
    of a buffer per result tensor (None for one that is not a tensor or not used). mutates: names of buffers that the
    call writes besides. aliases: for an output buffer, the buffer whose memory it shares. effect: the call must happen,
    in program order, even if nothing reads what it writes.
    """

    name: str  # unique in its program
    device: torch.device  # that runs the call
    target: Callable[..., Any]  # the function or operator
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str | None, ...] = ()
    mutates: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    unbacked: tuple[Unbacked, ...] = ()  # symbols that the results define
    effect: bool = False
    origins: tuple[str, ...] = ()  # the graph's nodes behind it

    @cached_property
    def refs(self) -> tuple[TensorRef, ...]:
        """Returns every tensor argument."""
        return tuple(value for value in leaves((self.args, self.kwargs)) if isinstance(value, TensorRef))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Returns the names of the buffers of the tensor arguments, in order, each once."""
        return tuple(dict.fromkeys(ref.buffer for ref in self.refs))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Returns the names of the buffers of the results, then of those that the call writes besides."""
        return tuple(dict.fromkeys((*(name for name in self.outputs if name is not None), *self.mutates)))

    @property
    def target_name(self) -> str:
        """Returns the op's name as a user would write it: aten.mm.default."""
        return str(self.target) if isinstance(self.target, torch._ops.OpOverload) else self.target.__name__

    @property
    def reads_aligned(self) -> bool:
        """Returns whether a GPU's kernel is wrong or faults where a tensor starts at no multiple of 16 bytes."""
        return self.target_name.startswith("aten.") and "_attention" in self.target_name

    def contraction(self, program: Program) -> Contraction | None:
        """Returns the FLOPs of the call, where its class knows them; None leaves them to `litz.cost`, by the op."""
        return None


@dataclass(frozen=True)
class Template(Extern):
    """A contraction that a kernel template may implement; the Extern that it is stays its library twin.

    `kind` is what templates register for: "mm", "addmm", "bmm", "baddbmm", "convolution", ...
    """

    kind: str = ""  # of contraction: "mm", "convolution", ...


class Part:
    """A frozen dataclass that is a field of a call, and names buffers: TensorRefs, or what holds them.

    A plugin may have kinds of calls of its own, subclasses of Extern or Template, with fields of any type that prints:
    TensorRefs, Loops, expressions, constants and Parts. The printer, the verifier, the interpreter, the passes and the
    reports go by these fields, and by no class's name.
    """


@dataclass(frozen=True)
class KernelCall(Extern):
    """A kernel that comes with its source, as a template makes it or a user wrote it. The kernel is built and launched
    like core's own.

    source: a `litz_plugins.KernelSource`, opaque to the IR, whose arguments name buffers of the program. The
    memory plan allocates its outputs; what it writes besides is in `mutates`. `target` is its meaning: it computes the
    same with torch from `args`.
    """

    source: Any = None


@dataclass(frozen=True)
class Collective(Extern):
    """Communication on a process group, started here and finished by a Wait on each output.

    ranks: the group's members in the order of the group; () where the group is not known when compiling.
    """

    group: str = ""  # the name of the process group
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Wait(Extern):
    """Waits until the communication that writes its argument has finished."""


def require(condition: bool, message: str = "", error: type[Exception] = RuntimeError) -> None:
    """Raises `error` with the message unless the condition holds. A Check calls this function."""
    if not condition:
        raise error(message)


@dataclass(frozen=True)
class Check(Extern):
    """A condition on sizes and scalars that must hold from here on: the run ends with an `error` where it does not.

    `args` is the condition alone, a sympy boolean. Whoever uses one of its symbols, or a result of the call that found
    one out, comes after it. `shown` are symbols whose values the error tells after the message. `error` is one of
    Python's own, the one that eager raises.
    """

    message: str = ""  # what the error says
    shown: tuple[Symbol, ...] = ()  # symbols whose values the error tells after the message
    error: type[Exception] = RuntimeError  # one of Python's own, as eager raises

    @property
    def condition(self) -> Any:
        """Returns the condition, a sympy boolean."""
        return self.args[0]

    def explain(self, values: Mapping[Symbol, Any]) -> str:
        """Returns what the error says where the condition does not hold."""
        told = ", ".join(f"{symbol} = {values[symbol]}" for symbol in self.shown)
        return f"{self.message}: {told}" if told else self.message


def sizes_in(value: Any) -> frozenset[Symbol]:
    """Returns every size symbol in nested arguments of an Extern."""
    found: set[Symbol] = set()
    for leaf in leaves(value):
        if isinstance(leaf, TensorRef):
            found |= leaf.layout.free_symbols
        elif isinstance(leaf, sympy.Basic):
            found |= leaf.free_symbols
    return frozenset(found)


Operation = Loop | Extern


def written_arguments(extern: Extern) -> tuple[int | str, ...]:
    """Returns the positions and names of the arguments of a call that hold a buffer which the call declares as
    written."""
    places: list[tuple[int | str, Any]] = [*enumerate(extern.args), *extern.kwargs.items()]
    refs = ((place, leaf) for place, value in places for leaf in leaves(value) if isinstance(leaf, TensorRef))
    return tuple(dict.fromkeys(place for place, ref in refs if ref.buffer in extern.mutates))


def storage_roots(operations: Iterable[Any]) -> dict[str, str]:
    """Returns, for each buffer that shares memory with another through an Extern's alias, the first of these buffers.
    operations: a program's, or a schedule's steps."""
    roots: dict[str, str] = {}
    for operation in operations:
        if isinstance(operation, Extern):
            for output, base in operation.aliases.items():
                roots[output] = roots.setdefault(base, base)
    return roots
