"""Ops without a lowering become Externs: a call of the op itself, on tensors that lie as in eager.

In: an FX node and its lowered arguments. Out: the Views of its results, whose sizes, dtypes and strides are those of
the node's fake results. By the op's schema: which arguments it writes, which results share memory with an argument. By
its tags: whether it must run in program order (random numbers, asserts, prints).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from litz.capture import torch_api
from litz.ir import Check, Extern, Layout, Region, TensorRef, Unbacked
from litz.regions import CALLS

from .context import CPU, LoweringContext
from .strides import layout_of
from .view import Tensor, View

aten = torch.ops.aten


def fallback(
    ctx: LoweringContext, args: tuple[Any, ...], kwargs: dict[str, Any], operation: type[Extern] = Extern, **fields: Any
) -> Any:
    """The results of the node as the results of an Extern: a View, a size expression, or a tuple of these and None.

    operation, fields: to make a Template, Collective or Wait of it.
    """
    node = ctx.node
    passed = tuple(_argument(ctx, value, fx) for value, fx in zip(args, _fx_arguments(node, len(args)), strict=True))
    named = {key: _argument(ctx, value, node.kwargs.get(key)) for key, value in kwargs.items()}
    mutates = _mutated(node, passed, named)
    meta = node.meta.get("val")
    leaves, spec = tree_flatten(meta)
    nested = isinstance(meta, dict) or (
        isinstance(meta, (tuple, list)) and any(isinstance(value, (tuple, list, dict)) for value in meta)
    )
    positions = _returns(meta)
    made = [_result(ctx, value, _is_fresh(node, at)) for value, at in zip(leaves, positions, strict=True)]
    results, outputs = [result for result, _ in made], [name for _, name in made]
    aliases = _aliases(node, passed, named, outputs, positions)
    ctx.storage_offsets.update(dict.fromkeys(aliases))
    target: Any = FlatCall(node.target) if nested else node.target  # type: ignore[arg-type]
    regions = [ctx.regions[leaf.name] for leaf in tree_leaves(passed) if isinstance(leaf, Region)]
    if regions:
        target = CALLS[target.__name__]
    elif operation is Extern and not isinstance(node.target, OpOverload):
        target = OwnResults(target)
    acts = (call.effect or call.mutates or isinstance(call, Check) for region in regions for call in region.externs)
    effect = any(acts) if regions else has_effect(node, outputs)
    ctx.add_extern(
        target,
        passed,
        named,
        _device(ctx),
        operation=operation,
        outputs=tuple(outputs),
        mutates=mutates,
        aliases=aliases,
        unbacked=_unbacked(ctx, node),
        **{"effect": effect, **fields},
    )
    return tuple_of(tree_unflatten(results, spec))


@dataclass(frozen=True)
class _Around:
    """A function that calls another, under whose name it goes."""

    target: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return str(getattr(self.target, "__name__", self.target))


@dataclass(frozen=True)
class FlatCall(_Around):
    """A call whose results are nested, as a call that returns one list: a random op together with the generator's
    state, a dict of what a user's Triton kernel wrote."""

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Calls the target and returns the leaves of its result as one list."""
        return tree_leaves(self.target(*args, **kwargs))


@dataclass(frozen=True)
class OwnResults(_Around):
    """A call without a schema, as of a higher-order op, of which nothing says whether its results are views: of
    arguments, or of one another. Results that are views become copies."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the target and returns its results, each in memory of its own."""
        taken = {torch_api.memory_of(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}

        def own(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            memory = torch_api.memory_of(value)
            if memory in taken:
                return value.conj().clone().conj() if value.is_conj() else value.clone()
            taken.add(memory)
            return value

        return tree_map(own, self.target(*args, **kwargs))


def tuple_of(value: Any) -> Any:
    """Returns a value with all lists in it as tuples, at every depth; dicts stay dicts."""
    if isinstance(value, dict):
        return {key: tuple_of(item) for key, item in value.items()}
    return tuple(map(tuple_of, value)) if isinstance(value, (list, tuple)) else value


def _fx_arguments(node: torch.fx.Node, count: int) -> list[Any]:
    """The FX argument behind each positional argument, some of which the node may pass by keyword."""
    found = list(node.args)
    if isinstance(node.target, OpOverload):
        for argument in node.target._schema.arguments[len(found) : count]:
            found.append(node.kwargs[argument.name])
    return found


def _argument(ctx: LoweringContext, value: Any, fx: Any) -> Any:
    """An argument as the IR has it. Tensors have the strides of their fake value."""
    if isinstance(value, Tensor):
        fake = fx.meta.get("val") if isinstance(fx, torch.fx.Node) else None
        stride = layout_of(fake).stride if isinstance(fake, torch.Tensor) else None
        if isinstance(fx, torch.fx.Node) and ctx.needs(ctx.node, fx) == "contiguous":
            stride = Layout.contiguous(value.size).stride
        return ctx.ref(value, stride)
    if isinstance(value, (list, tuple)):
        inner: Sequence[Any] = fx if isinstance(fx, (list, tuple)) else [None] * len(value)
        return tuple(_argument(ctx, item, part) for item, part in zip(value, inner, strict=True))
    if isinstance(value, dict):
        named = fx if isinstance(fx, dict) else {}
        return {key: _argument(ctx, item, named.get(key)) for key, item in value.items()}
    return value


def _is_fresh(node: torch.fx.Node, position: int) -> bool:
    """Returns whether a result is memory of its own, by the op's schema or because `OwnResults` sees to that."""
    if not isinstance(node.target, OpOverload):
        return True
    returns = node.target._schema.returns
    return position < len(returns) and returns[position].alias_info is None


def _result(ctx: LoweringContext, meta: Any, fresh: bool) -> tuple[Any, str | None]:
    """Returns what stands for a result later on, and the buffer that holds it if it is a tensor.

    A fresh result gets an element for each index, whatever the fake tensor says: torch 2.11's slice_scatter of an
    expanded tensor says that elements share memory, and what differs could not be copied into that.
    """
    if isinstance(meta, torch.Tensor):
        layout = layout_of(meta)
        if fresh and any(step == 0 and n != 1 for step, n in zip(layout.stride, layout.size, strict=True)):
            layout = Layout.contiguous(layout.size)
        buffer = ctx.new_buffer(layout.size, meta.dtype, meta.device, layout.stride)
        if meta.is_conj():
            ctx.conjugated.add(buffer.name)
        return View.whole(buffer), buffer.name
    if isinstance(meta, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return torch_api.sympy_of(meta), None
    return meta, None


def _returns(meta: Any) -> list[int]:
    """Returns, for each leaf of a call's results, the number of the result that contains it."""
    if not isinstance(meta, (tuple, list)):
        return [0] * len(tree_leaves(meta))
    return [position for position, value in enumerate(meta) for _ in tree_leaves(value)]


def _pairs(node: torch.fx.Node, passed: tuple[Any, ...], named: dict[str, Any]) -> list[tuple[Any, Any]]:
    """(schema argument, value) for each argument that is given."""
    assert isinstance(node.target, OpOverload)
    pairs: list[tuple[Any, Any]] = []
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(passed):
            pairs.append((argument, passed[position]))
        elif argument.name in named:
            pairs.append((argument, named[argument.name]))
    return pairs


def _buffers(value: Any) -> list[str]:
    if isinstance(value, TensorRef):
        return [value.buffer]
    return [name for item in value for name in _buffers(item)] if isinstance(value, (list, tuple)) else []


def _mutated(node: torch.fx.Node, passed: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, ...]:
    """Returns the buffers that the op writes, by its schema; of a launch of a user's Triton kernel in place, all."""
    if torch_api.is_higher_order(node.target) and str(node.target) == "triton_kernel_wrapper_mutation":
        return tuple(dict.fromkeys(name for value in named["kwargs"].values() for name in _buffers(value)))
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return ()
    found = [
        name
        for argument, value in _pairs(node, passed, named)
        if argument.alias_info is not None and argument.alias_info.is_write
        for name in _buffers(value)
    ]
    return tuple(dict.fromkeys(found))


def _aliases(
    node: torch.fx.Node, passed: tuple[Any, ...], named: dict[str, Any], outputs: list[str | None], positions: list[int]
) -> dict[str, str]:
    """Returns the argument's buffer with which each result shares memory, by the alias sets of the schema.

    positions: for each output, which of the results it is or is in.
    """
    if not isinstance(node.target, OpOverload):
        return {}
    bases: dict[str, str] = {}
    for argument, value in _pairs(node, passed, named):
        if argument.alias_info is not None:
            for label in argument.alias_info.before_set:
                for name in _buffers(value)[:1]:
                    bases[label] = name
    found: dict[str, str] = {}
    returns = node.target._schema.returns
    for position, output in zip(positions, outputs, strict=True):
        # A list of results is one return of the schema: Tensor(a)[].
        info = returns[position if len(returns) > 1 else 0].alias_info if returns else None
        if info is None or output is None:
            continue
        labels = [label for label in (*info.before_set, *info.after_set) if label in bases]
        if labels:
            found[output] = bases[labels[0]]
        elif "*" in info.after_set and bases:
            found[output] = next(iter(bases.values()))
    if not bases and torch_api.aliased_argument(node) is not None and outputs[0] is not None:
        # A wait's schema does not say so, but its result is its argument.
        found[outputs[0]] = _buffers(passed[0])[0]
    return found


def _unbacked(ctx: LoweringContext, node: torch.fx.Node) -> tuple[Unbacked, ...]:
    """The symbols that the call binds, and where in its results they are."""
    bindings = node.meta.get("unbacked_bindings")
    if not bindings:
        return ctx.promises.taken_for_known(node, _path)
    paths = ((symbol, _path(keypath)) for symbol, keypath in bindings.items() if isinstance(symbol, sympy.Symbol))
    return tuple(Unbacked(ctx.promises.symbol_for(symbol, node, path), path) for symbol, path in paths)


def _path(keypath: Any) -> tuple[Any, ...]:
    """A pytree key path as the steps of `Unbacked`."""
    steps: list[Any] = []
    pending: str | None = None
    for key in keypath:
        kind = type(key).__name__
        if kind == "SequenceKey":
            steps.append(key.idx if pending is None else (pending, key.idx))
            pending = None
        elif kind == "CallMethodKey":
            if key.name in ("size", "stride"):
                pending = key.name
            else:
                steps.append((key.name,))
        elif kind == "ConvertIntKey":
            steps.append(("item",))
        elif kind == "DivideByKey":
            steps.append(("divide", int(key.divisor)))
        elif kind == "InnerTensorKey":
            raise NotImplementedError("symbols inside of tensor subclasses")
        else:
            raise NotImplementedError(f"a symbol at {key}")
    return tuple(steps)


def has_effect(node: torch.fx.Node, outputs: list[str | None]) -> bool:
    """Returns whether the call must happen, and in order, even if nothing reads its results. outputs: the buffer of
    each result, None for a result without one."""
    target = node.target
    if torch_api.is_random(target) or torch_api.is_higher_order(target):
        # A higher-order op may run anything.
        return True
    # Nothing to read: it is there for what else it does (an assert, a print).
    return not outputs or (all(name is None for name in outputs) and not node.meta.get("unbacked_bindings"))


def _device(ctx: LoweringContext) -> torch.device:
    """The device that the call works on: that of its results, else of its arguments."""
    results = ctx.meta if isinstance(ctx.meta, (tuple, list)) else (ctx.meta,)
    values = (*results, *(item.meta.get("val") for item in ctx.node.all_input_nodes))
    return next((value.device for value in values if isinstance(value, torch.Tensor)), CPU)
