"""Scheduling against the interpreter: what every schedule must satisfy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from litz.execution import ExecutionPlan, check_plan, plan_execution
from litz.ir import Extern, Loop, Node, Program, Store
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Symbol
from litz.ir.interpret import _bind_layout, _run_extern, _value, evaluate, interpret, run_loop
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS
from litz.ir.verify import verify
from litz.schedule import Kernel, check_schedule, make_schedule, unscheduled
from litz.target import cpu_target, target_named
from litz_plugins import Decision, PassContext, Target
from litz_testing.parse.programs import parse_program
from litz_testing.parse.schedules import parse_schedule
from support.own_plugins import passes, prepare

OPTIONS = SimpleNamespace(fusion=True, memory_planning=True)
CPU = cpu_target(4)
GPU = replace(target_named("H100"), type="cpu", index=None)
"""An H100's figures for programs on the CPU, so that they run here."""


def plan_of(
    program: Program, target: Target = CPU, options: Any = OPTIONS, decisions: list[Decision] | None = None
) -> ExecutionPlan:
    """The plan, after all passes of core and litz-passes, and every check but running it. decisions: a list to append
    to."""
    verify(program)
    prepared = prepare(program, options, lambda device: target)
    verify(prepared)
    return plan_prepared(prepared, target, options, decisions)


def passed(name: str, text: str, target: Target = CPU, decisions: list[Decision] | None = None) -> str:
    """What one of these passes makes of a text: of a program, or of a program and its schedule (docs/ir.md); of those,
    the schedule. decisions: a list to append to. What goes in and what comes out is legal."""
    (own,) = (each for each in (*passes("program"), *passes("schedule")) if each.name == name)
    note = ([] if decisions is None else decisions).append
    context = PassContext(OPTIONS, own.stage, name, note=note, target_of=lambda device: target)
    if own.stage == "program":
        program = parse_program(text)
        verify(program)
        made = own.run(program, context)
        verify(made)
        return f"{made}\n"
    schedule = parse_schedule(text)
    check_schedule(schedule)
    made = own.run(schedule, context)
    check_schedule(made)
    return f"{made}\n"


def plan_prepared(
    program: Program, target: Target = CPU, options: Any = OPTIONS, decisions: list[Decision] | None = None
) -> ExecutionPlan:
    """The plan of a program that program passes are done with."""
    note = ([] if decisions is None else decisions).append
    known: dict[str, Any] = {"target_of": lambda device: target, "options": options, "note": note}
    schedule = make_schedule(program, passes=passes("schedule"), **known)
    check_schedule(schedule)
    verify(unscheduled(schedule))
    plan = plan_execution(schedule, options=options, note=note, target_of=lambda device: target)
    check_plan(plan)
    assert str(schedule) and str(plan)
    return plan


def check(program: Program, args: Sequence[Any], target: Target = CPU, element_wise: bool = False) -> ExecutionPlan:
    """Fail unless the plan computes what the program does: as a Program, in the memory that it plans, and (slowly)
    iteration by iteration in random order. Inputs that are written count as results."""
    plan = plan_of(program, target)
    expected_args = [_copy(a) for a in args]
    expected = interpret(program, expected_args)
    runs = [lambda a: interpret(unscheduled(plan), a), lambda a: run_in_planned_memory(plan, a)]
    if element_wise:
        runs.append(lambda a: run_in_planned_memory(plan, a, run_element_wise))
    for run in runs:
        own = [_copy(a) for a in args]
        for actual, wanted in zip([*run(own), *own], [*expected, *expected_args], strict=True):
            if isinstance(wanted, torch.Tensor):
                torch.testing.assert_close(
                    actual, wanted, equal_nan=True, msg=lambda m: f"{m}\n{program}\n{plan}", check_stride=False
                )
    return plan


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def run_in_planned_memory(plan: ExecutionPlan, args: Sequence[Any], run: Any = run_loop) -> list[Any]:
    """The plan's outputs, with buffers where the plan puts them and what is freed poisoned."""
    program = plan.program
    memory: dict[str, torch.Tensor] = dict(program.constants)
    sizes: dict[Symbol, int] = {}
    for item, value in zip(program.inputs, args, strict=True):
        if isinstance(item, str):
            memory[item] = value
            _bind_layout(sizes, program.buffers[item].layout, value)
        else:
            sizes[item] = int(value)  # type: ignore[index]
    arena = torch.empty(plan.memory.arena_bytes, dtype=torch.uint8).untyped_storage()
    for number, step in enumerate(plan.steps):
        own = () if isinstance(step, Kernel) else step.outputs
        for name in plan.memory.allocate[number]:
            if name in own:
                continue
            buffer = program.buffers[name]
            size = [evaluate(e, sizes) for e in buffer.layout.size]
            stride = [evaluate(e, sizes) for e in buffer.layout.stride]
            old = plan.memory.reuse.get(name)
            in_place = isinstance(step, Kernel) and name in step.inplace and step.inplace[name] == old
            if name in plan.memory.arena:
                start = plan.memory.arena[name] // buffer.dtype.itemsize
                whole = torch.empty(0, dtype=buffer.dtype).set_(arena, start, size, stride)
            elif old is not None:
                whole = torch.empty(0, dtype=buffer.dtype).set_(memory[old].untyped_storage(), 0, size, stride)
            else:
                whole = torch.empty_strided(size, stride, dtype=buffer.dtype)
            if not in_place:  # what was there is gone
                _poison(whole)
            if old is not None and not in_place:
                del memory[old]
            memory[name] = whole
        if isinstance(step, Kernel):
            for loop in step.loops:
                run(loop, program, memory, sizes)
        else:
            _run_extern(step, program, memory, sizes)
        for name in plan.memory.free[number]:
            if name in memory and not any(name == base for s in plan.externs for base in s.aliases.values()):
                value = memory.pop(name)
                if not any(name in s.aliases for s in plan.externs):
                    _poison(value)
    return [_value(item, memory, sizes) for item in program.outputs]


def _poison(tensor: torch.Tensor) -> None:
    if tensor.numel():
        tensor.fill_(float("nan") if tensor.dtype.is_floating_point else 99)


def run_element_wise(loop: Loop, program: Program, memory: dict[str, torch.Tensor], sizes: dict[Symbol, int]) -> None:
    """As the most careless kernel would: outputs in random order, each pass loads anew, each store comes early."""
    rng = random.Random(0)
    outer = _points([evaluate(r.size, sizes) for r in loop.ranges])
    inner = _points([evaluate(r.size, sizes) for r in loop.reduction_ranges])
    rng.shuffle(outer)
    depth = loop.depths
    last = max((depth[root] for store in loop.stores for root in store.roots), default=0)
    for point in outer:
        env = dict(sizes) | {r.var: p for r, p in zip(loop.ranges, point, strict=True)}
        once: dict[Node, torch.Tensor] = {}
        evaluator = _Scalar(loop, memory, once)
        for current in range(last + 1):
            collected: dict[Node, list[list[torch.Tensor]]] = {}
            reducers = [n for n in loop.nodes if n.op == "reduce" and depth[n] == current + 1]
            stores = [s for s in loop.stores if max(depth[r] for r in s.roots) == current]
            for deep in inner:
                values: dict[Node, torch.Tensor] = {}
                full = env | {r.var: p for r, p in zip(loop.reduction_ranges, deep, strict=True)}
                for node in reducers:
                    collected.setdefault(node, []).append([evaluator.value(a, full, values) for a in node.args])
                _store(
                    [s for s in stores if loop.reduction_ranges and loop.at_reduction_level(s)], evaluator, full, values
                )
            outer_stores = [s for s in stores if not (loop.reduction_ranges and loop.at_reduction_level(s))]
            _store(outer_stores, evaluator, env, {})
            for node, rows in collected.items():
                columns = [torch.stack([c.reshape(()) for c in column]) for column in zip(*rows, strict=True)]
                once[node] = REDUCTIONS[node.attrs[0]].results[node.attrs[0]].torch(*columns)


def _points(extents: list[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for extent in extents:
        found = [(*point, n) for point in found for n in range(extent)]
    return found


class _Scalar:
    """The values of one iteration. `once` holds reductions and what was loaded at output level."""

    def __init__(self, loop: Loop, memory: dict[str, torch.Tensor], once: dict[Node, torch.Tensor]) -> None:
        self.loop, self.memory, self.once = loop, memory, once

    def value(self, node: Node, env: dict[Symbol, int], values: dict[Node, torch.Tensor]) -> torch.Tensor:
        if node in self.once:
            return self.once[node]
        if node not in values:
            args = [self.value(arg, env, values) for arg in node.args]
            values[node] = self._compute(node, args, env)
            if node.op == "load" and self.loop.reduction_ranges and not self.loop.levels[node]:
                self.once[node] = values[node]
        return values[node]

    def _compute(self, node: Node, args: list[torch.Tensor], env: dict[Symbol, int]) -> torch.Tensor:
        if node.op in OPS:
            return OPS[node.op].torch(*args)
        if node.op == "const":
            return torch.tensor(node.attrs[0], dtype=compute_dtype(node.dtype))
        if node.op == "index":
            return torch.tensor(evaluate(node.attrs[0], env))
        if node.op == "cast":
            return args[0].to(node.dtype).to(compute_dtype(node.dtype))
        if node.op == "bounded":
            assert 0 <= int(args[0]) < evaluate(node.attrs[0], env)
            return args[0]
        assert node.op == "load", node.op
        if node.mask is not None and not bool(args[-1]):
            return torch.zeros((), dtype=compute_dtype(node.dtype))
        return self.memory[node.buffer][position(node.index, args, env)].to(compute_dtype(node.dtype)).clone()


def position(index: Any, args: list[torch.Tensor], env: dict[Symbol, int]) -> tuple[int, ...]:
    own = {Symbol(f"arg{n}", integer=True): int(arg) for n, arg in enumerate(args)}
    return tuple(int(evaluate(expr, env | own)) for expr in index)


def _store(stores: list[Store], evaluator: _Scalar, env: dict[Symbol, int], values: dict[Node, torch.Tensor]) -> None:
    pending = []
    for store in stores:
        if store.mask is not None and not bool(evaluator.value(store.mask, env, values)):
            continue
        args = [evaluator.value(node, env, values) for node in store.indirect]
        pending.append((store, position(store.index, args, env), evaluator.value(store.value, env, values)))
    for store, where, value in pending:
        target = evaluator.memory[store.buffer]
        if store.mode == "add":
            value = target[where] + value
        elif store.mode != "set":
            raise NotImplementedError(store.mode)
        target[where] = value.to(target.dtype)


def kernel_texts(plan: ExecutionPlan) -> list[str]:
    """Which operations each kernel was fused from; calls by name."""
    return [" ".join(s.fused) if isinstance(s, Kernel) else f"call {s.name}" for s in plan.steps]


__all__ = ["CPU", "GPU", "Extern", "check", "kernel_texts", "passed", "plan_of"]
