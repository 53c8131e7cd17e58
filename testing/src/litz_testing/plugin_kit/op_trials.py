"""Lowerings and decompositions against eager. In: the ops, and samples. Out: trials.

Samples are compiled in groups, one graph for dozens of calls; where a group is wrong, its calls are run one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch._ops import OpOverload

from .op_samples import VARIANTS, Given, OpSample, Variant, samples_of
from .records import Trial
from .ways import Function, Inputs, Under, problems, torch_fails

GROUP = 40
"""Calls in a graph."""
FIRST_WAYS = ("interpreted", "interpreted, dynamic")
BUILT_WAYS = ("built", "built, dynamic", "kept")
"""Of the first sample of each op alone: each kernel takes a second of a C++ compiler's time."""


@dataclass(frozen=True)
class _Try:
    what: str
    sample: OpSample


def op_trials(
    kinds: Mapping[str, Sequence[Any]],
    given: Mapping[Any, Sequence[Given]],
    under: Under,
    without: Under | None,
    builds: bool,
    variants: Sequence[Variant] = VARIANTS,
) -> tuple[list[Trial], dict[str, str]]:
    """Returns trials of what is registered for ops, and what is left untried. kinds: "lowering" -> the ops. given:
    samples by op. without: the compiler without the plugin, to tell whose fault a failure is. builds: build kernels
    too. variants: of the tensors."""
    trials: list[Trial] = []
    untried: dict[str, str] = {}
    tries: list[_Try] = []
    for kind, ops in kinds.items():
        for op in ops:
            what = f"{kind} of {op}"
            if not isinstance(op, OpOverload):
                untried[what] = "the kit makes samples of op overloads alone"
                continue
            samples, fatal = samples_of(op, given.get(op, ()), variants)
            tries += [_Try(what, sample) for sample in samples]
            untried |= {f"{what}, {name}": f"eager ends its process ({end})" for name, end in fatal.items()}
            if not samples:
                untried[what] = "eager takes no sample made from its schema; give some: samples={op: [(args, kwargs)]}"
    for way in FIRST_WAYS:
        trials += _run_all(tries, way, under, without, untried)
    if builds:
        firsts = list({one.what: one for one in reversed(tries)}.values())[::-1]
        for way in BUILT_WAYS:
            trials += _run_all(firsts, way, under, without, untried)
    return trials, untried


def _run_all(
    tries: Sequence[_Try], way: str, under: Under, without: Under | None, untried: dict[str, str]
) -> Iterator[Trial]:
    for values, alike in itertools.groupby(
        sorted(tries, key=lambda one: one.sample.values), lambda one: one.sample.values
    ):
        together = list(alike)
        for start in range(0, len(together), GROUP):
            group = together[start : start + GROUP]
            if _problem(group, way, under, values):
                for one in group:
                    yield from _alone(one, way, under, without, untried)
            else:
                for one in group:
                    yield Trial(one.what, one.sample.name, way)


def _alone(one: _Try, way: str, under: Under, without: Under | None, untried: dict[str, str]) -> Iterator[Trial]:
    problem = _problem([one], way, under, one.sample.values)
    if problem and torch_fails(*_compiled_together([one], way), "dynamic" in way):
        untried[f"{one.what}, {one.sample.name}"] = f"torch alone fails to trace it ({way})"
    elif problem and without is not None and _problem([one], way, without, one.sample.values):
        untried[f"{one.what}, {one.sample.name}"] = f"litz fails on it without the plugin, too ({way})"
    else:
        yield Trial(one.what, one.sample.name, way, problem)


def _problem(group: Sequence[_Try], way: str, under: Under, values: bool) -> str:
    function, inputs = _compiled_together(group, way)
    return problems(under, way, function, inputs, values=values)


def _compiled_together(group: Sequence[_Try], way: str) -> tuple[Function, list[Inputs]]:
    """A function that makes all calls of a group, and the inputs to call it with in a way."""
    calls = [one.sample.call for one in group]
    first: Inputs = [tensor for call in calls for tensor in call.tensors]
    inputs = [first]
    if "dynamic" in way:
        others = [one.sample.again or one.sample.call for one in group]
        inputs.append([tensor for call in others for tensor in call.tensors])
    return _together([(call.function, len(call.tensors)) for call in calls]), inputs


def _together(calls: Sequence[tuple[Function, int]]) -> Function:
    """A function of all the tensors of several calls."""
    functions = [function for function, _ in calls]
    ends = list(itertools.accumulate(count for _, count in calls))
    starts = [0, *ends[:-1]]

    def function(*tensors: Any) -> Any:
        return [functions[n](*tensors[starts[n] : ends[n]]) for n in range(len(functions))]

    return function


__all__ = ["op_trials"]
