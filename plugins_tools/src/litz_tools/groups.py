"""What says the same, together. In: a report. Out: groups of its decisions and of its steps; what each weighed.

A model of twelve equal layers has twelve equal sets of kernels and took each decision twelve times: a reader wants to
see each once, with its count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from litz.logs.units import time_text
from litz.report import CompileReport, Step
from litz_plugins import Decision

FEW = 3
"""Subjects named per group of decisions, and nodes per kernel, unless all are asked for."""
_NAME = re.compile(r"\b(op|buf|kernel|arg|loop)\d+(_\d+)?\b")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?: (?:[KMGT]i?)?B\b)?(?!\w)")
_DIGITS = re.compile(r"\d+")
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9}


@dataclass(frozen=True)
class Group:
    """Decisions of one stage and plugin that chose the same for the same reason, names and numbers in it aside.

    reason: theirs; where the numbers differ, with "smallest to largest" in their place.
    """

    stage: str
    chosen: str
    reason: str
    plugin: str
    decisions: tuple[Decision, ...]


def group_decisions(report: CompileReport) -> list[Group]:
    """Returns the report's decisions in groups, in order of first appearance."""
    found: dict[tuple[str, str, str, str], list[Decision]] = {}
    for decision in report.decisions:
        key = (decision.stage, _general(decision.chosen), _general(decision.reason), decision.plugin)
        found.setdefault(key, []).append(decision)
    return [
        Group(stage, _merged([d.chosen for d in alike]), _merged([d.reason for d in alike]), plugin, tuple(alike))
        for (stage, _, _, plugin), alike in found.items()
    ]


def _general(text: str) -> str:
    """Returns the text without what may differ between decisions that say the same."""
    return _NUMBER.sub("…", _NAME.sub("…", text))


def _merged(texts: Sequence[str]) -> str:
    """Returns one text for several that differ only in names and numbers."""
    if len(set(texts)) == 1:
        return texts[0]
    texts = [_NAME.sub("…", text) for text in texts]
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([_range(column) for column in columns])
    return _NUMBER.sub(lambda _: next(ranges), texts[0])


def _range(numbers: Sequence[str]) -> str:
    """Returns the least and the greatest of texts with numbers, such as "2 KiB to 3 MiB"."""
    low, high = min(numbers, key=_value), max(numbers, key=_value)
    return low if low == high else f"{low} to {high}"


def _value(number: str) -> float:
    figure, _, unit = number.partition(" ")
    return float(figure) * _BYTES.get(unit, 1)


def considered_text(decision: Decision, timed: bool = True) -> str:
    """Returns "a + b: fused 3.1 µs, apart 5.2 µs": what a decision weighed; its subject where it weighed nothing.

    timed: whether the report has times. Where it has none, the figures compare ways and are no times: the text has
    each as a share of the first, "apart 100%, fused 60%".
    """
    if not decision.considered:
        return decision.subject
    whole = next((us for _, us in decision.considered if us), None)

    def cost(us: float | None) -> str:
        if us is None or (not timed and whole is None):
            return "?"
        return time_text(us) if timed or whole is None else f"{us / whole:.0%}"

    return f"{decision.subject}: {', '.join(f'{name} {cost(us)}' for name, us in decision.considered)}"


def group_steps(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Returns groups of steps that do the same on data of the same size, in order of first appearance."""
    found: dict[object, list[Step]] = {}
    for step in steps:
        key = (step.kind, step.device, step.what, stems(step), step.bytes, step.flops, step.us)
        found.setdefault(key, []).append(step)
    return [tuple(alike) for alike in found.values()]


def origin_in_short(alike: Sequence[Step]) -> str:
    """Returns what steps that do the same come from in the user's model, such as "layers.0-11.mlp.fc1
    (model.py:41)"."""
    return places_in_short([step.origin for step in alike])


def places_in_short(texts: Sequence[str]) -> str:
    """Returns where steps come from, texts that differ only in numbers joined into one; '' for none."""
    found: dict[str, list[str]] = {}
    for text in filter(None, texts):
        found.setdefault(_DIGITS.sub("#", text), []).append(text)
    return "; ".join(few([_numbers_merged(texts) for texts in found.values()], 2))


def _numbers_merged(texts: Sequence[str]) -> str:
    """Returns one text for several that differ only in numbers, with "0-11" where they differ."""
    columns = zip(*(map(int, _DIGITS.findall(text)) for text in texts), strict=True)
    ranges = iter(
        [f"{min(numbers)}-{max(numbers)}" if len(set(numbers)) > 1 else str(numbers[0]) for numbers in columns]
    )
    return _DIGITS.sub(lambda _: next(ranges), texts[0])


def few(names: Sequence[str], most: int) -> tuple[str, ...]:
    """Returns all names, or, if there are more than `most`, the first three and how many more."""
    return tuple(names) if len(names) <= most else (*names[:FEW], f"{len(names) - FEW} more")


def in_short(step: Step) -> str:
    """Returns what a step does, in few words, such as "add + mul + exp + 2 more"."""
    if step.kind != "kernel":
        return step.what.removeprefix("aten.").removesuffix(".default")
    return " + ".join(few(stems(step), FEW + 1))


def stems(step: Step) -> tuple[str, ...]:
    """Returns the names of the graph's nodes behind a step without their numbers, each once."""
    return without_numbers(step.origins or step.fused)


def without_numbers(nodes: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of nodes without their numbers, each once: "add_7", "add_9" and "mul_1" give add, mul."""
    return tuple(dict.fromkeys(re.sub(r"(_\d+)+$", "", name) for name in nodes))
