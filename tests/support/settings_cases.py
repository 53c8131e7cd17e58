"""Kernels with settings of their own: cases of the Triton code generator, with all settings one and two steps away.

`python -m support.settings_cases SHARD OF [NAME ...]` runs them in Triton's interpreter, and prints what went wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from litz.targets.triton.codegen import TritonCodegen
from support.interpreted import print_share
from support.triton_cases import CASES, Case, interpreted_names


def near(case: Case) -> Iterator[Case]:
    """The case with settings one step away."""
    for settings in TritonCodegen().near(case.plan, case.context):
        yield replace(case, settings=settings)


def far(case: Case, steps: int) -> Iterator[Case]:
    """The case with settings up to some steps away, each text once."""
    seen, edge = {case.source.text}, [case]
    for _ in range(steps):
        fresh = [other for each in edge for other in near(each)]
        edge = []
        for other in fresh:
            if (text := other.source.text) not in seen:
                seen.add(text)
                edge.append(other)
                yield other


def text_of(settings: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


@dataclass(frozen=True)
class Interpreted:
    """A case, with all settings so many steps away. most: of them, those with rows held otherwise and the last, as
    these are the oddest."""

    name: str
    steps: int = 2
    most: int = 5

    def check(self) -> str:
        from litz_testing.triton_interpreter import interpret_source

        problems = []
        others = list(far(CASES[self.name](), self.steps))
        held = others[0].settings.get("held") if others else None
        others.sort(key=lambda other: other.settings.get("held") != held)
        for other in others[-self.most :]:
            try:
                memory = other.tensors()
                interpret_source(other.source, *other.arguments(memory))
                other.check(memory)
            except Exception as error:
                problems.append(f"{text_of(other.settings)}: {type(error).__name__}: {str(error)[-800:]}")
        return "\n".join(problems)


if __name__ == "__main__":
    print_share({name: Interpreted(name) for name in interpreted_names()})
