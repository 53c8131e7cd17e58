"""Where in a wrapper's text its steps are, and what is said of them.

A wrapper is generated without a word of whose model it runs, so that graphs that are the same have the same text. What
people are to read, comments and ranges of a profile, is put in afterwards at the places of the steps
(`litz.origins.words`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

INPUTS, OUTPUTS = "inputs", "outputs"
"""The places where a function takes its inputs and where it returns; all others are called as their steps are."""


@dataclass(frozen=True)
class Place:
    """Lines of a step, or of `INPUTS` or `OUTPUTS`: from the first to the last, both inclusive, counted from 1. The
    last is before the first where there are none."""

    step: str
    first: int
    last: int

    def moved(self, lines: int) -> Place:
        """Returns the place `lines` lines further down."""
        return replace(self, first=self.first + lines, last=self.last + lines)


@dataclass(frozen=True)
class Words:
    """The comments on a wrapper: data, which is made anew for another graph with the same text (`Named`).

    origins: "layers.3.mlp.fc1 (model.py:41)" for each step of which that is known, by name; those of all cases. ranges:
    what a profile calls each step. inputs, outputs: comments on those. known_as: what the user calls inputs, by name.
    """

    origins: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    known_as: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WrapperSource:
    """The text of a wrapper and the objects its globals must hold besides kernels and runtime support.

    places: where in the text the steps are, so that comments and profiles can say what each is. words: what they say,
    once that is known (`annotated`).
    """

    text: str
    objects: Mapping[str, Any] = field(default_factory=dict)
    places: tuple[Place, ...] = ()
    words: Words = field(default_factory=Words)
