"""One loop as NumPy text: a statement for each node, of the whole iteration space at once.

A value has an axis for each range of the loop, output ranges first; along those that it does not vary with, it has
length 1. All values are computed before anything is stored, so the stores of one loop do not see each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from litz.ir import Loop, Node, Store
from litz.ir.build import placeholders_in
from litz.ir.dtypes import compute_dtype
from litz.ir.index import ZERO, Expr, Symbol, may_be_empty, placeholder, stride_of
from litz.ir.node import walk
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS, Form, Reduction

from .dialect import COMBINING, NUMPY, VALUES, literal, read, ufunc, written
from .dialect import REDUCTIONS as TEXTS
from .index import index_text, tuple_text


class Body:
    """The statements of a loop, in `lines`.

    buffers: the text of each buffer. dtypes: of its elements. sizes: the text of each size. bounds: what positions are
    checked against, for the whole kernel; a check is known by its place there.
    """

    def __init__(
        self,
        loop: Loop,
        buffers: Mapping[str, str],
        dtypes: Mapping[str, torch.dtype],
        sizes: Mapping[Symbol, str],
        bounds: list[list[str]],
    ) -> None:
        self.loop, self.buffers, self.dtypes, self.bounds = loop, buffers, dtypes, bounds
        self.names = {**sizes, **{r.var: str(r.var) for r in loop.all_ranges}}
        self.lines: list[str] = []
        self.texts: dict[Node, str] = {}
        self.variables: set[str] = set()
        self.spread: dict[Node, str] = {}
        self.states: dict[tuple[Reduction, tuple[Node, ...]], list[str]] = {}
        self.extents = [self.size(r.size) for r in loop.all_ranges]
        self.outer, self.inner = len(loop.ranges), len(loop.reduction_ranges)

    def write(self) -> list[str]:
        loop = self.loop
        empty = [self.size(r.size) for r in loop.ranges if may_be_empty(r.size)]
        if empty:
            self.lines += [f"if 0 in {tuple_text(empty)}:", "    return"]
        used = {symbol for expr in self._array_positions() for symbol in expr.free_symbols}
        for number, r in enumerate(loop.all_ranges):
            if r.var in used:
                self.lines.append(f"{r.var} = variable({number}, {len(self.extents)}, {self.extents[number]})")
        last = {arg: node for node in loop.nodes for arg in node.args}
        kept = {root for store in loop.stores for root in store.roots}
        for node in loop.nodes:
            self.texts[node] = self.value(node)
            self.forget([arg for arg in dict.fromkeys(node.args) if last[arg] is node and arg not in kept])
        for store in loop.stores:
            self.store(store)
        return self.lines

    # ----------------------------------------------------------------------------------------------------- positions

    def size(self, expr: Expr) -> str:
        return index_text(expr, self.names)

    def position(self, expr: Expr, indirect: Sequence[Node]) -> str:
        values = {placeholder(number): self.texts[node] for number, node in enumerate(indirect)}
        return index_text(expr, {**self.names, **values})

    def view(self, buffer: str, offset: Expr, whole: Sequence[bool] | None = None) -> str | None:
        """The elements that an access goes through, as a view; None where it does not go in steps. whole: along which
        axes they are spelled out in any case."""
        if placeholders_in((offset,)):
            return None
        steps = [stride_of(offset, r.var) for r in self.loop.all_ranges]
        if any(step is None for step in steps):
            return None
        start = offset.xreplace({r.var: ZERO for r in self.loop.all_ranges})
        long = [step != 0 for step in steps] if whole is None else whole
        shape = [extent if each else "1" for extent, each in zip(self.extents, long, strict=True)]
        texts = tuple_text(shape or ["1"]), tuple_text([self.size(step) for step in steps] or ["1"])
        return f"strided({self.buffers[buffer]}, {self.size(start)}, {', '.join(texts)})"

    def _array_positions(self) -> Iterator[Expr]:
        """Expressions that are computed as arrays."""
        for node in self.loop.nodes:
            if node.op == "index":
                yield node.attrs[0]
            elif node.op == "load" and (node.mask is not None or self.view(node.buffer, *node.index) is None):
                yield from node.index
        for store in self.loop.stores:
            if self._stored_in_steps(store) is None:
                yield from store.index

    # -------------------------------------------------------------------------------------------------------- values

    def name(self, text: str) -> str:
        """A new variable with this value."""
        name = f"v{len(self.variables)}"
        self.variables.add(name)
        self.lines.append(f"{name} = {text}")
        return name

    def forget(self, nodes: Sequence[Node]) -> None:
        """Give the memory of values back that nobody needs any more."""
        texts = [text for node in nodes for text in (self.texts[node], self.spread.pop(node, "")) if text]
        dead = [text for text in dict.fromkeys(texts) if text in self.variables]
        if dead:
            self.lines.append(f"del {', '.join(dead)}")

    def value(self, node: Node) -> str:
        """The text of a node: a variable or a constant."""
        args = [self.texts[arg] for arg in node.args]
        if node.op == "const":
            return literal(node.attrs[0], node.dtype)
        if node.op in ("reduce", "scan"):
            return getattr(self, f"_{node.op}")(node)
        if node.op == "index" and node.attrs[0] in self.loop.extents:
            return self.names[node.attrs[0]]
        return self.name(self._scalar(node, args) or getattr(self, f"_{node.op}")(node, *args))

    def _scalar(self, node: Node, args: Sequence[str]) -> str:
        """The text of what the dialect says; '' for other nodes."""
        if node.op in OPS:
            return NUMPY.op(node.op, node.args[0].dtype).format(*args, T=VALUES[compute_dtype(node.dtype)])
        if node.op in ("cast", "bitcast"):
            return getattr(NUMPY, node.op)(args[0], node.args[0].dtype, node.dtype)
        return ""

    def _index(self, node: Node) -> str:
        text = self.size(node.attrs[0])
        return text if node.attrs[0].free_symbols & self.loop.extents.keys() else f"np.int64({text})"

    def _bounded(self, node: Node, position: str, *mask: str) -> str:
        bound = [self.size(node.attrs[0]), node.attrs[1]]
        if bound not in self.bounds:
            self.bounds.append(bound)
        return f"bounded({', '.join([position, bound[0], str(self.bounds.index(bound)), *mask])})"

    def _load(self, node: Node, *args: str) -> str:
        (offset,) = node.index
        view = None if node.mask is not None else self.view(node.buffer, offset)
        if view is None:
            buffer, position = self.buffers[node.buffer], self.position(offset, node.indirect)
            found = f"{buffer}[{position}]" if node.mask is None else f"gather({buffer}, {position}, {args[-1]})"
            return read(node.dtype, found)
        text = read(node.dtype, view)
        # A view sees what is stored before it is used: only a store uses one that late.
        stored = any(node in store.roots for store in self.loop.stores[1:])
        return f"{text}.copy()" if stored and text == view else text

    # ---------------------------------------------------------------------------------------------------- reductions

    def rows(self, node: Node) -> str:
        """A variable with a value at every point of the reduction ranges."""
        if node not in self.spread:
            lengths = tuple_text(self.extents[self.outer :])
            self.spread[node] = self.name(f"rows({self.texts[node]}, {self.outer}, {lengths})")
        return self.spread[node]

    def _reduce(self, node: Node) -> str:
        kind, values = node.attrs[0], node.args
        row = REDUCTIONS[kind]
        if kind in TEXTS:
            result = TEXTS[kind].format(self.rows(values[0]))
        else:
            if (row, values) not in self.states:
                self.states[row, values] = self._state(row, values)
            form = row.form(values[0].dtype)
            given = dict(zip(form.state, self.states[row, values], strict=True))
            (result,) = self.expressions((form.finish[kind],), given)
        return self.name(f"over({result}, {self.inner})")

    def _state(self, row: Reduction, values: tuple[Node, ...]) -> list[str]:
        """Variables with the state of all values, by the row: by a ufunc where merging is one, else pair by pair."""
        form = row.form(values[0].dtype)
        given = {leaf: self.rows(node) for leaf, node in zip(form.values, values, strict=True)}
        if any(node is form.position for node in walk(*form.lift)):
            given[form.position] = f"np.arange({next(iter(given.values()))}.shape[-1])"
        lifted = self.expressions(form.lift, given)
        identity = [literal(node.attrs[0], node.dtype) for node in form.identity]
        function = merging(form)
        if function is not None:
            dtype = VALUES[form.state[0].dtype]
            return [self.name(f"{function}.reduce({lifted[0]}, axis=-1, initial={identity[0]}, dtype={dtype})")]
        merge = self._define_merge(form)
        found = self.name(f"fold({merge}, {tuple_text(identity)}, {tuple_text(lifted)})")
        return [f"{found}[{number}]" for number in range(len(form.state))]

    def _define_merge(self, form: Form) -> str:
        """A function of two states, the second of later values."""
        parts = [*form.state, *form.other]
        names = [f"{'ab'[number >= len(form.state)]}{number % len(form.state)}" for number in range(len(parts))]
        outside, self.lines = self.lines, []
        merged = self.expressions(form.merge, dict(zip(parts, names, strict=True)))
        lines, self.lines = self.lines, outside
        merge = f"merge{len(self.variables)}"
        self.lines.append(f"def {merge}({', '.join(names)}):")
        self.lines += [f"    {line}" for line in [*lines, f"return {tuple_text(merged)}"]]
        return merge

    def expressions(self, roots: tuple[Node, ...], given: Mapping[Node, str]) -> list[str]:
        """The texts of nodes over leaves that are given."""
        texts = dict(given)
        for node in walk(*roots):
            if node not in texts:
                args = [texts[arg] for arg in node.args]
                constant = node.op == "const"
                texts[node] = literal(node.attrs[0], node.dtype) if constant else self.name(self._scalar(node, args))
        return [texts[root] for root in roots]

    def _scan(self, node: Node) -> str:
        (value,) = node.args
        form = REDUCTIONS[node.attrs[0]].form(value.dtype)
        function = merging(form) if form.lift == form.values else None
        if function is None:
            raise NotImplementedError(f"a scan of {node.attrs[0]}")
        dtype = VALUES[compute_dtype(node.dtype)]
        # One after the other errors add up, unlike in a reduction.
        wide = "np.float64" if node.dtype.is_floating_point else dtype
        return self.name(f"{function}.accumulate({self.rows(value)}, axis=-1, dtype={wide}).astype({dtype})")

    # -------------------------------------------------------------------------------------------------------- stores

    def _spelled_out(self, store: Store) -> list[bool]:
        return [True] * self.outer + [self.loop.at_reduction_level(store)] * self.inner

    def _stored_in_steps(self, store: Store) -> str | None:
        (offset,) = store.index
        return self.view(store.buffer, offset, self._spelled_out(store)) if store.mode == "set" else None

    def store(self, store: Store) -> None:
        dtype, value = self.dtypes[store.buffer], self.texts[store.value]
        view = self._stored_in_steps(store)
        if view is not None:
            mask = "" if store.mask is None else f", where={self.texts[store.mask]}"
            self.lines.append(f"np.copyto({view}, {written(dtype, value)}{mask})")
            return
        shape = [n if each else "1" for n, each in zip(self.extents, self._spelled_out(store), strict=True)] or ["1"]
        mask = [] if store.mask is None else [self.texts[store.mask]]
        where = [tuple_text(shape), self.position(*store.index, store.indirect), value, *mask]
        found = self.name(f"points({', '.join(where)})")
        index, values = f"{found}[0]", f"{found}[1]"
        buffer = self.buffers[store.buffer]
        if store.mode == "set":
            self.lines.append(f"{buffer}[{index}] = {written(dtype, values)}")
            return
        function = ufunc(COMBINING[store.mode], compute_dtype(dtype))
        wide = read(dtype, buffer)
        target = buffer if wide == buffer else self.name(wide)
        self.lines.append(f"{function}.at({target}, {index}, {values})")
        if wide != buffer:
            self.lines.append(f"{buffer}[...] = {written(dtype, target)}")


def merging(form: Form) -> str | None:
    """The ufunc by which a state of one part is merged; None where that takes more."""
    merge = form.merge[0]
    alone = len(form.merge) == 1 and merge.op in OPS and merge.args == (form.state[0], form.other[0])
    return ufunc(merge.op, merge.args[0].dtype) if alone else None
