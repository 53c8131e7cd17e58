"""Cost models that are wrong on purpose."""

from __future__ import annotations

from typing import Any

from litz.cost import count_work
from litz.ir import Loop
from litz_plugins import Estimate, hookimpl


class BytesAlone:
    """A cost model for which arithmetic takes no time, so that everything is computed again wherever a value is read.
    origin_factor: how many times as long a loop takes for each operation more that was fused into it."""

    def __init__(self, origin_factor: float = 1.0) -> None:
        self.origin_factor = origin_factor

    @hookimpl
    def litz_cache_fingerprint(self) -> str:
        return str(self.origin_factor)

    @hookimpl
    def litz_estimate_runtime(self, operation: Any, target: Any, program: Any) -> Estimate | None:
        if not isinstance(operation, Loop):
            return None
        work = count_work(operation, program, target)
        us = (work.bytes_read + work.bytes_written) / target.usual_bandwidth + target.launch_us
        us *= self.origin_factor ** (len(operation.origins) - 1)
        return Estimate(us, us / 2, us * 2, "bytes alone")
