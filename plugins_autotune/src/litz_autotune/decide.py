"""The decision. In: what was measured. Out: which candidate, and why.

The library stays unless a candidate's gain is greater than the noise of both measurements; so a tuned program is never
slower than an untuned one by more than a measurement can miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf

from litz.logs.units import time_text

from .measurement import Measurement

SIGMAS = 3.0
"""Standard errors of the difference that a gain must exceed: one wrong decision in some seven hundred."""
LEAST_GAIN = 0.01
"""The smallest gain that counts, as a share of the library's time: repeats of one measurement in other processes on one
H100 differ by as much."""

SHORT_US, SHORT_GAIN, SHORT_GAIN_US = 30.0, 0.03, 0.5
"""Below so many µs of the library a gain must be so large a share of it, and so many µs: what such a kernel gains
between others is less than what it gains alone."""


@dataclass(frozen=True)
class Rival:
    """A candidate: its name, and what it must beat: the name of a measurement, and µs that are added to that."""

    name: str
    baseline: str
    handicap_us: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """A contest's winner, None for the library, and the reason."""

    name: str | None
    reason: str


def decide(rivals: Sequence[Rival], measured: Mapping[str, Measurement], library_allowed: bool = True) -> Verdict:
    """Returns the rival that gains most, if it gains more than noise. Where the library may not run, the fastest valid
    one.

    A verdict of None with `library_allowed=False` means that nothing can run.
    """
    ran = [rival for rival in rivals if rival.name in measured and measured[rival.name].us < inf]
    valid = [rival for rival in ran if measured[rival.name].valid]
    if not ran:
        return Verdict(None, "no candidate can run" if rivals else "no candidates")
    if not library_allowed:
        # What lost against the library may be all there is: its time is known, even if from few runs.
        best = min(valid or ran, key=lambda rival: measured[rival.name].us)
        return Verdict(best.name, f"the fastest of those allowed: {time_text(measured[best.name].us)}")
    if not valid:
        return Verdict(None, _without_a_final(ran, measured))
    comparable = [rival for rival in valid if rival.baseline in measured and measured[rival.baseline].valid]
    if not comparable:
        return Verdict(None, "the library call was not measured")
    best = max(comparable, key=lambda rival: _gain(rival, measured))
    library, own = measured[best.baseline], measured[best.name]
    against = library.us + best.handicap_us
    gain, noise = _gain(best, measured), SIGMAS * hypot(library.noise_us, own.noise_us)
    needed = max(noise, LEAST_GAIN * against)
    if against < SHORT_US:
        needed = max(needed, SHORT_GAIN * against, SHORT_GAIN_US)
    times = f"{time_text(own.us)} against the library's {time_text(against)}"
    if gain <= 0:
        return Verdict(None, f"the library is the fastest: {times}")
    if gain <= needed:
        return Verdict(None, f"{times}: a gain of {time_text(gain)} is within the noise of {time_text(needed)}")
    return Verdict(best.name, f"{times}: gains {gain / against:.1%}, noise {time_text(needed)}")


def _without_a_final(ran: Sequence[Rival], measured: Mapping[str, Measurement]) -> str:
    best = min(ran, key=lambda rival: measured[rival.name].us)
    own, library = measured[best.name], measured.get(best.baseline)
    if library is None or own.us < library.us + best.handicap_us:
        return f"{best.name} {own.reason}"
    return f"the library is the fastest: {own.us:.4g} us against the library's {library.us + best.handicap_us:.4g}"


def _gain(rival: Rival, measured: Mapping[str, Measurement]) -> float:
    return measured[rival.baseline].us + rival.handicap_us - measured[rival.name].us
