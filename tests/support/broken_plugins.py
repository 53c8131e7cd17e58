"""Plugins that are broken in one way each, made by mutating good ones: for bars on what becomes of them.

A good plugin is a `Good`: what it does to the program `program`, as functions. A mutation takes one function of it and
makes it go wrong: another result (shape, type, number, order, key), an exception, no end, a change in place. `broken`
gives as many as are asked for, by a seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from litz.capture.passes.rewrite import Call, Changes, rewrite
from litz.errors import LitzError
from litz.ir import KernelCall, Loop, Range, Store, build
from litz.ir.build import call
from litz.ir.index import loop_var, reduction_var
from litz.lower.elementwise import elementwise
from litz_plugins import (
    Choice,
    Estimate,
    KernelSource,
    LayoutPlan,
)
from support.good_plugins import GOOD, Good, my_mm

aten = torch.ops.aten
SECONDS = 0.25
"""The limit that plugins which hang run over."""


# ---------------------------------------------------------------------------------------------------------- mutations

Mutation = Callable[[Callable[..., Any], random.Random], Callable[..., Any]]


def _named(function: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the parameters of another: hooks are called by name."""
    import inspect

    names = ", ".join(inspect.signature(like).parameters)
    made: Callable[..., Any] = eval(f"lambda {names}: function({names})", {"function": function})
    return made


def raising(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    kinds = (ValueError, KeyError, TypeError, RuntimeError, AssertionError, RecursionError, SystemExit, LitzError)
    kind = random_.choice((*kinds, NotImplementedError, StopIteration, MemoryError, AttributeError, IndexError))

    def run(*args: Any) -> Any:
        raise kind("broken on purpose")

    return run


def raising_late(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        good(*args)
        raise OSError("broken on purpose, when all is done")

    return run


def hanging(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        while True:
            time.sleep(0.01)

    return run


def of_another_type(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    other = random_.choice((3, "text", [], object(), {"a": 1}, (None,), min, torch.zeros(2)))
    return lambda *args: other


def twice(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        made = good(*args)
        return made, made

    return run


def of_another_shape(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    change = random_.choice(
        (
            lambda t: t[:-1],
            lambda t: t.unsqueeze(0),
            lambda t: torch.cat([t, t]),
            lambda t: t.flatten(),
            lambda t: t[..., :1],
            lambda t: t.sum(),
            lambda t: t.t(),
        )
    )
    return lambda *args: change(good(*args))


def of_another_dtype(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    dtype = random_.choice((torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64))
    return lambda *args: good(*args).to(dtype)


def of_other_strides(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    return lambda *args: good(*args).t().contiguous().t()


def lowered_to_another_size(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    sizes = random_.choice(((3,), (4, 5, 1), (5, 4), (4, 1), (0, 5), ()))
    return lambda ctx, x: ctx.pointwise(sizes, x.dtype, x.device, lambda indices: call_zero(x.dtype))


def lowered_to_another_dtype(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    dtype = random_.choice((torch.float64, torch.float16, torch.int32, torch.bool))
    return lambda ctx, x: elementwise(ctx, lambda a: a, (x,), dtype, compute=dtype)


def lowered_illegally(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """Loops that no generator should see: they store another type, at too few indices, into no buffer, or nothing."""
    change = random_.choice(
        (
            lambda store: (replace(store, value=call_zero(torch.int64)),),
            lambda store: (replace(store, index=store.index[1:]),),
            lambda store: (replace(store, buffer="nowhere"),),
            lambda store: (),
        )
    )

    def run(ctx: Any, x: Any) -> Any:
        made = good(ctx, x)
        loop = ctx.operations[-1]
        ctx.operations[-1] = replace(loop, stores=change(loop.stores[0]))
        return made

    return run


def lowered_outside(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """Reads of elements that the argument does not have."""
    move = random_.choice((lambda i, n: i + 1, lambda i, n: i - 1, lambda i, n: i + 100_000_000, lambda i, n: n - i))
    return lambda ctx, x: ctx.pointwise(x.size, x.dtype, x.device, lambda i: x.load((move(i[0], x.size[0]), *i[1:])))


def clearing_the_program(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    what = random_.choice(("operations", "buffers"))

    def run(ctx: Any, x: Any) -> Any:
        made = good(ctx, x)
        getattr(ctx, what).clear()
        return made

    return run


def call_zero(dtype: torch.dtype) -> Any:
    from litz.ir import build

    return build.const(0, dtype)


def edited_in_place(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """A Graph's nodes."""

    def run(graph: Any, *context: Any) -> Any:
        nodes = [node for node in graph.nodes if node.op == "call_function"]
        node = random_.choice(nodes)
        match random_.randrange(4):
            case 0:
                node.replace_all_uses_with(graph.placeholders[0])
            case 1:
                node.meta["val"] = node.meta["val"].double()
            case 2:
                node.target = aten.cos.default
            case _:
                object.__setattr__(graph, "mutated_inputs", frozenset({0}))
        return good(graph, *context)

    return run


def with_another_node(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """A Graph in which one call is another, whose result has another shape or type than it says."""
    target, args = random_.choice(
        (
            (aten.sum.default, ()),
            (aten.t.default, ()),
            (aten.unsqueeze.default, (0,)),
            (aten.isnan.default, ()),
            (aten.cat.default, None),
            (aten.nonzero.default, ()),
            (my_mm, ()),
        )
    )

    def run(graph: Any, context: Any) -> Any:
        node = next(node for node in graph.nodes if node.target is aten.relu.default)
        given = ([node.args[0], node.args[0]],) if args is None else (node.args[0], *args)
        return rewrite(graph, Changes(emit={node: Call(target, given)}))

    return run


def with_other_outputs(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """A Graph, or a Program, with its outputs in another order, fewer, more, or others."""
    change = random_.choice(
        (
            lambda outputs: outputs[::-1],
            lambda outputs: outputs[:1],
            lambda outputs: (*outputs, outputs[0]),
            lambda outputs: (outputs[1], outputs[1]),
            lambda outputs: (),
            lambda outputs: (None, *outputs[1:]),
        )
    )

    def run(noun: Any, context: Any) -> Any:
        if hasattr(noun, "module"):
            return replace(noun, module=torch.fx.GraphModule(noun.module, copied(noun.module.graph, change)))
        if hasattr(noun, "program"):
            return replace(noun, program=replace(noun.program, outputs=change(noun.program.outputs)))
        return replace(noun, outputs=change(noun.outputs))

    return run


def copied(graph: torch.fx.Graph, change: Callable[[Any], Any]) -> torch.fx.Graph:
    """A copy of an FX graph with changed outputs."""
    fresh = torch.fx.Graph()
    new: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.op == "output":
            fresh.output(tuple(None if item is None else new[item] for item in change(tuple(node.args[0]))))
        else:
            new[node] = fresh.node_copy(node, new.__getitem__)
    return fresh


def without_an_operation(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """A Program or a Schedule that lacks something, or has it in another order."""
    change = random_.choice(
        (
            lambda items: items[:-1],
            lambda items: items[1:],
            lambda items: (),
            lambda items: items[::-1],
            lambda items: (*items, items[0]),
        )
    )

    def run(noun: Any, context: Any) -> Any:
        name = "steps" if hasattr(noun, "steps") else "operations"
        return replace(noun, **{name: change(getattr(noun, name))})

    return run


def emptied_in_place(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """A Program or a Schedule."""
    after = random_.choice((lambda noun: noun, lambda noun: None, lambda noun: 1 / 0))

    def run(noun: Any, context: Any) -> Any:
        program = getattr(noun, "program", noun)
        match random_.randrange(3):
            case 0:
                object.__setattr__(program, "operations", ())
            case 1:
                program.buffers.clear()
            case _:
                object.__setattr__(program.operations[0], "stores", ())
        return after(noun)

    return run


def loops_of_another_size(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """A Program in which loops have a row too many, or leave the last one as it was."""
    change = random_.choice((1, -1))

    def run(program: Any, context: Any) -> Any:
        return replace(program, operations=tuple(resized(operation, change) for operation in program.operations))

    return run


def resized(operation: Any, change: int) -> Any:
    """A Loop with its first range made longer; other operations as they are."""
    if not isinstance(operation, Loop):
        return operation
    first, *others = operation.ranges
    return replace(operation, ranges=(replace(first, size=first.size + change), *others))


def choices_of_another_size(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """A product written as a loop, of a row too many or too few."""
    change = random_.choice((1, -1))

    def run(operation: Any, context: Any) -> Any:
        return [Choice("my loop", "template", resized(product_loop(operation, context.program), change))]

    return run


def product_loop(operation: Any, program: Any) -> Loop:
    """What an `mm` computes."""
    (left, right), (output,) = operation.args, operation.outputs
    row, column, inner = loop_var(0), loop_var(1), reduction_var(0)
    sizes, dtype = program.buffers[output].layout.size, program.buffers[output].dtype
    factors = build.load(left.buffer, (row, inner), dtype), build.load(right.buffer, (inner, column), dtype)
    store = Store(output, (row, column), build.reduce("sum", call("mul", *factors)))
    ranges = tuple(map(Range, (row, column), sizes))
    reduced = (Range(inner, left.layout.size[1]),)
    return Loop(operation.name, operation.device, ranges, reduced, (store,), operation.origins)


def changing_its_argument(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """Torch's own in-place ops on what a call is given to read; one of them on the second argument, an input."""
    change = random_.choice((lambda a, b: a.zero_(), lambda a, b: b.zero_(), lambda a, b: b[0].add_(1)))

    def run(*args: Any) -> Any:
        made = good(*args)
        change(*args)
        return made

    return run


def choices_of_another_payload(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """What takes the contraction's place writes something else, or is nothing that could."""

    def run(operation: Any, context: Any) -> Any:
        (choice,) = good(operation, context)
        payload = random_.choice(
            (
                None,
                "text",
                replace(choice.payload, outputs=("nowhere",)),
                replace(choice.payload, outputs=()),
                replace(choice.payload, args=()),
                replace(choice.payload, name="another"),
                context.program.operations[0],
                kernel(operation, "int broken("),
                kernel(operation, "", "rust"),
            )
        )
        return [replace(choice, payload=payload)]

    return run


def kernel(operation: Any, text: str, language: str = "cpp") -> KernelCall:
    """A kernel of a template's that does not build."""
    names = (*operation.reads, *operation.outputs)
    source = KernelSource(operation.name, language, text, "broken", names)
    fields = (operation.name, operation.device, my_mm, operation.args)
    return KernelCall(*fields, outputs=operation.outputs, source=source)


def plans_of_what_is_not_there(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    name, order = random_.choice((("nothing", (0, 1)), ("relu", (0, 1, 2)), ("relu", (0,)), ("relu", (1, 1))))
    return lambda graph: LayoutPlan({name: order})


def estimates_of_no_time(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    values = random_.choice(((3.0, 4.0, 5.0), (-1.0, -2.0, 1.0), (float("nan"), 0.0, 1.0), (1.0, 0.0, 0.5)))
    return lambda *args: Estimate(*values, "broken on purpose")


def launches_of_nothing(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    """What is no function that launches a kernel."""
    other = random_.choice((None, 3, "text", []))
    return lambda launch: other


def sources_that_do_not_build(good: Callable[..., Any], random_: random.Random) -> Callable[..., Any]:
    change = random_.choice(
        (
            lambda source: replace(source, text="int broken("),
            lambda source: replace(source, symbol="not_there"),
            lambda source: replace(source, name="another"),
            lambda source: source.text,
        )
    )
    return lambda source: change(source)


_FAILING = (raising, raising_late, hanging, of_another_type, twice)
MUTATIONS: Mapping[str, tuple[Mutation, ...]] = {
    "lowering": (
        *_FAILING,
        lowered_to_another_size,
        lowered_to_another_dtype,
        lowered_illegally,
        lowered_outside,
        clearing_the_program,
    ),
    "decomposition": (*_FAILING, of_another_shape, of_another_dtype, of_other_strides),
    "graph_pass": (*_FAILING, edited_in_place, with_another_node, with_other_outputs),
    "program_pass": (*_FAILING, with_other_outputs, without_an_operation, emptied_in_place, loops_of_another_size),
    "schedule_pass": (*_FAILING, with_other_outputs, without_an_operation, emptied_in_place),
    "library": (
        raising,
        raising_late,
        of_another_type,
        twice,
        of_another_shape,
        of_another_dtype,
        of_other_strides,
        changing_its_argument,
    ),
    "make_choices": (*_FAILING, choices_of_another_payload, choices_of_another_size),
    "layout": (*_FAILING, plans_of_what_is_not_there, edited_in_place),
    "estimate": (*_FAILING, estimates_of_no_time),
    "generate": (*_FAILING, sources_that_do_not_build),
    "load": (raising, raising_late, launches_of_nothing),
    "observer": (raising, raising_late, hanging, edited_in_place),
}
"""How each part of a plugin can be broken. Kernels are launched, and libraries called, when a graph runs: no limit."""


@dataclass(frozen=True)
class Broken:
    """A broken plugin. make: gives its object, the same each time."""

    name: str
    make: Callable[[], object]


UNSAFE: Mapping[str, Mutation] = {
    "lowering": lowered_outside,
    "program_pass": loops_of_another_size,
    "make_choices": choices_of_another_size,
    "library": changing_its_argument,
}
"""Mutations that would read, write or destroy what is not theirs, if nobody looked."""


def unsafe(seeds: int) -> Iterator[Broken]:
    """Every unsafe mutation, of as many seeds."""
    for part, mutation in UNSAFE.items():
        for seed in range(seeds):
            yield Broken(f"{part} {mutation.__name__} {seed}", _maker(part, mutation, seed))


def broken(seed: int, count: int) -> Iterator[Broken]:
    """Broken plugins, every part and every mutation in turn; the same for the same seed."""
    pairs = [(part, mutation) for part, mutations in MUTATIONS.items() for mutation in mutations]
    random.Random(seed).shuffle(pairs)
    for number in range(count):
        part, mutation = pairs[number % len(pairs)]
        yield Broken(f"{number} {part} {mutation.__name__}", _maker(part, mutation, seed * 10_000 + number))


def _maker(part: str, mutation: Mutation, seed: int) -> Callable[[], object]:
    def make() -> object:
        good = GOOD[part]
        wrong = _named(mutation(good, random.Random(seed)), good)
        return Good(**{part: wrong}).plugin()

    return make


__all__ = ["MUTATIONS", "SECONDS", "Broken", "broken", "unsafe"]
