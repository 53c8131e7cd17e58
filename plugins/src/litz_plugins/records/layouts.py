"""Memory layouts of a graph's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from litz_plugins.records.decisions import Decision

LayoutNeed = Literal["any", "traced", "contiguous"]
"""The strides in which a library call takes a tensor argument: any, those of the trace, or row-major."""


@dataclass(frozen=True)
class Conversion:
    """A copy of a tensor in another layout, made once in a graph and read by some of the tensor's users.

    tensor: FX node name. order: of the copy, as in `LayoutPlan.strides`. users: names of the FX nodes that read the
    copy in place of the tensor; the graph's output node is one like any other ("output"). us: expected time, None where
    it is not known. reason: who asked for it.
    """

    tensor: str
    order: tuple[int, ...]
    users: tuple[str, ...]
    reason: str = ""
    us: float | None = None

    def __post_init__(self) -> None:
        _check_order(self.tensor, self.order)
        if not self.users or isinstance(self.users, str):
            raise ValueError(f"conversion of {self.tensor!r}: users is a tuple of one or more node names")


@dataclass(frozen=True)
class LayoutPlan:
    """Memory layouts chosen for a graph's tensors.

    strides: FX node name -> dimensions from the outermost (largest stride) to the innermost, e.g. (0, 2, 3, 1) for a
    channels-last NCHW tensor; a result of an op with several is named by its getitem node. reasons: node name -> why.
    Nodes that are not named keep their layout. conversions: copies to insert. decisions: more for the record (a graph
    that was left alone, say). attachments: file name -> text, for the report's folder; a ".txt" is shown by
    `litz explain`, a ".svg" in the HTML page. us: what all that it is about is expected to take as traced, and as
    planned; None where nobody knows. pays: is it to be applied? One that is not may still be measured.
    """

    strides: Mapping[str, tuple[int, ...]]
    reasons: Mapping[str, str] = field(default_factory=dict)
    conversions: tuple[Conversion, ...] = ()
    decisions: tuple[Decision, ...] = ()
    keep_outputs: bool = True  # whether outputs that the user sees keep their strides
    attachments: Mapping[str, str] = field(default_factory=dict)
    us: tuple[float, float] | None = None
    pays: bool = True

    def __post_init__(self) -> None:
        for name, order in self.strides.items():
            _check_order(name, order)


def _check_order(name: str, order: tuple[int, ...]) -> None:
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"layout of {name!r}: {order} is no permutation of its {len(order)} dimensions")
