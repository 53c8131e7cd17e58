"""What torch itself notes down of the time that compiles take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TorchSeconds:
    """Wall time of all compiles of this process so far. dynamo: tracing the user's code and making guards. backend:
    from the call of the backend on, AOTAutograd and what it has compiled; of backwards too."""

    dynamo: float
    backend: float

    def __sub__(self, earlier: TorchSeconds) -> TorchSeconds:
        return TorchSeconds(self.dynamo - earlier.dynamo, self.backend - earlier.backend)


def torch_seconds() -> TorchSeconds | None:
    """Returns the time that the compiles of this process have taken so far; None where torch does not record it under
    the names known here."""
    from torch._dynamo import utils

    noted = getattr(utils, "compilation_time_metrics", None)
    if noted is None:
        return None

    def of(*names: str) -> float:
        return sum(sum(noted[name]) for name in names if name in noted)

    called = of("OutputGraph.call_user_compiler")
    return TorchSeconds(of("_compile.compile_inner") - called, called + of("backward._backward_impl"))
