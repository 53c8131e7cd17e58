"""Every offer of a plugin's templates, taken. In: the examples with contractions. Out: a trial for each choice.

First the examples are compiled to hear what is offered; then once for each choice, which is taken wherever it is
offered. Without a GPU the same is done for fake CUDA tensors up to the kernels' source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz import pipeline
from litz_plugins.errors import in_short
from litz_testing.conformance.cases import spread

from .examples import Example
from .pass_trials import problem_with
from .records import Trial
from .watching import Watching
from .ways import NotInterpreted, Under

LARGER = 16
"""By how much fake CUDA tensors are larger than an example's: kernels for GPUs are offered for sizes worth it."""
GENERATED = "source for CUDA"
"""The way without a GPU."""


def choice_trials(
    examples: Sequence[Example], under: Under, watching: Watching, known: frozenset[str], builds: bool, most: int
) -> tuple[list[Trial], dict[str, str]]:
    """Returns trials of the choices that the templates offer, and how many were left untried. known: names that are
    offered without the plugin. most: choices that are tried of each example, spread over those that are offered."""
    trials: list[Trial] = []
    untried: dict[str, str] = {}
    for example in examples:
        runs: list[tuple[str, Callable[[], str]]] = [("interpreted", partial(_run, example, under, builds))]
        if not torch.cuda.is_available():
            runs.append((GENERATED, partial(_generate, example, under)))
        for way, run in runs:
            offered = _offered(watching, run, known)
            if len(offered) > most:
                untried[f"choices for {example.name!r} ({way})"] = f"{len(offered) - most} of {len(offered)} offers"
            for name in (offered[place] for place in spread(len(offered), most)):
                watching.wanted = name
                try:
                    trials.append(Trial(f"choice {name!r}", example.name, way, run()))
                finally:
                    watching.wanted = ""
    return trials, untried


def offered_without(examples: Sequence[Example], without: Under, watching: Watching) -> frozenset[str]:
    """Returns what others than the plugin offer."""
    found: set[str] = set()
    for example in examples:
        found |= set(_offered(watching, partial(_run, example, without, False), frozenset()))
        if not torch.cuda.is_available():
            found |= set(_offered(watching, partial(_generate, example, without), frozenset()))
    return frozenset(found)


def _offered(watching: Watching, run: Callable[[], str], known: frozenset[str]) -> list[str]:
    watching.clear()
    run()
    return [name for name in watching.offered if name not in known]


def _run(example: Example, under: Under, builds: bool) -> str:
    """Returns what is wrong with an example: as it is interpreted; as it is built, where its kernels came as source."""
    try:
        return problem_with(under, "interpreted", example)
    except NotInterpreted:
        return problem_with(under, "built", example) if builds else ""


def _generate(example: Example, under: Under) -> str:
    """Returns what is wrong with the sources for a GPU that is not here."""
    torch.compiler.reset()
    compiler = pipeline.make_compiler(None, under.options, under.plugins)
    with FakeTensorMode():
        tensors = [
            torch.empty([n * LARGER for n in given.shape], dtype=_half(given), device="cuda")
            for given in example.inputs()
        ]
    try:
        for schedule in pipeline.schedule_only(example.function, tensors, under.options, under.plugins):
            pipeline.generate(pipeline.plan_schedule(schedule, compiler), compiler)
    except Exception as error:
        return in_short(error)
    return ""


def _half(given: torch.Tensor) -> torch.dtype:
    return torch.bfloat16 if given.dtype == torch.float32 else given.dtype


__all__ = ["GENERATED", "choice_trials", "offered_without"]
