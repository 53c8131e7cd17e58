"""From a Graph to a Program: one pass over the FX nodes.

Placeholders become input buffers, constants become constants, sizes become expressions, and each op whatever its
lowering makes: a few Loops, a view without any operation, or an Extern. Program order is the order of the FX nodes, so
that a mutation (`aten.copy_` at the end) comes after every read that it comes after in the graph.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch._ops import OpOverload
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves

from litz.capture import torch_api
from litz.capture.eager_types import is_given_too_much, is_left_to_eager
from litz.capture.graph import Graph, constant_of
from litz.capture.layout_needs import LayoutNeeds, Needs
from litz.capture.provenance import with_nodes
from litz.errors import LoweringError
from litz.ir import Extern, Layout, Opaque, Program, Region, TensorRef, Unbacked
from litz.ir.complexity import MAX_INDEX, position_terms
from litz.ir.dtypes import SUPPORTED
from litz.ir.index import ONE, ZERO, Expr
from litz.ir.printer import objects_in
from litz.target import target_of
from litz_plugins import VETOED, Decision, Gate, TargetOf
from litz_plugins.errors import PluginError
from litz_plugins.vetoes import key_of

from .arguments import SYMBOLIC, excess_of, fake_value, positional, simple, with_a_tensor
from .bodies import run_eagerly
from .conditions import of_floats
from .context import LoweringContext, same_memory, same_strides
from .fallback import fallback
from .nodes import (
    eager_strides,
    has_negative_bit,
    lies_as_in_eager,
    storage_offset,
    storage_start,
    updates_of,
    written_nodes,
)
from .promised import lowered
from .registry import ANY_DTYPE, MOVES, Lowering, core_lowerings
from .strides import layout_of
from .view import Computed, Tensor, View, variables

MAKER = "lower"
"""The beginning of the keys of lowered nodes (`litz_plugins.vetoes`)."""


def lower(
    graph: Graph,
    lowerings: Mapping[Any, Lowering] | None = None,
    options: Any = None,
    needs: Needs | None = None,
    note: Callable[[Decision], None] | None = None,
    target_of: TargetOf = target_of,
    gate: Gate | None = None,
    region: str = "",
) -> Program:
    """The program of `graph`.

    lowerings: op -> lowering; core's own if None. options: this compile's options, handed to lowerings as
    `ctx.options`. needs: how a library call takes a tensor (`litz.capture.layout_needs`); by torch's tags if None.
    note: called with what is decided on the way. target_of: the devices that it is lowered for. gate: nodes that have
    to stay library calls. region: the program's name among the regions of another one.
    LoweringError, naming op and node, if a lowering fails; one that raises NotImplementedError leaves
    its op to an Extern.
    """
    ctx = LoweringContext(graph, options, needs or LayoutNeeds().of, target_of, region)
    return _Lowerer(ctx, core_lowerings() if lowerings is None else lowerings, note, gate or Gate()).run()


class _Lowerer:
    """The walk: what each FX node has become so far."""

    def __init__(
        self,
        ctx: LoweringContext,
        lowerings: Mapping[Any, Lowering],
        note: Callable[[Decision], None] | None,
        gate: Gate,
    ) -> None:
        self.ctx, self.lowerings, self.note, self.gate = ctx, lowerings, note, gate
        ctx.lowerings = lowerings
        self.graph = graph = ctx.graph
        self.owner_of = torch_api.memory_owners(graph.nodes).__getitem__
        self.values: dict[torch.fx.Node, Any] = {}
        self.inputs: list[Any] = []
        # What is written in place may not be read later through a tensor that is not a view of it in eager.
        self.written_nodes = written_nodes(graph)
        self.written_buffers: set[str] = set()
        # Whose memory each buffer is in eager. A fresh tensor may be a view here (of what `flip` was given, say): then
        # the two are told apart by this.
        self.owners: dict[str, torch.fx.Node] = {}
        self.updates = updates_of(graph)
        outputs = [
            item
            for position, item in enumerate(graph.outputs)
            if isinstance(item, torch.fx.Node) and self.updated_input(position, item) is None
        ]
        self.returned = {self.owner_of(item) for item in outputs}
        self.viewed = {self.owner_of(item) for item in outputs if item is not self.owner_of(item)}
        self.materials: dict[tuple[torch.fx.Node, tuple[Expr, ...]], TensorRef] = {}
        self.resolutions: dict[torch.fx.Node, View] = {}
        self.ones: dict[Expr, bool] = {}

    def run(self) -> Program:
        steps: dict[str, Callable[[torch.fx.Node], Any]] = {
            "placeholder": self.placeholder,
            "get_attr": self.get_attr,
            "call_function": self.call,
        }
        started = False
        for node in self.graph.nodes:
            self.ctx.node = node
            if node.op != "placeholder" and not started:
                started = True
                self.start()
            if node.op == "output":
                outputs = self.told_apart([self.output(item, at) for at, item in enumerate(self.graph.outputs)])
                continue
            if node.op not in steps:
                raise LoweringError(op=str(node.target), node=node.name, problem=f"an FX node of kind {node.op}")
            value = self.simple_enough(node, self.plain(steps[node.op](node)))
            if isinstance(value, Tensor) and node in self.returned and not self.is_placed(node, value):
                value = self.placed(node, value)
            if isinstance(value, View):
                self.owners.setdefault(value.buffer.name, self.owner_of(node))
            if node in self.written_nodes:
                if isinstance(value, Computed):
                    value = self.ctx.copy(value, self.ctx.meta_strides(value.size))
                if isinstance(value, View):
                    self.written_buffers.add(value.buffer.name)
            self.values[node] = value
        calls = (operation for operation in self.ctx.operations if isinstance(operation, Extern))
        used = {leaf.name for call in calls for leaf in tree_leaves(call.args) if isinstance(leaf, Region)}
        return Program(
            name=self.graph.name,
            inputs=tuple(self.inputs),
            buffers=self.ctx.buffers,
            operations=tuple(self.ctx.operations),
            outputs=outputs,
            constants=self.ctx.constants,
            hints=self.graph.hints,
            static_inputs=self.input_buffers(self.graph.static_inputs),
            dying_inputs=self.input_buffers(self.graph.dying_inputs),
            owned_inputs=self.input_buffers(self.graph.owned_inputs),
            made_inputs=self.input_buffers(self.graph.made_inputs),
            regions={name: self.ctx.regions[name] for name in self.ctx.regions if name in used},
            provenance=with_nodes(self.graph.provenance, self.graph.module),
        )

    def input_buffers(self, positions: frozenset[int]) -> frozenset[str]:
        return frozenset(item for at, item in enumerate(self.inputs) if at in positions and isinstance(item, str))

    def plain(self, value: Any) -> Any:
        """Returns a value with extents that guards have made 1 written as 1: lowerings look for that when they
        broadcast."""
        if isinstance(value, (tuple, list)):
            return type(value)(self.plain(item) for item in value)
        if not isinstance(value, Tensor) or all(extent.is_Integer for extent in value.size):
            return value
        size = tuple(ONE if not extent.is_Integer and self.is_one(extent) else extent for extent in value.size)
        return value if size == value.size else replace(value, size=size)

    def simple_enough(self, node: torch.fx.Node, value: Any) -> Any:
        """The value; written to a buffer where reading it through all of its views would take too complex a position.
        Views that have to stay views, as the caller gets them or they are written, are affine: they stay simple."""
        if isinstance(value, View) and position_terms(value.index) > MAX_INDEX:
            # Even to write it would take too much: what it views is written instead.
            sources = [source for source in node.all_input_nodes if isinstance(self.values[source], View)]
            for source in sources:
                self.values[source] = self.written(source, self.values[source], excess_of(value))
            value = self.plain(self.call(node)) if sources else value
        return self.written(node, value, excess_of(value))

    def written(self, node: torch.fx.Node, value: Any, excess: str | None) -> Any:
        """The value in a buffer of its own, for the reason `excess`; as it is without one, or where it must stay."""
        if (
            excess is None
            or not self.ctx.holds(value.dtype, value.device)
            or (isinstance(value, View) and value.is_whole)
        ):
            return value
        owner = self.owner_of(node)
        if owner is not node and (owner in self.returned or owner in self.written_nodes):
            return value
        if self.note is not None:
            self.note(Decision("lower", node.name, "written to a buffer", f"reading it through views takes {excess}"))
        return self.ctx.copy(value, self.ctx.meta_strides(value.size))

    def is_one(self, extent: Expr) -> bool:
        if extent not in self.ones:
            known = torch_api.evaluate_statically(self.graph.shape_env, sympy.Eq(extent, 1))
            self.ones[extent] = known is True
        return self.ones[extent]

    # -------------------------------------------------------------------------------------------------------- inputs

    def placeholder(self, node: torch.fx.Node) -> Any:
        meta = node.meta.get("val")
        if isinstance(meta, torch.Tensor):
            if meta.layout != torch.strided:
                raise LoweringError(op="placeholder", node=node.name, problem=f"an input of layout {meta.layout}")
            lies, name = layout_of(meta), _input_name(node.name)
            buffer = self.ctx.new_buffer(lies.size, meta.dtype, meta.device, lies.stride, name=name, kind="input")
            self.ctx.storage_offsets[buffer.name] = torch_api.sympy_of(meta.storage_offset())
            if meta.is_conj():
                self.ctx.conjugated.add(buffer.name)
            self.inputs.append(buffer.name)
            return View.whole(buffer)
        if isinstance(meta, SYMBOLIC):
            expr = torch_api.sympy_of(meta)
            self.inputs.append(expr)
            return simple(expr)
        opaque = Opaque(_input_name(node.name), meta)
        self.inputs.append(opaque)
        # A plain number among the inputs is what it was when the graph was traced: dynamo guards on it.
        return meta if isinstance(meta, (int, float, bool, str)) else opaque

    def start(self) -> None:
        """Once all inputs are known: check what is promised of their sizes alone."""
        layouts = [b.layout for b in self.ctx.buffers.values() if b.kind == "input"]
        promises = self.ctx.promises
        promises.given(s for item in self.inputs if isinstance(item, sympy.Basic) for s in item.free_symbols)
        promises.given(s for layout in layouts for s in layout.free_symbols)
        if self.graph.kind != "backward":  # the forward has checked what it hands on
            promises.check_known()

    def get_attr(self, node: torch.fx.Node) -> Any:
        body = self.graph.bodies.get(str(node.target))
        if body is not None:
            return self.region(body)
        value = constant_of(self.graph, node)
        if not isinstance(value, torch.Tensor):
            return value
        if value.dim() == 0 and self.ctx.holds(value.dtype, value.device) and not torch_api.is_fake(value):
            return Computed.full((), value.item(), value.dtype, value.device)
        return self.ctx.constant(value.clone() if value._is_zerotensor() else value)

    def region(self, body: Graph) -> Region:
        """The region of a body; that of another body if that computes the same."""
        ctx = self.ctx
        name = f"{ctx.region}_{len(ctx.regions)}" if ctx.region else f"region{len(ctx.regions)}"
        made = lower(body, self.lowerings, ctx.options, ctx.needs, self.note, ctx.target_of, self.gate, name)
        for known, other in ctx.regions.items():
            if _is_equal(made, other):
                return Region(known)
        ctx.regions[name] = made
        return Region(name)

    # ----------------------------------------------------------------------------------------------------------- ops

    def call(self, node: torch.fx.Node) -> Any:
        meta, target = node.meta.get("val"), node.target
        if isinstance(meta, SYMBOLIC) and not node.meta.get("unbacked_bindings"):
            if target is torch.ops.aten.sym_storage_offset.default:
                self.read_offset(node, torch_api.sympy_of(meta))
            return simple(self.scalar(node, torch_api.sympy_of(meta)))
        args, kwargs = self.arguments(node)
        if target is torch.ops.aten.as_strided.default:
            args = self.strided_arguments(node, args)
        if getattr(target, "__name__", "") == "getitem" and not isinstance(target, OpOverload):
            return args[0][args[1]]
        if not isinstance(target, OpOverload) and not torch_api.is_higher_order(target):
            if isinstance(meta, (int, float, bool)):
                return meta
        function = self.lowerings.get(target)
        if node.meta.get("unbacked_bindings"):
            function = None  # a size is read off the call's result, so there must be a call
        elif function is not None and self.is_left_to_eager(node):
            function = None
        if any(map(has_negative_bit, torch_api.written_arguments(node))):
            function = None  # a kernel would store the values without their sign
        if function is not None and not self.may_lower(node):
            function = None
        try:
            if function is not None and (getattr(function, ANY_DTYPE, False) or self.computable(node, function)):
                mark = self.ctx.mark()
                try:
                    result = lowered(self.ctx, function, with_a_tensor(target, args, meta), kwargs)
                    if isinstance(node.meta.get("val"), torch.Tensor) and not isinstance(result, (View, Computed)):
                        raise TypeError(f"its lowering returned {type(result).__name__}, where a tensor is expected")
                    return self.settled(node, result)
                except NotImplementedError as error:
                    self.ctx.rollback(mark)
                    if self.note is not None and not isinstance(target, OpOverload):
                        self.note(Decision("lower", node.name, "the library call", f"not lowered: {error}"))
            why = run_eagerly(target, args, kwargs)
            if self.note is not None and why:
                self.note(Decision("lower", node.name, "its bodies run eagerly", why))
            made = fallback(self.ctx, args, kwargs)
            return simple(made) if isinstance(made, sympy.Basic) else made
        except (LoweringError, PluginError):
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise LoweringError(op=str(target), node=node.name, problem=problem) from error

    def scalar(self, node: torch.fx.Node, traced: Any) -> Any:
        """Returns what a node that computes a scalar gives; of constants a constant, whatever tracing says: torch makes
        some conditions on floats constants, and keeps what reads them."""
        if isinstance(node.target, OpOverload) or not callable(node.target):
            return traced
        args = map_aggregate(node.args, lambda item: self.values[item] if isinstance(item, torch.fx.Node) else item)
        known = all(isinstance(arg, (bool, int, float)) for arg in args)
        return sympy.sympify(node.target(*args)) if known else of_floats(node.target, args, traced)

    @staticmethod
    def is_left_to_eager(node: torch.fx.Node) -> bool:
        args, kwargs = tuple(map(fake_value, node.args)), {name: fake_value(arg) for name, arg in node.kwargs.items()}
        if is_left_to_eager(node.target, args):
            return True
        result = node.meta.get("val")
        dtype = result.dtype if isinstance(result, torch.Tensor) else None
        return is_given_too_much(node.target, args, kwargs, dtype)

    def may_lower(self, node: torch.fx.Node) -> bool:
        """Returns whether the node may become what its lowering makes. Views and writes, which are no calls, may."""
        made = node.meta.get("val")
        values = made if isinstance(made, (tuple, list)) else (made,)
        computes = isinstance(node.target, OpOverload) and any(isinstance(value, torch.Tensor) for value in values)
        if not computes or torch_api.aliased_argument(node) is not None or torch_api.written_arguments(node):
            return True
        if not node.all_input_nodes or self.gate.take(MAKER, node.name):
            return True
        if self.note is not None:
            key = key_of(self.gate.graph, MAKER, node.name)
            self.note(Decision("lower", node.name, "the library call", VETOED, key=key))
        return False

    def read_offset(self, node: torch.fx.Node, symbol: Expr) -> None:
        """Have the program read where an input begins in its storage: no size or stride of an input says it."""
        (source,) = node.args
        assert isinstance(source, torch.fx.Node)
        value = self.values[source]
        ref = value.ref() if isinstance(value, View) else None
        if not symbol.is_Symbol or symbol in self.ctx.promises.known or ref is None:
            return
        unbacked = (Unbacked(symbol, (("item",),)),)
        self.ctx.add_extern(node.target, (ref,), {}, value.device, outputs=(None,), unbacked=unbacked)  # type: ignore[arg-type]

    def arguments(self, node: torch.fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The node's arguments as lowerings take them: what the schema lets be positional is positional."""
        in_place = {torch_api.aliased_argument(node), *torch_api.written_arguments(node)}

        def value(item: Any) -> Any:
            if not isinstance(item, torch.fx.Node):
                return simple(item)
            found = self.values[item]
            return found if item in in_place else self.resolved(item, found)

        args = tuple(map_aggregate(node.args, value))  # type: ignore[arg-type]
        kwargs = dict(map_aggregate(node.kwargs, value))  # type: ignore[arg-type, call-overload]
        return positional(node.target, args, kwargs)

    def resolved(self, node: torch.fx.Node, value: Any) -> Any:
        """The node's value for one who reads elements. Of a tensor with the negative bit the memory holds the opposite
        of each element: torch copies those, as kernels know memory only."""
        if not has_negative_bit(node) or not isinstance(value, Tensor):
            return value
        found = self.resolutions.get(node)
        if found is None:
            found = self.ctx.extern(
                torch.ops.aten.clone.default,
                (self.ctx.ref(value, eager_strides(node)),),
                {"memory_format": torch.contiguous_format},
                size=value.size,
                dtype=value.dtype,
                device=value.device,
                stride=Layout.contiguous(value.size).stride,
            )
            if not self.written_nodes:
                self.resolutions[node] = found
        return found

    def strided_arguments(self, node: torch.fx.Node, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of as_strided, whose offset counts in the storage that eager has: where that is not a buffer
        here (a flip, say, is read through), it is made one."""
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        owner = self.owner_of(source)
        value = self.values[owner]
        if owner.op != "call_function" or not isinstance(value, Tensor):
            return args
        if isinstance(value, View) and self.owns(owner, value) and lies_as_in_eager(owner, value):
            return args
        whole = self.placed(owner, value)
        self.values[owner] = whole
        self.owners[whole.buffer.name] = owner
        offset = args[3] if len(args) > 3 and args[3] is not None else source.meta["val"].storage_offset()
        return (whole, args[1], args[2], simple(offset))

    def computable(self, node: torch.fx.Node, function: Lowering) -> bool:
        """Returns whether Loops can compute with every tensor that goes in or out, or move it where that is all."""
        moves = getattr(function, MOVES, False)

        def takes(tensor: torch.Tensor) -> bool:
            return tensor.dtype in SUPPORTED or (moves and self.ctx.holds(tensor.dtype, tensor.device))

        found = [item.meta.get("val") for item in node.all_input_nodes]
        meta = node.meta.get("val")
        found += meta if isinstance(meta, (tuple, list)) else [meta]
        tensors = [value for value in found if isinstance(value, torch.Tensor)]
        return all(takes(tensor) and tensor.layout == torch.strided for tensor in tensors)

    def settled(self, node: torch.fx.Node, result: Any) -> Any:
        """The result, copied where it reads memory that will be written in place and is no view in eager."""
        if not self.written_nodes or torch_api.aliased_argument(node) is not None:
            return result
        if torch_api.written_arguments(node):
            return result
        if isinstance(result, (tuple, list)):
            return tuple(self.settled(node, item) for item in result)
        if isinstance(result, View) and result.buffer.name in self.written_buffers:
            return self.ctx.copy(result, self.ctx.meta_strides(result.size))
        return result

    # ------------------------------------------------------------------------------------------------------- outputs

    def updated_input(self, position: int, item: torch.fx.Node) -> torch.fx.Node | None:
        """The input whose new value an output is, or is a view of, where the user gets a view of that input."""
        return self.updates.get(self.owner_of(item)) if position in self.graph.rebuilt_outputs else None

    def output(self, item: Any, position: int) -> Any:
        """Returns what the program returns for an output of the graph."""
        value = self.values[item] if isinstance(item, torch.fx.Node) else simple(item)
        if not isinstance(value, Tensor):
            return Opaque(value=value) if isinstance(value, str) else value
        stride = eager_strides(item)
        updated = self.updated_input(position, item)
        if updated is not None and self.values[updated].dtype == value.dtype:
            offset = storage_offset(item) - storage_offset(self.owner_of(item))
            return TensorRef(self.values[updated].buffer.name, Layout(value.size, stride, offset))
        if isinstance(value, View) and self.owns(item, value):
            owner = self.owner_of(item)
            home = self.values[owner]
            if isinstance(home, View) and home.buffer is value.buffer and lies_as_in_eager(owner, home):
                # A view lies where its metadata says. With symbolic sizes that may be more than its index shows.
                return TensorRef(
                    home.buffer.name, Layout(value.size, stride, storage_offset(item) - storage_start(owner))
                )
            found = value.ref()
            if found is not None and same_strides(value.size, found.layout.stride, stride):
                return TensorRef(found.buffer, Layout(found.layout.size, stride, found.layout.offset))
        # Returned twice, it is one tensor.
        key = (item, stride)
        if key not in self.materials:
            self.materials[key] = self.materialized(self.resolved(item, value), stride)
        return self.materials[key]

    def told_apart(self, outputs: list[Any]) -> tuple[Any, ...]:
        """The outputs, each visible one that is another node of the graph as a tensor object of its own: AOTAutograd
        marks objects, and one for both `v.detach()` and `v` would leave v without a gradient."""
        sharing: dict[str, dict[torch.fx.Node, list[int]]] = {}
        for at in sorted(self.graph.visible_outputs):
            item, found = self.graph.outputs[at], outputs[at]
            if isinstance(found, TensorRef) and found.is_all_of(self.ctx.buffers[found.buffer]):
                sharing.setdefault(found.buffer, {}).setdefault(item, []).append(at)
        for nodes in sharing.values():
            first = next((node for node in nodes if node is self.owner_of(node)), next(iter(nodes)))
            for node, positions in nodes.items():
                if node is not first:
                    ref = self.another(outputs[positions[0]])
                    for at in positions:
                        outputs[at] = ref
        return tuple(outputs)

    def another(self, ref: TensorRef) -> TensorRef:
        """Returns one more tensor object in the memory of a tensor that is all of its buffer."""
        buffer = self.ctx.buffers[ref.buffer]
        target = torch.ops.aten.detach.default  # unlike an alias no view for autograd, which is above the graph
        return same_memory(self.ctx, target, ref, buffer.dtype, buffer.device)

    def owns(self, node: torch.fx.Node, value: View) -> bool:
        """Returns whether the memory that the node's tensor lies in is the node's in eager, too."""
        return self.owners.get(value.buffer.name, self.owner_of(node)) is self.owner_of(node)

    def is_placed(self, node: torch.fx.Node, value: Tensor) -> bool:
        """Returns whether the memory of a node that goes to the caller, itself or in views, can stay as it is."""
        if isinstance(value, View) and not self.owns(node, value):
            return False
        if node not in self.viewed and storage_offset(node) == storage_start(node):
            return True  # `output` gives it memory if need be
        return isinstance(value, View) and lies_as_in_eager(node, value)

    def placed(self, node: torch.fx.Node, value: Tensor) -> View:
        """A copy of `value` with the node's strides, as far from its storage's start as the node's tensor is."""
        stride, offset = eager_strides(node), storage_offset(node)
        return self.ctx.copy(self.resolved(node, value), stride, offset)

    def materialized(self, value: Tensor, stride: tuple[Expr, ...]) -> TensorRef:
        """A copy of `value` with exactly these strides, gaps included: the backward graph, say, was traced for them.
        Dimensions of stride 0 are expanded from one element; where elements along one differ, what tracing says of the
        strides is wrong (of a select_scatter of an expanded tensor whose size depends on data, say)."""
        if any(step == 0 and n != 1 and value.varies(dim) for dim, (n, step) in enumerate(zip(value.size, stride))):
            stride = Layout.contiguous(value.size).stride
        broadcast = [dim for dim in range(value.ndim) if stride[dim] == 0 and value.size[dim] != 1 and value.numel != 0]
        index = tuple(ZERO if dim in broadcast else var for dim, var in enumerate(variables(value.ndim)))
        size = tuple(ONE if dim in broadcast else n for dim, n in enumerate(value.size))
        base = self.ctx.copy(value.reindex(size, index) if broadcast else value, stride)
        return TensorRef(base.buffer.name, Layout(value.size, stride))


_OF_WRAPPERS = re.compile(r"_|(math|torch|call|args)$|(kernel|buf|op)\d")
"""Names that a wrapper has for its own use: see `litz.runtime.wrapper_support.support`."""


def _is_equal(one: Program, other: Program) -> bool:
    """Returns whether two programs compute the same, whatever they are called."""
    texts = (str(each).split("\n")[1:] for each in (one, other))
    objects = ({name: id(value) for name, value in objects_in(each).items()} for each in (one, other))
    return operator.eq(*texts) and operator.eq(*objects)


def _input_name(name: str) -> str:
    """Returns the name of an input. Autograd calls a saved value after its op, and an op of a user's may be `_view`."""
    return f"in_{name}" if _OF_WRAPPERS.match(name) else name
