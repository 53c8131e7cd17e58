"""Small random programs: pointwise, broadcast, permuted, reshaped, sliced, gathered, guarded, reduced, scattered, in
place, and opaque calls, over shapes that tempt fusion. Seeded."""

from __future__ import annotations

import random

import torch

from litz.ir import Buffer, Extern, Layout, Loop, Node, Operation, Program, Range, Store, TensorRef, build
from litz.ir.index import Expr, floordiv, loop_var, mod, placeholder, reduction_var, to_expr

CPU = torch.device("cpu")
F64 = torch.float64
Shape = tuple[int, ...]


class Maker:
    """A program that grows by random operations."""

    def __init__(self, seed: int, shapes: tuple[Shape, ...] = ((2, 3, 4), (6, 4), (3, 4), (4,), (2, 3), (24,))) -> None:
        self.rng = random.Random(seed)
        self.buffers: dict[str, Buffer] = {}
        self.operations: list[Operation] = []
        self.inputs: list[str] = []
        self.values: list[str] = []
        for shape in shapes:
            self.inputs.append(self.new(shape, "input"))
        self.index = Buffer("idx", torch.int64, CPU, Layout.contiguous((5,)), "input")
        self.buffers["idx"] = self.index
        self.inputs.append("idx")

    def new(self, shape: Shape, kind: str = "temporary") -> str:
        name = f"{'x' if kind == 'input' else 'b'}{len(self.buffers)}"
        self.buffers[name] = Buffer(name, F64, CPU, Layout.contiguous(shape), kind)  # type: ignore[arg-type]
        self.values.append(name)
        return name

    def shape(self, name: str) -> Shape:
        return tuple(int(n) for n in self.buffers[name].layout.size)

    def name(self) -> str:
        return f"op{len(self.operations)}"

    def pick(self) -> str:
        recent = self.values[-4:]
        return self.rng.choice(recent if self.rng.random() < 0.7 else self.values)

    # --------------------------------------------------------------------------------------------------- reading

    def read(self, name: str, at: tuple[Expr, ...], want: Shape) -> Node | None:
        """A load of `name` in an iteration over `want` at variables `at`; None if it does not fit."""
        have = self.shape(name)
        ranges = {v: to_expr(n) for v, n in zip(at, want, strict=True)}
        if have == want:
            return build.load(name, at, F64)
        tail = want[len(want) - len(have) :]
        if len(have) < len(want) and have == tail:
            return build.load(name, at[len(want) - len(have) :], F64)
        if len(have) < len(want) and have == want[: len(have)]:
            return build.load(name, at[: len(have)], F64)
        if sorted(have) == sorted(want) and len(set(have)) == len(have):
            return build.load(name, tuple(at[want.index(n)] for n in have), F64)
        if torch.Size(have).numel() == torch.Size(want).numel():
            flat: Expr = to_expr(0)
            for v, n in zip(at, want, strict=True):
                flat = flat * n + v
            flat = flat.expand()
            index, step = [], 1
            for n in reversed(have):
                index.append(mod(floordiv(flat, to_expr(step), ranges), to_expr(n), ranges))
                step *= n
            return build.load(name, tuple(reversed(index)), F64)
        return None

    def operand(self, at: tuple[Expr, ...], want: Shape) -> Node:
        for _ in range(6):
            node = self.read(self.pick(), at, want)
            if node is not None:
                return self.unary(node)
        return build.const(self.rng.choice([0.5, 2.0, -1.0]), F64)

    def unary(self, node: Node) -> Node:
        kind = self.rng.choice(["none", "sin", "neg", "abs", "mul"])
        if kind == "none":
            return node
        return build.call("mul", node, build.const(0.75, F64)) if kind == "mul" else build.call(kind, node)

    def expression(self, at: tuple[Expr, ...], want: Shape, first: Node | None = None) -> Node:
        value = first if first is not None else self.operand(at, want)
        for _ in range(self.rng.randint(0, 2)):
            value = build.call(self.rng.choice(["add", "mul", "maximum", "sub"]), value, self.operand(at, want))
        return value

    # ------------------------------------------------------------------------------------------------- operations

    def variables(self, shape: Shape) -> tuple[Expr, ...]:
        return tuple(loop_var(n) for n in range(len(shape)))

    def ranges(self, shape: Shape) -> tuple[Range, ...]:
        return tuple(Range(loop_var(n), to_expr(size)) for n, size in enumerate(shape))

    def add(self, ranges: tuple[Range, ...], reduction: tuple[Range, ...], *stores: Store) -> None:
        self.operations.append(Loop(self.name(), CPU, ranges, reduction, stores))

    def pointwise(self) -> None:
        shape = self.shape(self.pick())
        at = self.variables(shape)
        stores = [
            Store(self.later(shape), at, self.expression(at, shape)) for _ in range(self.rng.choice([1, 1, 1, 2]))
        ]
        self.add(self.ranges(shape), (), *stores)
        self.values += [s.buffer for s in stores]

    def later(self, shape: Shape) -> str:
        """A new buffer that may not be read yet."""
        name = self.new(shape)
        self.values.remove(name)
        return name

    def permuted(self) -> None:
        shape = self.shape(self.pick())
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        new = tuple(shape[d] for d in order)
        at = self.variables(new)
        old = tuple(at[order.index(d)] for d in range(len(shape)))
        source = self.rng.choice([v for v in self.values if self.shape(v) == shape])
        value = self.expression(at, new, build.load(source, old, F64))
        target = self.later(new)
        self.add(self.ranges(new), (), Store(target, at, value))
        self.values.append(target)

    def reduction(self) -> None:
        shape = self.shape(self.rng.choice([v for v in self.values[-6:] + self.inputs[:-1] if self.shape(v)]))
        dims = self.rng.sample(range(len(shape)), self.rng.randint(1, len(shape)))
        dims.sort()
        kept = [d for d in range(len(shape)) if d not in dims]
        outer = {d: loop_var(n) for n, d in enumerate(kept)}
        inner = {d: reduction_var(n) for n, d in enumerate(dims)}
        at = tuple(outer.get(d, inner.get(d)) for d in range(len(shape)))
        value = self.expression(at, shape)  # type: ignore[arg-type]
        new = tuple(shape[d] for d in kept)
        stores = []
        for kind in self.rng.sample(["sum", "max", "welford_mean", "welford_m2", "min"], self.rng.choice([1, 1, 2])):
            stores.append(Store(self.later(new), tuple(outer[d] for d in kept), build.reduce(kind, value)))
        self.add(
            tuple(Range(outer[d], to_expr(shape[d])) for d in kept),
            tuple(Range(inner[d], to_expr(shape[d])) for d in dims),
            *stores,
        )
        self.values += [s.buffer for s in stores]

    def gather(self) -> None:
        source = self.rng.choice([v for v in self.values if self.shape(v) and self.shape(v)[0] >= 2])
        shape = self.shape(source)
        new = (5, *shape[1:])
        at = self.variables(new)
        row = build.call("remainder", build.load("idx", (at[0],), torch.int64), build.const(shape[0], torch.int64))
        value = build.load(source, (placeholder(0), *at[1:]), F64, (build.bounded(row, shape[0]),))
        target = self.later(new)
        self.add(self.ranges(new), (), Store(target, at, self.unary(value)))
        self.values.append(target)

    def guarded(self) -> None:
        """Two tensors one after the other along the last dimension."""
        a, b = self.pick(), self.pick()
        left, right = self.shape(a), self.shape(b)
        if not left or not right or left[:-1] != right[:-1]:
            return self.pointwise()
        new = (*left[:-1], left[-1] + right[-1])
        at = self.variables(new)
        inside = build.call("lt", build.index(at[-1]), build.const(left[-1], torch.int64))
        outside = build.call("ge", build.index(at[-1]), build.const(left[-1], torch.int64))
        first = build.load(a, at, F64, (), inside)
        second = build.load(b, (*at[:-1], at[-1] - left[-1]), F64, (), outside)
        target = self.later(new)
        self.add(self.ranges(new), (), Store(target, at, build.call("where", inside, first, second)))
        self.values.append(target)

    def in_place(self) -> None:
        target = self.rng.choice([v for v in self.values if self.shape(v) and not self.is_alias(v)])
        shape = self.shape(target)
        at = self.variables(shape)
        value = self.expression(at, shape, build.load(target, at, F64))
        others = {n.buffer: n for n in Loop("", CPU, (), (), (Store(target, at, value),)).loads}
        if others[target].index != at:
            return None
        loads = [n for n in Loop("", CPU, (), (), (Store(target, at, value),)).loads if n.buffer == target]
        if any(n.index != at for n in loads):
            return None
        self.add(self.ranges(shape), (), Store(target, at, value))
        return None

    def is_alias(self, name: str) -> bool:
        return any(isinstance(o, Extern) and name in o.aliases for o in self.operations)

    def scatter(self) -> None:
        source = self.rng.choice([v for v in self.values if self.shape(v) and self.shape(v)[0] >= 2])
        shape = self.shape(source)
        at = self.variables(shape)
        target = self.later(shape)
        self.add(self.ranges(shape), (), Store(target, at, self.unary(build.load(source, at, F64))))
        new = (5, *shape[1:])
        here = self.variables(new)
        row = build.call("remainder", build.load("idx", (here[0],), torch.int64), build.const(shape[0], torch.int64))
        value = self.operand(here, new)
        if target in {n.buffer for n in Loop("", CPU, (), (), (Store(target, here, value),)).loads}:
            value = build.const(1.0, F64)
        store = Store(target, (placeholder(0), *here[1:]), value, (build.bounded(row, shape[0]),), "add")
        self.add(self.ranges(new), (), store)
        self.values.append(target)

    def call(self) -> None:
        source = self.pick()
        shape = self.shape(source)
        ref = TensorRef(source, self.buffers[source].layout)
        kind = self.rng.choice(["cos", "view"])
        if kind == "view" and len(shape) > 1:
            new = (torch.Size(shape).numel(),)
            target = self.later(new)
            alias = {target: source}
            self.operations.append(
                Extern(self.name(), CPU, torch.ops.aten.view.default, (ref, list(new)), {}, (target,), (), alias)
            )
        else:
            target = self.later(shape)
            self.operations.append(Extern(self.name(), CPU, torch.ops.aten.cos.default, (ref,), {}, (target,)))
        self.values.append(target)

    def program(self, count: int) -> Program:
        kinds = [self.pointwise] * 5 + [self.reduction] * 4 + [self.permuted, self.gather, self.guarded, self.scatter]
        kinds += [self.in_place, self.call]
        for _ in range(count):
            self.rng.choice(kinds)()
        made = [v for v in self.values if self.buffers[v].kind == "temporary"]
        chosen = {made[-1], *self.rng.sample(made, min(2, len(made)))} if made else {self.inputs[0]}
        outputs = tuple(TensorRef(name, self.buffers[name].layout) for name in sorted(chosen))
        return Program("random", tuple(self.inputs), self.buffers, tuple(self.operations), outputs)

    def args(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(7)
        found = [torch.rand(self.shape(name), generator=generator, dtype=F64) - 0.5 for name in self.inputs[:-1]]
        return [*found, torch.tensor([3, 0, 1, 3, 7])]
