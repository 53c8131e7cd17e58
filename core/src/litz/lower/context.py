"""LoweringContext: what a lowering makes operations with.

The context holds the program that grows (buffers, operations, constants), and the FX node that is being lowered: new
buffers take their strides from that node's fake tensor, so that everything lies in memory as in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import sympy
import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.layout_needs import Needs
from litz.ir import (
    Buffer,
    Check,
    Extern,
    Layout,
    Loop,
    Node,
    Operation,
    Program,
    Range,
    Store,
    TensorRef,
    build,
    transform,
)
from litz.ir.buffer import Kind
from litz.ir.dtypes import FLOAT8, SUPPORTED
from litz.ir.index import (
    ONE,
    ZERO,
    Expr,
    FloorDiv,
    Mod,
    PythonMod,
    Ranges,
    Symbol,
    loop_var,
    reduction_var,
    substitute,
    to_expr,
)
from litz.ir.intervals import Contents
from litz.ir.node import walk
from litz.ir.operation import StoreMode, expressions, require
from litz.ir.strides import dense_order, same_stride
from litz.ir.verify import lies_elsewhere
from litz.target import Room, figures_of
from litz_plugins import TargetOf

from . import inside
from .promises import Promises
from .strides import layout_of, overlap
from .view import Computed, Position, Tensor, View


@dataclass(frozen=True)
class RowFigures(Room):
    """Figures of rows that are long for one program of a GPU, which `target/figures/any/long_rows.toml` explains."""

    table = "long_rows"
    long_row_elements: int


CPU = torch.device("cpu")
Indices = tuple[Expr, ...]
Size = Sequence[int | Expr]
Body = Callable[[Indices], Node]
ReductionBody = Callable[[Indices, Indices], Node | tuple[Node, ...]]


class LoweringContext:
    """The program that lowering has made so far, and the FX node that is being lowered."""

    def __init__(self, graph: Graph, options: Any, needs: Needs, target_of: TargetOf, region: str = "") -> None:
        self.graph = graph
        self.region = region
        """The name that the program has as a region of another one; '' where it is none."""
        self.regions: dict[str, Program] = {}
        self.options = options
        self.target_of = target_of
        self.needs = needs
        self.node: torch.fx.Node
        """The node that is being lowered."""
        self.lowerings: Mapping[Any, Callable[..., Any]] = {}
        """Of this compile, for a lowering that goes through a graph of its own."""
        self.buffers: dict[str, Buffer] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.operations: list[Operation] = []
        self.contents = Contents()
        """Between which values the buffers' elements lie."""
        self._copies: dict[tuple[Any, ...], View] = {}
        self._writes: dict[str, int] = {}
        self.promises = Promises(graph, self.check)
        self._computed: set[str] = set()
        self.conjugated: set[str] = set()
        """Buffers whose tensors torch reads as the conjugate of what lies in memory."""
        self.storage_offsets: dict[str, Expr | None] = {}
        """The place in its storage where a buffer begins, if not 0; None if that is not known (it aliases another)."""

    # ---------------------------------------------------------------------------------------------- the current node

    @property
    def meta(self) -> Any:
        """Returns the fake value of the node being lowered: a tensor, a SymInt, or a tuple of them; None for
        nothing."""
        return self.node.meta.get("val")

    @property
    def origins(self) -> tuple[str, ...]:
        """Returns the name of the FX node at hand, which operations keep as their origin."""
        return (self.node.name,)

    @property
    def op(self) -> str:
        """Returns the name of the op being lowered, as a user would know it: an op that tracing broke up is named as it
        was called."""
        called = self.node.meta.get("original_aten") or self.node.target
        return str(getattr(called, "overloadpacket", called))

    def meta_strides(self, size: tuple[Expr, ...], output: int | None = None) -> tuple[Expr, ...]:
        """Returns the strides of a new buffer of `size`: those of the node's fake result of that size (of result number
        `output` if given) where they are dense, else row-major."""
        results = self.meta if isinstance(self.meta, (tuple, list)) else (self.meta,)
        if output is not None:
            results = results[output : output + 1]
        for result in results:
            if isinstance(result, torch.Tensor) and tuple(map(torch_api.sympy_of, result.shape)) == size:
                stride = layout_of(result).stride
                if 0 in size or dense_order(size, stride, self.hint) is not None:
                    return stride
        return Layout.contiguous(size).stride

    @property
    def op_name(self) -> str:
        """Returns the short name of the node's op, for a lowering that several ops share: "sum" of
        aten.sum.dim_IntList."""
        return self.node.target._opname  # type: ignore[union-attr, no-any-return]

    def holds(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Returns whether Loops on a device can move and convert elements of a dtype. Not all targets know float8."""
        return dtype in SUPPORTED or (dtype in FLOAT8 and "float8" in self.target_of(device).abilities)

    def hint(self, expr: Expr) -> int:
        """Returns a likely value of a size. No decision may depend on it that would be wrong for other values."""
        return self.graph.hint(expr)

    def want_short_rows(self, x: Tensor, dim: int | None, rows: int) -> None:
        """Raises NotImplementedError if a GPU's library is faster. One program walks a row alone where the work cannot
        be split over programs (scans, positions of extremes), and a few long rows leave the GPU idle. dim: of the rows;
        None: all is one row. rows: from so many rows on the library is no faster."""
        row = self.hint(x.numel if dim is None or not x.ndim else x.size[dim])
        blocks = "blocks" in self.target_of(x.device).abilities
        long = figures_of(self.target_of(x.device), RowFigures).long_row_elements
        if blocks and row > long and self.hint(x.numel) // row < rows:
            raise NotImplementedError(f"few rows of {row} elements, which the library splits over the GPU")

    def decide(self, condition: Any) -> bool:
        """Returns whether a condition on sizes holds, and puts a guard on record where only these sizes decide it.
        Errors: NotImplementedError where the condition depends on an unbacked symbol."""
        try:
            return torch_api.evaluate_with_guard(self.graph.shape_env, condition)
        except Exception as error:
            raise NotImplementedError(f"{condition} is not known when compiling") from error

    # ------------------------------------------------------------------------------------------- buffers, operations

    def new_buffer(
        self,
        size: Size,
        dtype: torch.dtype,
        device: torch.device,
        stride: Size | None = None,
        *,
        name: str | None = None,
        kind: Kind = "temporary",
        output: int | None = None,
    ) -> Buffer:
        """Returns a new buffer. Without `stride` it lies as the node's fake result of that size does, else
        row-major."""
        sizes = tuple(map(to_expr, size))
        strides = self.meta_strides(sizes, output) if stride is None else tuple(map(to_expr, stride))
        if name is None:
            number = len(self.buffers)
            while f"buf{number}" in self.buffers:
                number += 1
            name = f"buf{number}"
        buffer = Buffer(name, dtype, device, Layout(sizes, strides), kind)
        self.buffers[name] = buffer
        return buffer

    def add(self, operation: Operation) -> None:
        """Appends an operation to the program, after a Check of what its sizes must be for it to stay inside of its
        buffers, where only a run tells them."""
        if isinstance(operation, Loop) and self.promises.of_data:
            for condition, message in inside.conditions(operation, self.buffers):
                self.promises.require(condition, message, RuntimeError)
            operation = replace(operation, name=self.new_operation_name())
        self.operations.append(operation)
        self.contents.add(operation, self.buffers)
        if isinstance(operation, Loop):
            self._computed.update(operation.writes)
        for name in operation.writes:
            self._writes[name] = self._writes.get(name, 0) + 1

    def is_computed(self, name: str) -> bool:
        """Returns whether a loop of this program writes the buffer."""
        return name in self._computed

    def mark(self) -> tuple[int, int, int]:
        """Returns the state of the program, for `rollback`: the lengths of everything that only grows."""
        return len(self.operations), len(self.buffers), len(self._copies)

    def rollback(self, mark: tuple[int, int, int]) -> None:
        """Drops what was made since `mark` was taken, as the lowering gave up."""
        operations, buffers, copies = mark
        for operation in self.operations[operations:]:
            for name in operation.writes:
                self._writes[name] -= 1
        del self.operations[operations:]
        while len(self._copies) > copies:
            self._copies.popitem()
        while len(self.buffers) > buffers:
            name, _ = self.buffers.popitem()
            self.contents.forget(name)
            self.conjugated.discard(name)
            self.constants.pop(name, None)

    def new_operation_name(self) -> str:
        """Returns the name of the next operation: "op" and its number."""
        return f"op{len(self.operations)}"

    def constant(self, tensor: torch.Tensor) -> View:
        """Returns a tensor that belongs to the program, as a View."""
        name = f"{self.region and f'{self.region}_'}constant{len(self.constants)}"
        buffer = self.new_buffer(tensor.shape, tensor.dtype, tensor.device, tensor.stride(), name=name, kind="constant")
        self.constants[name] = tensor
        return View.whole(buffer)

    # --------------------------------------------------------------------------------------------------------- loops

    def indices(self, size: Size) -> Indices:
        """Returns an index per dimension: i0, i1, ... for the dimensions of extent other than 1, and 0 for the
        others."""
        numbers = count()
        return tuple(ZERO if extent == 1 else loop_var(next(numbers)) for extent in size)

    def reduction_indices(self, size: Size) -> Indices:
        """Returns an index per reduced dimension: r0, r1, ... for extents other than 1; at least one range is kept."""
        numbers = count()
        found = [ZERO if extent == 1 else reduction_var(next(numbers)) for extent in size]
        return tuple(found) if any(found) or not found else (*found[:-1], reduction_var(0))

    def add_loop(self, device: torch.device, size: Size, reduction_size: Size, stores: Sequence[Store]) -> None:
        """Appends a Loop over the ranges that `indices(size)` and `reduction_indices(reduction_size)` stand for.

        For what `pointwise` and `reduction` do not offer: scatters, scans, several stores. Divisions in index
        expressions are simplified by the loop's ranges. Errors: NotImplementedError if a tensor lies on another device,
        for which a library has to carry it over.
        """
        ranges = self._ranges(size, self.indices(size))
        inner = self._ranges(reduction_size, self.reduction_indices(reduction_size))
        extents = {r.var: r.size for r in (*ranges, *inner)}
        simplified = _simplify(tuple(stores), extents)
        loop = Loop(self.new_operation_name(), device, ranges, inner, simplified, self.origins)
        if any(lies_elsewhere(self.buffers[name], loop) for name in (*loop.reads, *loop.writes)):
            raise NotImplementedError("a copy between devices")
        self.add(loop)

    @staticmethod
    def _ranges(size: Size, indices: Indices) -> tuple[Range, ...]:
        return tuple(
            Range(index, to_expr(extent)) for index, extent in zip(indices, size, strict=True) if index is not ZERO
        )

    def store(
        self, target: View, indices: Sequence[Position], value: Node, mode: StoreMode = "set", mask: Node | None = None
    ) -> Store:
        """Returns a Store of `value` into `target` at `indices`, each an index expression or an int64 node."""
        position, indirect = target.at(indices)
        return Store(target.buffer.name, position, build.cast(value, target.dtype), indirect, mode, mask)

    def pointwise(
        self,
        size: Size,
        dtype: torch.dtype,
        device: torch.device,
        body: Body,
        *,
        stride: Size | None = None,
        output: int | None = None,
    ) -> View:
        """Returns a new tensor whose element at `indices` is `body(indices)`, cast to `dtype`.

        stride: as in `new_buffer`. output: which of the node's results this is, if it has several of one size.
        """
        result = View.whole(self.new_buffer(size, dtype, device, stride, output=output))
        self.write(result, body)
        return result

    def write(self, target: View, body: Body) -> None:
        """Sets every element of `target` to `body(indices)`."""
        indices = self.indices(target.size)
        value = build.const(0, target.dtype) if target.numel == 0 else body(indices)
        self.add_loop(target.device, target.size, (), [self.store(target, indices, value)])

    def reduction(
        self, size: Size, reduction_size: Size, dtypes: Sequence[torch.dtype], device: torch.device, body: ReductionBody
    ) -> tuple[View, ...]:
        """Returns new tensors of `size`, one per entry of `dtypes`, reduced over `reduction_size` in one Loop. Several
        tensors are the node's first results.

        `body(indices, reduction_indices)` gives a node per tensor, made with `build.reduce`; each node is cast. An
        empty `reduction_size` counts as (1,). A tensor without elements reduces nothing.
        """
        inner_size = tuple(reduction_size) or (ONE,)
        indices, inner = self.indices(size), self.reduction_indices(inner_size)
        numbers = range(len(dtypes)) if len(dtypes) > 1 else (None,)
        results = tuple(
            View.whole(self.new_buffer(size, dtype, device, output=number))
            for number, dtype in zip(numbers, dtypes, strict=True)
        )
        if any(result.numel == 0 for result in results):
            stores = [self.store(result, indices, build.const(0, result.dtype)) for result in results]
            self.add_loop(device, size, (), stores)
            return results
        values = body(indices, inner)
        nodes = (values,) if isinstance(values, Node) else values
        stores = [self.store(result, indices, node) for result, node in zip(results, nodes, strict=True)]
        self.add_loop(device, size, inner_size, stores)
        return results

    # ----------------------------------------------------------------------------------------------- memory for views

    def realize(self, value: Tensor, stride: Size | None = None) -> View:
        """Returns `value` as a whole buffer with dense strides (`stride`, or row-major), copied into a new one if need
        be."""
        wanted = Layout.contiguous(value.size).stride if stride is None else tuple(map(to_expr, stride))
        if isinstance(value, View) and value.is_whole and same_strides(value.size, value.buffer.layout.stride, wanted):
            return value
        return self.copy(value, wanted)

    def copy(self, value: Tensor, stride: Size | None = None, offset: Expr = ZERO) -> View:
        """Returns the elements of `value` in a new buffer. offset: how many elements of memory lie before the first."""
        stride = Layout.contiguous(value.size).stride if stride is None else tuple(map(to_expr, stride))
        layout = Layout(value.size, stride, offset)
        if not self.holds(value.dtype, value.device):
            return self._copy_extern(value, layout)
        if offset == 0:
            return self.pointwise(value.size, value.dtype, value.device, value.load, stride=stride)
        target = View.of_flat(self.new_buffer((offset + layout.span,), value.dtype, value.device), layout)
        self.write(target, value.load)
        return target

    def _copy_extern(self, value: Tensor, layout: Layout) -> View:
        """Returns a copy, made by a library call, of what Loops cannot read. The copy is lazily conjugated where the
        original is: an op may undo that, and some (`view_as_real`) take no such tensor."""
        if not isinstance(value, View):
            raise NotImplementedError(f"a computed tensor of {value.dtype}")
        ref = value.ref()
        if ref is None:
            raise NotImplementedError(f"a view of {value.dtype} that is not strided")
        conjugated = ref.buffer in self.conjugated
        if conjugated:
            ref = self._conjugate(ref, value.dtype, value.device)
        made: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        flat = layout.offset != 0
        size, stride = ((layout.offset + layout.span,), (ONE,)) if flat else (layout.size, layout.stride)
        result = self.extern(
            torch.ops.aten.empty_strided.default, (size, stride), made, size=size, stride=stride, **made
        )
        name, copy = result.buffer.name, torch.ops.aten.copy_.default
        self.add_extern(copy, (TensorRef(name, layout), ref), {}, value.device, outputs=(None,), mutates=(name,))
        if conjugated:
            whole = self._conjugate(TensorRef(name, result.buffer.layout), value.dtype, value.device)
            self.conjugated.add(whole.buffer)
            result = View.whole(self.buffers[whole.buffer])
        return View.of_flat(result.buffer, layout) if flat else result

    def _conjugate(self, ref: TensorRef, dtype: torch.dtype, device: torch.device) -> TensorRef:
        """Returns the same memory, read as the conjugate, or no longer read so."""
        return same_memory(self, torch.ops.aten._conj.default, ref, dtype, device)

    def ref(self, value: Tensor, stride: Size | None = None) -> TensorRef:
        """Returns `value` as an argument of a library call.

        stride: the strides that the argument must have (dimensions of size 1 aside). A value with others is copied,
        with gaps too: a view that the call returns lies as the argument does. None takes any strides.
        """
        wanted = None if stride is None else tuple(map(to_expr, stride))
        if isinstance(value, View):
            found = value.ref()
            if found is not None and (wanted is None or same_strides(value.size, found.layout.stride, wanted)):
                if wanted is not None and found.layout.stride != wanted:
                    found = TensorRef(found.buffer, Layout(value.size, wanted, found.layout.offset))
                return found
            # A copy of a buffer is good until the buffer is written again.
            name = value.buffer.name
            key: tuple[Any, ...] = (name, value.index, value.size, wanted, self._writes.get(name, 0))
        else:
            assert isinstance(value, Computed)
            key = (value.value, value.size, value.device, wanted)
        exact = wanted is not None and not overlap(Layout(value.size, wanted), self.hint)
        if key not in self._copies:
            self._copies[key] = self.copy(value, wanted if exact else None)
        copied = self._copies[key].buffer
        return TensorRef(copied.name, copied.layout)

    # ------------------------------------------------------------------------------------------------- library calls

    def add_extern(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: torch.device,
        *,
        operation: type[Extern] = Extern,
        **fields: Any,
    ) -> None:
        """Appends an Extern (or Template, Collective, Wait) whose arguments are IR already: TensorRefs, expressions."""
        name = self.new_operation_name()
        self.add(operation(name, device, target, args, kwargs, origins=self.origins, **fields))
        if fields.get("unbacked"):
            self.promises.found_out(fields["unbacked"])

    def check(
        self, condition: Any, message: str, shown: tuple[Symbol, ...] = (), error: type[Exception] = RuntimeError
    ) -> None:
        """Appends a Check: the run ends unless `condition`, a sympy boolean on sizes, holds. shown: symbols whose
        values the error tells. error: which is raised."""
        said: dict[str, Any] = {"message": message, "shown": shown, "error": error}
        self.add_extern(require, (condition,), {}, CPU, operation=Check, effect=True, **said)

    def same_size(
        self, mine: Sequence[Expr], its: Sequence[Expr], message: str, error: type[Exception] = RuntimeError
    ) -> None:
        """Has the run check that two sizes are the same where only the run tells: eager does, and the error is its."""
        for one, other in zip(mine, its, strict=True):
            if one != other:
                self.promises.require(sympy.Eq(one, other), message, error)

    def extern(
        self,
        target: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
        *,
        size: Size,
        dtype: torch.dtype,
        device: torch.device,
        stride: Size | None = None,
        operation: type[Extern] = Extern,
        **fields: Any,
    ) -> View:
        """Returns the one result of a library call, a new tensor of `size` and `stride` (None: as the node's fake
        result).

        Tensors among the arguments may be Tensors (passed with any strides) or TensorRefs.
        """
        passed = tuple(self._argument(arg) for arg in args)
        named = {key: self._argument(arg) for key, arg in (kwargs or {}).items()}
        result = self.new_buffer(size, dtype, device, stride)
        self.add_extern(target, passed, named, device, operation=operation, outputs=(result.name,), **fields)
        return View.whole(result)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.ref(value)
        if isinstance(value, (list, tuple)):
            return tuple(self._argument(item) for item in value)
        return value


def same_memory(
    ctx: LoweringContext, target: Callable[..., Any], ref: TensorRef, dtype: torch.dtype, device: torch.device
) -> TensorRef:
    """Returns what a library call makes of a tensor: another one, of the same layout, in the same memory."""
    made = ctx.new_buffer(ref.layout.size, dtype, device, ref.layout.stride)
    ctx.storage_offsets[made.name] = None
    ctx.add_extern(target, (ref,), {}, device, outputs=(made.name,), aliases={made.name: ref.buffer})
    return TensorRef(made.name, made.layout)


def same_strides(size: Sequence[Expr], left: Sequence[Expr], right: Sequence[Expr]) -> bool:
    """Returns whether two lists of strides mean the same layout of `size`. Strides of dimensions of size 1, and all
    strides of an empty tensor, do not count."""
    if any(extent == 0 for extent in size):
        return True
    return all(extent == 1 or same_stride(a, b) for extent, a, b in zip(size, left, right, strict=True))


def _simplify(stores: tuple[Store, ...], extents: Ranges) -> tuple[Store, ...]:
    """Simplifies divisions and moduli in index expressions, now that the ranges are known."""
    roots = [root for store in stores for root in store.roots]
    found = [expr for store in stores for expr in store.index]
    for node in walk(*roots):
        found.extend(expressions(node))
    if not any(expr.has(FloorDiv, Mod, PythonMod) for expr in found):
        return stores
    return transform.map_stores(
        stores,
        lambda node, args: transform.rename(node, args, {}, extents),
        lambda store: tuple(substitute(expr, {}, extents) for expr in store.index),
    )
