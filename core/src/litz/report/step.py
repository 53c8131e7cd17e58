"""Step: one kernel or call of a schedule, as reports show it. Plain numbers and strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from litz.origins.operations import Origin, origin_text
from litz_plugins import Estimate


@dataclass(frozen=True)
class Step:
    """One kernel or call of the schedule, in order of execution.

    kind: "kernel", "template" (a contraction left to the library), "extern", "collective" or "wait". what: the call's
    op, or the loop's ranges. fused: names of the operations that the kernel does. origins: names of the graph's nodes
    behind it. modules, places: of the user's model, what those come from: "layers.3.mlp.fc1", "/home/me/model.py:41";
    origin: both in short. flops, bytes_read, bytes_written: as `litz.cost.count_work` counts them. waits_for: of a
    wait, the collectives, by name.
    """

    name: str  # of the kernel or operation
    kind: str
    device: str  # that runs it
    what: str
    fused: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    origin: str = ""
    reads: tuple[str, ...] = ()  # names of buffers
    writes: tuple[str, ...] = ()  # names of buffers
    estimate: Estimate | None = None  # what the cost models say; None where none knows
    flops: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    waits_for: tuple[str, ...] = ()
    group: str = ""  # of a collective, its process group

    @property
    def us(self) -> float:
        """Returns the estimated time in µs; 0 without an estimate."""
        return self.estimate.us if self.estimate is not None else 0.0

    @property
    def why(self) -> str:
        """Returns the reason of the estimate; '' without an estimate."""
        return self.estimate.why if self.estimate is not None else ""

    @property
    def bytes(self) -> float:
        """Returns the bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def title(self) -> str:
        """Returns what the step does, in one line: the graph's nodes that a kernel was made of, or the op that is
        called."""
        if self.kind != "kernel":
            return self.what
        return " + ".join(self.origins or self.fused) or self.what


def origin_fields(origins: Sequence[Origin]) -> dict[str, Any]:
    """Returns a step's `modules`, `places` and `origin`, for the nodes that it comes from."""
    modules = tuple(dict.fromkeys(origin.module for origin in origins if origin.module))
    places = tuple(dict.fromkeys(f"{origin.file}:{origin.line}" for origin in origins if origin.file))
    return {"modules": modules, "places": places, "origin": origin_text(origins)}


NOWHERE = origin_fields(())
