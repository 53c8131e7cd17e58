"""A timer of times that a test makes up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch


@dataclass(frozen=True)
class FakeTimer:
    """Times made up for tests: µs by name (`default` for others), each run of which runs the function if `run`."""

    times: tuple[tuple[str, float], ...] = ()
    default: float = 100.0
    noise: float = 0.0
    run: bool = True
    calls: list[str] = field(default_factory=list, compare=False)

    def time(
        self, functions: Mapping[str, Callable[[], Any]], device: torch.device, seconds: float, limit_us: float = inf
    ) -> Mapping[str, list[float]]:
        times = dict(self.times)
        for name, function in functions.items():
            self.calls.append(name)
            if self.run:
                function()
        base = {name: times.get(name, self.default) for name in functions}
        if min(base.values()) > limit_us:
            return {name: [us] for name, us in base.items()}
        return {name: [us - self.noise, us, us + self.noise] * 3 for name, us in base.items()}
