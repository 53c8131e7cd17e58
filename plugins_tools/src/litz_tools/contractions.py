"""What runs each contraction, for a reader. In: a report. Out: groups of equal contractions, and what to say of each.

Twelve equal layers have twelve equal contractions: they are one entry, with its count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from litz.ir import Program
from litz.schedule.implementations import ContractionRecord, Implementation

from .groups import few, places_in_short, without_numbers

MANY_WAYS = 8
"""Rejected implementations of a contraction that are shown unless all are asked for: the quickest first."""
_NAME = re.compile(r"\b(op|buf)\d+\b")


@dataclass(frozen=True)
class Contractions:
    """A group of contractions that are equal but for their names."""

    records: tuple[ContractionRecord, ...]

    @property
    def first(self) -> ContractionRecord:
        """Returns one of the records, for what they have in common."""
        return self.records[0]

    @property
    def title(self) -> str:
        """Returns the op, the count and the sizes, such as "addmm x12: [3072] x [512, 768] x [768, 3072] bf16"."""
        times = f" x{len(self.records)}" if len(self.records) > 1 else ""
        at = f" at {self.first.at}" if self.first.at else ""
        return f"{in_words(self.first.op)}{times}: {self.first.what}{at}"

    def subjects(self, most: int) -> str:
        """Returns the names of the graph's nodes as text; of more than `most` names, the first ones and how many
        more."""
        names = (" + ".join(record.origins) or record.subject for record in self.records)
        return ", ".join(few(tuple(names), most))

    def origin(self, program: Program | None) -> str:
        """Returns the modules behind the contractions, such as "layers.0-11.mlp.fc1 (model.py:41)"; '' where they are
        unknown."""
        if program is None:
            return ""
        return places_in_short([program.provenance.text(record.origins) for record in self.records])

    def fused(self, most: int) -> str:
        """Returns what else the kernel does, such as "after it gelu + mul; in its launch 2 more"; '' for nothing."""
        record, parts = self.first, list[str]()
        for word, nodes in (("before it", record.producers), ("after it", record.users)):
            if nodes:
                parts.append(f"{word} {' + '.join(few(without_numbers(nodes), most))}")
        if record.beside:
            parts.append(f"in the same launch {', '.join(record.beside)}")
        return "; ".join(parts) or "nothing"

    def rejected(self, most: int | None) -> Sequence[Implementation]:
        """Returns the implementations that do not run, the quickest first, those without a known time last. most: how
        many; None for all."""
        ranked = sorted(self.first.rejected, key=lambda each: (each.us is None, each.us or 0.0))
        if most is None or len(ranked) <= most:
            return ranked
        timed = [each for each in ranked if each.us is not None]
        untimed = [each for each in ranked if each.us is None]
        return [*timed[: max(1, most - len(untimed))], *untimed][:most]


def in_words(op: str) -> str:
    """Returns an op's short name: "addmm" for "aten.addmm.default"."""
    return op.removeprefix("aten.").removesuffix(".default")


def group_contractions(records: Sequence[ContractionRecord]) -> list[Contractions]:
    """Returns the report's contractions in groups of equal ones, in order of first appearance."""
    found: dict[object, list[ContractionRecord]] = {}
    for record in records:
        key = (record.op, record.what, record.at, record.plugin, _shape(record))
        found.setdefault(key, []).append(record)
    return [Contractions(tuple(alike)) for alike in found.values()]


def _shape(record: ContractionRecord) -> object:
    """Returns a record without what differs between equal layers."""
    ways = tuple((way.name, way.us, _NAME.sub("…", way.verdict)) for way in record.implementations)
    return ways, without_numbers(record.producers), without_numbers(record.users), len(record.beside)


__all__ = ["MANY_WAYS", "Contractions", "group_contractions", "in_words"]
