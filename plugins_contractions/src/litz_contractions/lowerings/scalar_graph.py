"""The graph that a higher-order op carries for one element (flex_attention's score_mod), as nodes.

In: an FX graph and its arguments, among them values of size () that are functions of the loop variables. Out: a
node for each output. The ordinary lowerings do the work, on a context that makes a `Computed` where they would make a
buffer and a loop; what cannot be had so is refused, and the op that carries the graph stays a library call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import sympy
import torch
from torch._ops import OpOverload
from torch.fx.node import map_aggregate

from litz.capture import torch_api
from litz.capture.eager_types import is_left_to_eager
from litz.ir import Loop, Node, Range, Store, build
from litz.ir.complexity import nodes_excess
from litz.ir.dtypes import SUPPORTED
from litz.ir.index import ZERO, Expr, Ranges, Symbol, kind_of, placeholder, substitute
from litz.ir.intervals import Contents, Intervals
from litz.ir.node import is_number, rewrite, walk, with_args
from litz.ir.operation import Operation, expressions
from litz.ir.transform import rename_nodes
from litz.lower import Computed, LoweringContext, Position, Tensor, View, core_lowerings
from litz.lower.arguments import SYMBOLIC, positional, simple, with_a_tensor
from litz.lower.context import Body, Size
from litz.lower.promised import lowered
from litz.lower.view import variables
from litz.schedule import inline

from ..attention.masks import holds


def scalar_graph(
    ctx: LoweringContext, module: torch.fx.GraphModule, arguments: Sequence[Any], extents: Ranges | None = None
) -> tuple[Node | None, ...]:
    """The nodes of the graph's outputs, each a function of the loop variables that the arguments are functions of; None
    for an output that is None.

    arguments: a value per placeholder: `Computed`s of size (), whole tensors that the graph reads elements of, numbers
    and sizes. extents: of those loop variables; a position that they prove to be inside a tensor is not checked.
    NotImplementedError, with the reason, where an op does not stay scalar: it would make a buffer.
    """
    known = dict(extents or {})
    walker = _Walk(ctx, module)
    # A tensor's own variables are i0, i1, ... too: while the graph is lowered, those of the caller go by other names.
    values = [item for item in arguments if isinstance(item, Computed) and not item.ndim]
    own = sorted({symbol for item in values for symbol in _variables(item)}, key=str)
    away = {symbol: sympy.Symbol(f"at{number}", integer=True, nonnegative=True) for number, symbol in enumerate(own)}
    back = {name: symbol for symbol, name in away.items()}
    found = walker.run([_renamed(item, away) for item in arguments])
    nodes = tuple(node for node in found if node is not None)
    excess = nodes_excess(walk(*nodes))
    if excess is not None:
        raise NotImplementedError(f"a body of {excess}")
    simplified = iter(_simplified(rename_nodes(nodes, back, known), known, ctx.contents))
    return tuple(None if node is None else next(simplified) for node in found)


def _variables(value: Computed) -> set[Symbol]:
    """The variables that a value of size () is a function of."""
    symbols = {s for node in walk(value.value) for expr in expressions(node) for s in expr.free_symbols}
    return {s for s in symbols if kind_of(s) in ("output", "reduction")}


def _renamed(value: Any, mapping: Mapping[Symbol, Expr]) -> Any:
    is_one = isinstance(value, Computed) and not value.ndim
    return _Value(value.dtype, value.device, (), rename_nodes((value.value,), mapping, {})[0]) if is_one else value


class _Walk:
    """The nodes of one graph, one after the other, as `lower` goes through a whole program's."""

    def __init__(self, ctx: LoweringContext, module: torch.fx.GraphModule) -> None:
        self.ctx, self.module = _ScalarContext(ctx), module
        self.lowerings = ctx.lowerings or core_lowerings()
        self.values: dict[torch.fx.Node, Any] = {}

    def run(self, arguments: Sequence[Any]) -> tuple[Node | None, ...]:
        given = iter(arguments)
        for node in self.module.graph.nodes:
            self.ctx.node = node
            if node.op == "placeholder":
                self.values[node] = next(given)
            elif node.op == "get_attr":
                self.values[node] = self.attribute(node)
            elif node.op == "call_function":
                self.values[node] = self.call(node)
            elif node.op == "output":
                outputs = self.argument(node.args[0])
                items = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
                return tuple(map(self.output, items))
            else:
                raise NotImplementedError(f"an FX node of kind {node.op}")
        return ()

    def argument(self, value: Any) -> Any:
        return map_aggregate(value, lambda item: self.values[item] if isinstance(item, torch.fx.Node) else simple(item))

    def attribute(self, node: torch.fx.Node) -> Any:
        value: Any = self.module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if not isinstance(value, torch.Tensor):
            raise NotImplementedError(f"a graph within the graph: {node.target}")
        if torch_api.is_fake(value):
            raise NotImplementedError("a tensor without values")
        if value.dim() == 0 and value.dtype in SUPPORTED:
            return Computed.full((), value.item(), value.dtype, value.device)
        return self.ctx.constant(value)

    def call(self, node: torch.fx.Node) -> Any:
        target, meta = node.target, node.meta.get("val")
        if node.meta.get("unbacked_bindings"):
            raise NotImplementedError(f"{target}, whose sizes depend on data")
        if isinstance(meta, SYMBOLIC):
            return simple(torch_api.sympy_of(meta))
        if not isinstance(target, OpOverload):
            if getattr(target, "__name__", "") == "getitem":
                source, position = self.argument(node.args)
                return source[position]
            if isinstance(meta, (int, float, bool)):
                return meta
            raise NotImplementedError(f"{target}, which has no lowering")
        function = self.lowerings.get(target)
        fakes = [item.meta.get("val") if isinstance(item, torch.fx.Node) else item for item in node.args]
        if function is None or is_left_to_eager(target, fakes):
            raise NotImplementedError(f"{target}, which is a library call")
        if target._schema.is_mutable or torch_api.is_random(target):
            raise NotImplementedError(f"{target}, which has an effect")
        args, kwargs = positional(target, tuple(self.argument(node.args)), dict(self.argument(node.kwargs)))
        if any(isinstance(item, Tensor) and item.dtype not in SUPPORTED for item in args):
            raise NotImplementedError(f"{target} of a type that loops cannot hold")
        return lowered(self.ctx, function, with_a_tensor(target, args, meta), kwargs, _check_scalar)

    def output(self, value: Any) -> Node | None:
        if value is None:
            return None
        if not isinstance(value, Tensor) or value.ndim:
            raise NotImplementedError("an output that is no tensor of size ()")
        return value.load(())


def _check_scalar(ctx: LoweringContext, result: Any, before: Sequence[Operation]) -> None:
    """ValueError unless a plugin's lowering returned what the node promises. A fake result may be a slice of what the
    graph computes element by element: the type has to agree, and the number of dimensions, or there are none."""
    expected = ctx.node.meta.get("val")
    if not isinstance(expected, torch.Tensor):
        return
    known = isinstance(result, (View, Computed)) and result.dtype == expected.dtype
    if not known or result.ndim not in (0, expected.dim()):
        found = f"{result.dtype}, {result.ndim}-d" if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"it returned {found}, where {expected.dtype} of size () is expected")


@dataclass(frozen=True, eq=False)
class _Value(Computed):
    """A row of a table, say, without memory of its own: unlike other `Computed`s it may load."""

    is_element = True

    def load(self, indices: Sequence[Position], mask: Node | None = None) -> Node:
        indirect = tuple(item for item in indices if isinstance(item, Node))
        if not indirect:
            return super().load(indices, mask)
        number, own = count(), variables(self.ndim)
        position = tuple(placeholder(next(number)) if isinstance(item, Node) else item for item in indices)
        ranges = tuple(Range(var, size) for var, size in zip(own, self.size, strict=True))
        body = inline.Body.of(Loop("value", self.device, ranges, (), (Store("value", own, self.value),)))
        assert body is not None
        try:
            return body.at(build.load("value", position, self.dtype, indirect), {})
        except inline.TooComplex as error:
            raise NotImplementedError(str(error)) from error


class _ScalarContext(LoweringContext):
    """Lowerings' context inside such a graph: a new tensor is a value without memory, and nothing else can be made."""

    def __init__(self, outer: LoweringContext) -> None:
        super().__init__(outer.graph, outer.options, outer.needs, outer.target_of)
        self.outer = outer
        self.buffers, self.constants, self.contents = outer.buffers, outer.constants, outer.contents
        self.storage_offsets, self.lowerings = outer.storage_offsets, outer.lowerings

    def pointwise(  # type: ignore[override]
        self,
        size: Size,
        dtype: torch.dtype,
        device: torch.device,
        body: Body,
        *,
        stride: Size | None = None,
        output: int | None = None,
    ) -> Computed:
        sizes = tuple(map(sympy.sympify, size))
        where = tuple(ZERO if n == 1 else var for n, var in zip(sizes, variables(len(sizes)), strict=True))
        return _Value(dtype, device, sizes, build.cast(body(where), dtype))

    def copy(self, value: Tensor, stride: Size | None = None) -> Tensor:  # type: ignore[override]
        """Returns the value itself, as a number has no memory."""
        return value

    def constant(self, tensor: torch.Tensor) -> View:
        return self.outer.constant(tensor)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.op}, which makes a buffer")

    new_buffer = add = ref = realize = _refuse


def _simplified(roots: tuple[Node, ...], extents: Ranges, contents: Contents) -> tuple[Node, ...]:
    """The nodes without what the extents of the loop variables, known only now, make needless: checks that cannot fail,
    counting from the end for what is not negative, and computed positions that are index expressions."""
    intervals = Intervals(extents, contents)

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "bounded" and intervals.inside(placeholder(0), args[:1], None, node.attrs[0]):
            return args[0]
        if node.op == "where" and args[0].op == "lt" and is_number(args[0].args[1], 0):
            if holds(build.call("ge", *args[0].args), intervals):
                return args[2]
        if node.op in _OF_POSITIONS and node.dtype == torch.int64 and all(arg.op in ("index", "const") for arg in args):
            return build.index(_OF_POSITIONS[node.op](*(sympy.sympify(arg.attrs[0]) for arg in args)))
        return _direct(with_args(node, args), extents) if node.op == "load" else with_args(node, args)

    return rewrite(roots, change)


_OF_POSITIONS: Mapping[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
}
"""Sums and products of positions are index expressions too, which kernels compute in 32 bits where that is enough."""


def _direct(load: Node, extents: Ranges) -> Node:
    """A load with those of its computed positions that are index expressions written as such."""
    known = {placeholder(n): node.attrs[0] for n, node in enumerate(load.indirect) if node.op in ("index", "const")}
    if not known:
        return load
    rest = [node for n, node in enumerate(load.indirect) if placeholder(n) not in known]
    kept = [n for n in range(len(load.indirect)) if placeholder(n) not in known]
    mapping = {name: sympy.sympify(value) for name, value in known.items()}
    moved = {placeholder(old): placeholder(new) for new, old in enumerate(kept)}
    # One after the other: a placeholder that is moved down may have the name of one that goes away.
    position = tuple(substitute(expr, mapping, extents) for expr in load.index)
    position = tuple(substitute(expr, moved, extents) for expr in position)
    return build.load(load.buffer, position, load.dtype, tuple(rest), load.mask)
