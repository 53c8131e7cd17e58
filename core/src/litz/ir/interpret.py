"""Run a Program with plain torch: slowly, and as the IR's meaning says.

The reference for code generators and passes. Every loop variable, and every one that a reduction owns, is an `arange`
along a dimension of its own, every node a tensor that broadcasts over the iteration space. Half types compute in
float32 and round at casts and stores, as generated kernels do.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from functools import reduce as fold
from typing import Any

import sympy
import torch

from litz.regions import Region

from .arguments import rebuild
from .buffer import Layout, TensorRef
from .combined import scan_row
from .dtypes import FLOAT8, HALF, compute_dtype
from .index import FUNCTIONS, Expr, FloorDiv, Mod, PythonMod, Symbol, ToFloat, Where, placeholder
from .node import Node
from .operation import Check, Extern, Loop, Store, Unbacked, require
from .ops import OPS
from .program import Opaque, Program
from .reductions import REDUCTIONS

Sizes = dict[Symbol, int]
Env = Mapping[Symbol, Any]


class OutsideBufferError(AssertionError):
    """A loop reads or writes outside of a buffer: its lowering lacks a check, a clamp or a mask."""


def interpret(program: Program, args: Sequence[Any]) -> list[Any]:
    """Runs the program on inputs and returns its outputs. Inputs that the program mutates are mutated. Errors:
    OutsideBufferError for an access outside of a buffer, IndexError for a bound that does not hold, and what calls and
    Checks raise."""
    memory: dict[str, torch.Tensor] = dict(program.constants)
    sizes: Sizes = {}
    for item, value in zip(program.inputs, args, strict=True):
        if isinstance(item, str):
            memory[item] = value
            _bind_layout(sizes, program.buffers[item].layout, value)
        elif isinstance(item, Opaque):
            memory[item.name or ""] = value  # library calls may take it (a generator, a script object)
        elif item.is_Symbol:
            sizes[item] = _size_value(item, value)
    for operation in program.operations:
        if isinstance(operation, Loop):
            run_loop(operation, program, memory, sizes)
        else:
            _run_extern(operation, program, memory, sizes)
    return [_value(item, memory, sizes, program) for item in program.outputs]


def _bind_layout(sizes: Sizes, layout: Layout, tensor: torch.Tensor) -> None:
    pairs = [*zip(layout.size, tensor.shape, strict=True), *zip(layout.stride, tensor.stride(), strict=True)]
    for expr, value in pairs:
        if expr.is_Symbol:
            sizes.setdefault(expr, int(value))


def _value(item: Any, memory: Mapping[str, torch.Tensor], sizes: Sizes, program: Program | None = None) -> Any:
    """Returns the Python or torch value of an argument or an output. program: to hand on a call's result whole where it
    has other sizes than its fake kernel says, as torch 2.13's embedding_bag of bfloat16 gives no offsets. A backward
    gets it as an input."""
    if isinstance(item, TensorRef):
        own = memory[item.buffer]
        whole = program is not None and item.is_all_of(program.buffers[item.buffer])
        if whole and list(own.shape) != [evaluate(expr, sizes) for expr in item.layout.size]:
            return own
        return view(item, memory, sizes)
    if isinstance(item, sympy.Basic):
        return evaluate(item, sizes)
    if isinstance(item, Opaque):
        return item.value if item.name is None else memory[item.name]
    if isinstance(item, Region) and program is not None:
        return partial(interpret, program.regions[item.name])
    return item


def view(ref: TensorRef, memory: Mapping[str, torch.Tensor], sizes: Sizes) -> torch.Tensor:
    """Returns the tensor that a TensorRef means."""
    base = memory[ref.buffer]
    size = [evaluate(expr, sizes) for expr in ref.layout.size]
    stride = [evaluate(expr, sizes) for expr in ref.layout.stride]
    offset = evaluate(ref.layout.offset, sizes)
    if list(base.shape) == size and list(base.stride()) == stride and offset == 0:
        return base
    return base.as_strided(size, stride, base.storage_offset() + offset)


def evaluate(expr: Expr, env: Env) -> Any:
    """Returns an expression's value as Python has it, an int, float or bool; an int64 tensor if a variable of the
    expression is one. Errors: NotImplementedError for a tensor in anything but sums, products, powers,
    divisions and remainders."""
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return env[expr]
    if not expr.args:
        return _number(expr)
    if isinstance(expr, sympy.Piecewise):
        return next(evaluate(value, env) for value, condition in expr.args if evaluate(condition, env))
    if isinstance(expr, Where):
        return evaluate(expr.args[1 if evaluate(expr.args[0], env) else 2], env)
    args = [evaluate(arg, env) for arg in expr.args]
    if expr.is_Add:
        return fold(operator.add, args)
    if expr.is_Mul:
        return fold(operator.mul, args)
    if isinstance(expr, FloorDiv):
        return args[0] // args[1]
    if isinstance(expr, (Mod, PythonMod)):
        return args[0] % args[1]
    if expr.is_Pow and isinstance(args[0], torch.Tensor):
        return args[0] ** args[1]
    if any(isinstance(arg, torch.Tensor) for arg in args):
        raise NotImplementedError(f"cannot evaluate {expr} at loop variables")
    if type(expr) in _OF_NUMBERS:
        return _OF_NUMBERS[type(expr)](*args)
    return _number(expr.func(*map(sympy.sympify, args)))


_OF_NUMBERS: Mapping[type, Callable[..., Any]] = {
    **{sympy.Eq: operator.eq, sympy.Ne: operator.ne, sympy.Lt: operator.lt, sympy.Le: operator.le},
    **{sympy.Gt: operator.gt, sympy.Ge: operator.ge, sympy.Not: operator.not_, ToFloat: float},
    **{sympy.And: lambda *args: all(args), sympy.Or: lambda *args: any(args), sympy.Abs: abs},
    **{FUNCTIONS["FloorToInt"]: math.floor, FUNCTIONS["CeilToInt"]: math.ceil, FUNCTIONS["TruncToInt"]: math.trunc},
}
"""What Python computes otherwise than sympy, which compares no NaN, and for which abs(0.0) is an integer."""


def _number(value: Any) -> bool | int | float:
    """Returns a sympy constant as a Python number."""
    if value in (sympy.true, sympy.false):
        return bool(value)
    whole = value.is_integer and not isinstance(value, sympy.Float)  # 0.0 says that it is an integer
    # torch's FloorDiv of an infinite float is an infinite integer: Python's own error says what is wrong with it.
    return int(value if value.is_Integer else float(value)) if whole else float(value)


def _size_value(symbol: Symbol, value: Any) -> Any:
    """Returns the value of a symbol, which may stand for a float or a bool too."""
    return int(value) if symbol.is_integer else value


def _allocate(name: str, program: Program, memory: dict[str, torch.Tensor], sizes: Sizes) -> torch.Tensor:
    buffer = program.buffers[name]
    if name not in memory:
        size = [evaluate(expr, sizes) for expr in buffer.layout.size]
        stride = [evaluate(expr, sizes) for expr in buffer.layout.stride]
        memory[name] = torch.empty_strided(size, stride, dtype=buffer.dtype, device=buffer.device)
    return memory[name]


def run_loop(loop: Loop, program: Program, memory: dict[str, torch.Tensor], sizes: Sizes) -> None:
    """Runs one loop: computes every value before the first store, as the stores of a loop do not see each other."""
    env: dict[Symbol, Any] = dict(sizes)
    extents = [evaluate(size, sizes) for size in loop.extents.values()]
    for dim, (var, extent) in enumerate(zip(loop.extents, extents, strict=True)):
        shape = [1] * len(extents)
        shape[dim] = extent
        env[var] = torch.arange(extent, device=loop.device).reshape(shape)
    body = _Body(loop, extents, env, memory)
    for node in loop.nodes:
        body.values[node] = body.value(node)
    pending = [body.prepare(store) for store in loop.stores]
    for store, (position, value, mask) in zip(loop.stores, pending, strict=True):
        _commit(loop.name, store, _allocate(store.buffer, program, memory, sizes), position, value, mask)


def _held(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of the tensor that holds a node's values: float8 is not computed with, and NaN keeps its
    bits."""
    return dtype if dtype in FLOAT8 else compute_dtype(dtype)


class _Body:
    """Holds the values of a loop's nodes while the loop runs."""

    def __init__(self, loop: Loop, extents: list[int], env: Env, memory: Mapping[str, torch.Tensor]) -> None:
        self.loop, self.extents, self.env, self.memory = loop, extents, env, memory
        self.values: dict[Node, torch.Tensor] = {}
        self.dims = {var: dim for dim, var in enumerate(loop.extents)}
        self.outer, self.whole = len(loop.ranges), len(loop.all_ranges)

    def tensor(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value
        return torch.full([1] * len(self.extents), value, dtype=dtype, device=self.loop.device)

    def position(self, index: tuple[Expr, ...], indirect: tuple[Node, ...]) -> list[Any]:
        env = {**self.env, **{placeholder(n): self.values[x] for n, x in enumerate(indirect)}}
        return [self.tensor(evaluate(expr, env), torch.int64) for expr in index]

    def value(self, node: Node) -> torch.Tensor:
        args = [self.values[arg] for arg in node.args]
        if node.op in OPS:
            return self.tensor(OPS[node.op].torch(*args), _held(node.dtype))
        return getattr(self, f"_{node.op}")(node, *args)

    def _const(self, node: Node) -> torch.Tensor:
        return self.tensor(node.attrs[0], _held(node.dtype))

    def _index(self, node: Node) -> torch.Tensor:
        return self.tensor(evaluate(node.attrs[0], self.env), torch.int64)

    def _cast(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        return value.to(node.dtype).to(_held(node.dtype))

    def _bitcast(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        stored = value.to(node.args[0].dtype)
        return stored.contiguous().view(node.dtype).to(_held(node.dtype))

    def _bounded(self, node: Node, value: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        size, what = evaluate(node.attrs[0], self.env), node.attrs[1]
        outside = (value < 0) | (value >= size)
        wrong = outside if mask is None else outside & mask
        if bool(wrong.any()):
            raise IndexError(f"{self.loop.name}: index out of range for size {size}{f' of {what}' if what else ''}")
        return torch.where(outside, torch.zeros_like(value), value)

    def _load(self, node: Node, *args: torch.Tensor) -> torch.Tensor:
        base = self.memory[node.buffer]
        position = self.position(node.index, node.indirect)
        mask = self.values[node.mask] if node.mask is not None else None
        shape = torch.broadcast_shapes(*(p.shape for p in position), [1] * len(self.extents))
        if mask is not None:
            shape = torch.broadcast_shapes(shape, mask.shape)
            position = [torch.where(mask, p, 0) for p in position]
            if base.numel() == 0:
                return torch.zeros(shape, dtype=_held(node.dtype), device=self.loop.device)
        if 0 in shape:
            return torch.empty(shape, dtype=_held(node.dtype), device=self.loop.device)
        _inside(self.loop.name, node.buffer, base, position)
        # Indexing by brackets gives a view where all positions are single ones, and a later store would change it.
        value = torch.ops.aten.index(base, position) if position else base.reshape([1] * len(self.extents)).clone()
        value = value.to(self.loop.device).to(_held(node.dtype))
        return value if mask is None else torch.where(mask, value, value.new_zeros(()))

    def _flat(self, value: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        """Returns a value with some dimensions, over their whole extents and in their order, as one last dimension."""
        full = value.expand([self.extents[dim] if dim in dims else n for dim, n in enumerate(value.shape)])
        kept = [dim for dim in range(value.ndim) if dim not in dims]
        count = fold(operator.mul, (self.extents[dim] for dim in dims), 1)
        return full.permute([*kept, *dims]).reshape([*(full.shape[dim] for dim in kept), count])

    def _reduce(self, node: Node, *args: torch.Tensor) -> torch.Tensor:
        dims = [self.dims[r.var] for r in node.over or self.loop.reduction_ranges]
        args = tuple(self._flat(arg, dims) for arg in torch.broadcast_tensors(*args))
        reduced = REDUCTIONS[node.attrs[0]].results[node.attrs[0]].torch(*args)
        return reduced[tuple(None if dim in dims else slice(None) for dim in range(len(self.extents)))]

    def _scan(self, node: Node, *args: torch.Tensor) -> torch.Tensor:
        row = scan_row(node.attrs[0])
        scan = None if row is None else row.results[node.attrs[0]].scan
        assert scan is not None
        return scan(*(self._flat(arg, [self.outer]) for arg in torch.broadcast_tensors(*args))).movedim(-1, self.outer)

    def prepare(self, store: Store) -> tuple[list[Any], torch.Tensor, torch.Tensor | None]:
        """Returns position, value and mask of a store, over the points at which it happens."""
        level = self.whole if self.loop.at_reduction_level(store) else self.outer
        shape = [n if dim < level else 1 for dim, n in enumerate(self.extents)]
        position = [p.expand(shape) for p in self.position(store.index, store.indirect)]
        mask = None if store.mask is None else self.values[store.mask].expand(shape)
        return position, self.values[store.value].expand(shape), mask


def _inside(loop: str, name: str, tensor: torch.Tensor, position: Sequence[torch.Tensor]) -> None:
    """OutsideBufferError unless every position lies within the tensor. PyTorch's own indexing takes negative ones."""
    for dim, (where, extent) in enumerate(zip(position, tensor.shape, strict=True)):
        wrong = (where < 0) | (where >= extent)
        if bool(wrong.any()):
            at = int(where[wrong][0])
            raise OutsideBufferError(f"{loop}: position {at} of dimension {dim} is outside of {name}, of size {extent}")


def _commit(
    loop: str, store: Store, target: torch.Tensor, position: list[Any], value: torch.Tensor, mask: torch.Tensor | None
) -> None:
    value = value.to(target.dtype)
    if value.untyped_storage().data_ptr() == target.untyped_storage().data_ptr():
        value = value.clone()
    if mask is not None:
        position, value = [p[mask] for p in position], value[mask]
    if value.numel() == 0:
        return
    _inside(loop, store.buffer, target, position)
    if not position:
        position = [torch.zeros(value.numel(), dtype=torch.int64, device=target.device)]
        target, value = target.view(1), value.reshape(-1)
    flat = [p.reshape(-1) for p in position]
    if target.dtype in FLOAT8:  # which torch does not index, all of them
        target, value = target.view(torch.uint8), value.view(torch.uint8)
    if store.mode == "set":
        target.index_put_(tuple(flat), value.reshape(-1))
        return
    strides = torch.empty(target.shape, device="meta").stride()
    linear = sum(p * s for p, s in zip(flat, strides, strict=True))
    mode = {"add": "sum", "prod": "prod", "max": "amax", "min": "amin"}[store.mode]
    wide = target.reshape(-1).to(torch.float32) if target.dtype in HALF else target.reshape(-1).clone()
    if mode == "sum" and target.dtype == torch.bool:
        wide, value, mode = wide.to(torch.uint8), value.to(torch.uint8), "amax"
    wide.scatter_reduce_(0, linear, value.reshape(-1).to(wide.dtype), mode)
    target.copy_(wide.reshape(target.shape).to(target.dtype))


def _bind(sizes: Sizes, item: Unbacked, result: Any) -> None:
    step: Any
    for step in item.path:
        if isinstance(step, int):
            result = result[step]
        elif step[0] == "divide":
            result = result // step[1]
        elif step[0] != "item":  # "size", "stride" and "storage_offset" are methods of a tensor
            result = getattr(result, step[0])(*step[1:])
    sizes[item.symbol] = _size_value(item.symbol, result)


def _run_extern(extern: Extern, program: Program, memory: dict[str, torch.Tensor], sizes: Sizes) -> None:
    if isinstance(extern, Check):
        require(evaluate(extern.condition, sizes), extern.explain(sizes), extern.error)
        return
    args, kwargs = rebuild((extern.args, extern.kwargs), lambda value: _value(value, memory, sizes, program))
    result = extern.target(*args, **kwargs)
    for item in extern.unbacked:
        _bind(sizes, item, result)
    results = result if isinstance(result, (list, tuple)) else (result,)
    for name, value in zip(extern.outputs, results, strict=False):
        if name is not None:
            placed = isinstance(value, torch.Tensor) and name not in extern.aliases
            memory[name] = _as_planned(value, program.buffers[name].layout, sizes) if placed else value


def _as_planned(value: torch.Tensor, layout: Layout, sizes: Sizes) -> torch.Tensor:
    """A call's result with the strides of its buffer, which its fake tensor has: a copy where it has others, as the
    wrapper makes one. The call's argument may lie without the gaps that tracing saw."""
    stride = tuple(evaluate(expr, sizes) for expr in layout.stride)
    if value.numel() == 0 or value.layout != torch.strided or len(stride) != value.ndim:
        return value
    pairs = [(own, planned) for n, own, planned in zip(value.shape, value.stride(), stride, strict=True) if n != 1]
    if all(own == planned for own, planned in pairs) or any(planned == 0 for _, planned in pairs):
        return value
    fresh = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
    return (fresh.conj() if value.is_conj() else fresh).copy_(value)
