"""Who lies in which memory, read off the lines of a wrapper: of one that ran, and of one for a GPU that need not be
there."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.codegen.wrapper import generate_wrapper
from litz.pipeline import generate, make_compiler, plan_schedule, schedule_only
from litz.schedule import Schedule, check_schedule
from support.executed import executed, steps
from support.seed_collectives import litz, ranked, same

ALONE = {"tag": "", "ranks": [0], "group_size": 1}
SMALL, LARGE = {"cpu": 4, "cuda": 4}, {"cpu": 1024, "cuda": 4096}
"""Rows of square inputs whose kernels take little more than their launch, and much more."""
NONE: Mapping[str, Any] = MappingProxyType({})


def lines_for_gpu(func: Callable[..., Any], size: int, options: Mapping[str, Any] = NONE) -> list[str]:
    """The generated lines for an H100 that need not be there, of a square input."""
    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = torch.empty(size, size, device="cuda")
    (schedule,) = schedule_only(functools.partial(func, **ALONE), (given,), {"debug": True, **options})
    return lines_of(schedule)


def lines_of(schedule: Schedule) -> list[str]:
    """The generated lines of a schedule."""
    check_schedule(schedule)
    plan = plan_schedule(schedule, make_compiler())
    text = generate_wrapper(plan, generate(plan, make_compiler())).text
    return [line.strip() for line in text.partition("def call")[2].splitlines()]


def lines_that_ran(func: Callable[..., Any], inputs: torch.Tensor, options: Mapping[str, Any] = NONE) -> list[str]:
    """The lines of a second call; both calls have eager's results, and leave the input alone."""
    torch._dynamo.reset()
    before = inputs.clone()
    correct = func(inputs, **ALONE)
    compiled = litz(func, options={"debug": True, **options})
    out = [compiled(inputs, **ALONE)]
    lines = executed(lambda: out.append(compiled(inputs, **ALONE)))
    for found in out:
        assert same(found, correct)
    assert same(inputs, before, tol=0)
    return lines


@dataclass(frozen=True)
class Memory:
    """What a wrapper's lines do with memory: of each step its kind, the memory of what it is given and of its result;
    and the memory of what is returned. Memory has the name of the first tensor in it."""

    steps: list[tuple[str, tuple[str, ...], str]]
    returned: tuple[str, ...]

    def only(self, kind: str) -> tuple[tuple[str, ...], str]:
        (found,) = ((given, made) for name, given, made in self.steps if name == kind)
        return found


def memory_of(lines: list[str]) -> Memory:
    """Who lies where, by following assignments, waits, and ops that work in place."""
    home: dict[str, str] = {}
    found: list[tuple[str, tuple[str, ...], str]] = []
    returned: tuple[str, ...] = ()
    for line in lines:
        if plain := re.fullmatch(r"(buf\d+) = (buf\d+)", line):
            home[plain[1]] = home[plain[2]]
        elif item := re.fullmatch(r"(buf\d+) = (op\d+_result)\[\d+\]", line):
            home[item[1]] = item[1]
        elif again := re.fullmatch(r"(buf\d+) = (?:_reuse|_planned)\((buf\d+), .*", line):
            home[again[1]] = home[again[2]]
        elif called := steps([line]):
            kind, result, arguments = called[0]
            given = tuple(
                home.get(name, name) for name in re.findall(r"(?:\b|_at_)((?:buf|arg)\d+(?:_\d+)?)\b", arguments)
            )
            same_memory = kind == "wait_tensor" or kind.endswith("_")
            home[result] = given[0] if same_memory else result
            found.append((kind, given, home[result]))
        elif made := re.match(r"((?:buf)\d+) = _", line):
            home[made[1]] = made[1]
        elif line.startswith("return "):
            returned = tuple(home[name] for name in re.findall(r"buf\d+", line))
    return Memory(found, returned)


def check_both(
    check: Callable[[Memory, str], None],
    func: Callable[..., Any],
    device: str,
    sizes: Mapping[str, int] = SMALL,
    options: Mapping[str, Any] = NONE,
) -> None:
    """`check(memory, input's name)` of what ran, and of what would run on a GPU. sizes: of an input, by device."""
    given = ranked(0, sizes[device], sizes[device], device=device)
    for lines in (lines_that_ran(func, given, options), lines_for_gpu(func, sizes["cuda"], options)):
        name = next(found[1] for line in lines if (found := re.search(r"\b(arg\d+_\d+), = args", line)))
        check(memory_of(lines), name)
