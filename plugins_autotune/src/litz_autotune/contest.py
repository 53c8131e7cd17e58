"""A contest: what competes for a contraction. In: the contraction, its program and the offers. Out: programs to race.

An offer that does the work of users competes against the library call with those users as kernels of their own, timed
together. If a loop outside reads what such a user makes, or makes what it reads, core could have fused the user with
that loop, where it costs nothing but the reading of the contraction's result: then the offer must beat the library call
plus that reading.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch

import litz_contractions
from litz import codegen, ir, schedule, targets, tiles
from litz.cache.disk import digest
from litz.ir import Program, Template
from litz.schedule.choices import Recipe, absorbed_by, needed_outside, replacement_of, substituted
from litz.target.times import memory
from litz.targets.triton.cuda_driver import driver_version
from litz_contractions.api import cut, others, shared_users
from litz_plugins import Choice, ChoiceContext

from .decide import Rival
from .describing import describe
from .library_settings import snapshot
from .precompile import sources_of
from .problem import Problem
from .race import Entrant
from .results import LIBRARY


@dataclass(frozen=True)
class Heat:
    """Offers that do the same work, and the library's way of doing it: they are timed on the same inputs."""

    name: str
    baseline: Entrant
    offers: tuple[Entrant, ...]


@dataclass(frozen=True)
class Contest:
    """problem, key: of the work, and of the work with these very candidates in this environment. rivals: what each must
    beat. offers: the candidates by what they absorb, as `_groups` has them."""

    problem: Problem
    key: str
    rivals: tuple[Rival, ...]
    program: Program
    template: Template
    offers: Mapping[tuple[str, ...], Sequence[Choice]]

    @cached_property
    def heats(self) -> tuple[Heat, ...]:
        """Returns the heats, one for each set of operations that candidates absorb. Heats are made when they are run,
        as only then all candidates are needed."""
        return tuple(
            _heat(self.program, self.template, absorbs, choices, number)
            for number, (absorbs, choices) in enumerate(self.offers.items())
        )


def make_contest(context: ChoiceContext, offers: Sequence[Choice]) -> Contest:
    """Returns what to measure for a contraction. Raises ValueError for an offer that does not fit the program."""
    program, template = context.program, context.operation
    groups: dict[tuple[str, ...], list[Choice]] = {}
    for choice in offers:
        groups.setdefault(absorbed_by(choice), []).append(choice)
    widest = max(groups, key=len)
    rivals: list[Rival] = []
    for number, (absorbs, choices) in enumerate(groups.items()):
        shared = bool(absorbs) and bool(shared_users(program, template, absorbs))
        baseline = LIBRARY if shared else _baseline(program, template, absorbs, number)
        handicap = _reading_us(context) if shared else 0.0
        rivals += [Rival(c.name, baseline, handicap) for c in choices]
    if any(rival.baseline == LIBRARY for rival in rivals):
        groups.setdefault((), [])
    problem = describe(_scope(program, template, widest), context.target)
    return Contest(problem, _key(problem, offers), tuple(rivals), program, template, groups)


def _scope(program: Program, template: Template, absorbs: Sequence[str]) -> Program:
    """Returns the contraction and some of its users as a program of its own."""
    names = {template.name, *absorbs}
    operations = [operation for operation in program.operations if operation.name in names]
    outputs = needed_outside(program, names) or set(template.writes)
    ordered = [name for op in operations for name in op.writes if name in outputs]
    return cut(program, operations, dict.fromkeys(ordered))


def _heat(program: Program, template: Template, absorbs: Sequence[str], choices: Sequence[Choice], number: int) -> Heat:
    scope, name = _scope(program, template, absorbs), _baseline(program, template, absorbs, number)
    entrants = [Entrant(c.name, substituted(scope, template, replacement_of(c))) for c in choices]
    return Heat(name, Entrant(name, scope), tuple(entrants))


def _baseline(program: Program, template: Template, absorbs: Sequence[str], number: int) -> str:
    """Returns the name of the library's way of doing a heat's work."""
    # No name of an operation: the same heat of an equal problem elsewhere has the same name.
    words = others(program, template, absorbs)
    return f"{LIBRARY} with {words}{f' ({number})' if number else ''}" if absorbs else LIBRARY


def _reading_us(context: ChoiceContext) -> float:
    """Returns the time (µs) that reading the contraction's result once takes at best."""
    program: Program = context.program
    nbytes = sum(program.hint(program.buffers[name].nbytes) for name in context.operation.writes)
    return memory(nbytes, context.target).us


def _key(problem: Problem, offers: Sequence[Choice]) -> str:
    """Returns the digest of the problem, the candidates, and everything that decides how fast these run."""
    settings = json.dumps(snapshot(), sort_keys=True)
    return digest(problem.to_json(), *environment(), settings, *sorted(map(_identity, offers)))


def _identity(choice: Choice) -> str:
    """Returns what identifies a candidate: its kernels' texts, or the recipe that they would be made by."""
    if isinstance(choice.payload, Recipe):
        return digest(choice.name, makers(), choice.payload.key)
    return digest(choice.name, *(source.text for source in sources_of(choice)))


@cache
def makers() -> str:
    """Returns a digest of the code that makes kernels of recipes: the templates, and what fuses, tiles and prints."""
    packages = (litz_contractions, codegen, ir, schedule, tiles, targets)
    folders = [Path(str(package.__file__)).parent for package in packages]
    return digest(*(path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.py"))))


@cache
def environment() -> tuple[str, ...]:
    """Returns the versions of torch, Triton, the CUDA driver and cuDNN, as texts."""
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    driver = driver_version() if torch.cuda.is_available() else 0
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else 0
    return str(torch.__version__), triton, str(driver), str(cudnn)
