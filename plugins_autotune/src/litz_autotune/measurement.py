"""What measuring a function comes to. In: the µs of its runs. Out: a `Measurement`. Loads no torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """The median time of a run and the standard error of that median, in µs. Infinite if it failed; `reason` then says
    why, or why a time is not to be used."""

    us: float
    noise_us: float = 0.0
    runs: int = 0
    reason: str = ""

    @property
    def valid(self) -> bool:
        """Returns whether there is a finite time, and no reason not to use it."""
        return isfinite(self.us) and not self.reason

    def to_data(self) -> dict[str, Any]:
        """Returns the fields as JSON has them: null for infinity."""
        return {
            "us": self.us if isfinite(self.us) else None,
            "noise_us": self.noise_us,
            "runs": self.runs,
            "why": self.reason,
        }

    @staticmethod
    def from_data(data: Any) -> Measurement:
        """Returns the measurement in the data. Raises ValueError, KeyError or TypeError for what is no measurement."""
        us = inf if data["us"] is None else float(data["us"])
        found = Measurement(us, float(data["noise_us"]), int(data["runs"]), str(data["why"]))
        if not found.us > 0 or not 0 <= found.noise_us < inf:
            raise ValueError(f"{data} is no measurement")
        return found


def failed(reason: str) -> Measurement:
    """Returns the measurement of a candidate that cannot run: an infinite time and the reason."""
    return Measurement(inf, reason=reason)


def summarize(samples: Sequence[float]) -> Measurement:
    """Returns the median, and its standard error from the median absolute deviation (1.4826 MAD is a normal
    distribution's standard deviation, and a median's standard error is 1.2533 times a mean's)."""
    middle = statistics.median(samples)
    if not isfinite(middle):
        return failed("its time is infinite")
    deviation = 1.4826 * statistics.median(abs(sample - middle) for sample in samples)
    return Measurement(middle, 1.2533 * deviation / sqrt(len(samples)), len(samples))
