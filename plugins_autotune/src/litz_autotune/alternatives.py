"""What is worth trying. In: the decisions of a graph as they were weighed. Out: alternatives, the most promising first.

An estimate errs. With what it says of two ways, and how far it is usually off, comes how much may be expected of trying
the other one: the saving there would be, times how likely it is. Little may be expected where the estimates are far
apart, or where there is little to save.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import erf, exp, log, sqrt

from litz_plugins import Weighed

ERROR = 0.8
"""How far the ratio of two estimates is usually off, as a logarithm: twice as much or half is nothing unusual, ten
times as much is. Kernels alone reach 0.5 to 0.95 of a device's bandwidth (`litz_plugins.records.SHARES`)."""
LEAST = 2e-5
"""The smallest expected saving that is worth a try, as a share of the graph's time."""


@dataclass(frozen=True)
class Alternative:
    """Another way of some decisions that are alike: the same maker, the same estimates, as a model repeats its layers.

    keys: without the graph. now_us, other_us: what all that one of them is about takes by the estimates, as it is and
    otherwise.
    """

    keys: tuple[str, ...]
    now: str
    way: str
    now_us: float
    other_us: float

    @property
    def name(self) -> str:
        """Returns the first key, how many are alike, and the other way, for people to read."""
        more = f" and {len(self.keys) - 1} alike" if len(self.keys) > 1 else ""
        return f"{self.keys[0]}{more}: {self.way}"

    @property
    def ways(self) -> Mapping[str, str]:
        """Returns the way of each of its decisions, as `Tuning.make` takes them."""
        return dict.fromkeys(self.keys, self.way)

    @property
    def promise(self) -> float:
        """Returns the µs that trying it may be expected to save: the mean of what it saves, if the other way's time is
        distributed log-normally around its estimate, and what saves nothing counts as 0 (Black and Scholes, "The
        Pricing of Options and Corporate Liabilities", 1973: a put)."""
        if self.now_us <= 0 or self.other_us <= 0:
            return 0.0
        ahead = log(self.now_us / self.other_us) / ERROR
        saved = self.now_us * _below(ahead) - self.other_us * exp(ERROR**2 / 2) * _below(ahead - ERROR)
        return len(self.keys) * max(0.0, saved)


def rank(weighed: Mapping[str, Weighed], total_us: float, settled: Collection[str] = ()) -> list[Alternative]:
    """Returns the alternatives that are worth a try, the most promising first.

    weighed: by key without the graph. total_us: what the graph takes, by the estimates. settled: keys to leave alone.
    """
    alike: dict[tuple[str, str, str, str, str], list[str]] = {}
    for key, found in weighed.items():
        now = found.us(found.chosen)
        for way, us in found.ways:
            if key not in settled and way != found.chosen and us is not None and now is not None:
                maker = key.partition("/")[0]
                alike.setdefault((maker, found.chosen, way, _rounded(now), _rounded(us)), []).append(key)
    made = []
    for (_, chosen, other, *_), keys in alike.items():
        first = weighed[keys[0]]
        made.append(Alternative(tuple(keys), chosen, other, first.us(chosen) or 0.0, first.us(other) or 0.0))
    worth = [each for each in made if each.promise > LEAST * total_us]
    return sorted(worth, key=lambda each: -each.promise)


def _below(z: float) -> float:
    """Returns the probability that a standard normal value is below z."""
    return (1 + erf(z / sqrt(2))) / 2


def _rounded(us: float) -> str:
    return f"{us:.5g}"


__all__ = ["Alternative", "rank"]
