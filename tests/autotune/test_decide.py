"""The library stays unless it loses by more than noise."""

from __future__ import annotations

from math import inf

import pytest

from litz_autotune.decide import Rival, decide
from litz_autotune.measurement import Measurement, failed, summarize

RIVALS = [Rival("a", "library"), Rival("b", "library")]


def times(library: Measurement, **others: Measurement) -> dict[str, Measurement]:
    return {"library": library, **others}


def test_the_fastest_wins_with_its_gain_as_the_reason() -> None:
    verdict = decide(RIVALS, times(Measurement(10, 0.01), a=Measurement(8, 0.01), b=Measurement(7, 0.01)))
    assert verdict.name == "b" and "gains 30.0%" in verdict.reason


def test_a_gain_within_the_noise_is_none() -> None:
    verdict = decide(RIVALS, times(Measurement(10, 0.5), a=Measurement(9, 0.5)))
    assert verdict.name is None and "within the noise of 2.12" in verdict.reason


def test_a_gain_under_one_percent_is_none_however_quiet() -> None:
    assert decide(RIVALS, times(Measurement(100), a=Measurement(99.1))).name is None
    assert decide(RIVALS, times(Measurement(100), a=Measurement(98.9))).name == "a"


def test_short_kernels_must_gain_more() -> None:
    assert decide(RIVALS, times(Measurement(20), a=Measurement(19.5))).name is None
    assert decide(RIVALS, times(Measurement(20), a=Measurement(19.3))).name == "a"
    assert decide(RIVALS, times(Measurement(5), a=Measurement(4.6))).name is None
    assert decide(RIVALS, times(Measurement(5), a=Measurement(4.4))).name == "a"


def test_what_cannot_run_or_is_not_among_the_best_does_not_win() -> None:
    out = Measurement(1.0, reason="not among the best")
    verdict = decide(RIVALS, times(Measurement(10), a=failed("crashed"), b=out))
    assert verdict.name is None and verdict.reason == "b not among the best"


def test_without_a_measurement_of_the_library_it_stays() -> None:
    assert decide(RIVALS, {"a": Measurement(1.0)}).name is None
    assert decide(RIVALS, times(failed("out of memory"), a=Measurement(1.0))).name is None


def test_where_the_library_may_not_run_the_fastest_does() -> None:
    verdict = decide(RIVALS, {"a": Measurement(20), "b": Measurement(30)}, library_allowed=False)
    assert verdict.name == "a"
    assert decide(RIVALS, {"a": failed("no")}, library_allowed=False).name is None


def test_each_rival_has_its_own_baseline_and_handicap() -> None:
    """Fused, `f` is compared with library and users; `s` only with the library and the reading of its result."""
    rivals = [Rival("f", "library with relu"), Rival("s", "library", 10.0)]
    measured = times(Measurement(100), f=Measurement(120), s=Measurement(105))
    assert decide(rivals, measured | {"library with relu": Measurement(110)}).name == "s"
    assert decide(rivals, measured | {"library with relu": Measurement(140)}).name == "f"


def test_the_noise_is_that_of_the_median() -> None:
    found = summarize([10, 11, 9, 10, 30])
    assert (found.us, found.runs) == (10, 5)
    assert found.noise_us == pytest.approx(1.2533 * 1.4826 / 5**0.5)
    assert summarize([inf, inf, inf]).us == inf and summarize([inf]).reason


@pytest.mark.parametrize("data", [{}, {"us": 1}, {"us": -1, "noise_us": 0, "runs": 1, "why": ""}, None, "x"])
def test_what_is_no_measurement_is_refused(data: object) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        Measurement.from_data(data)


def test_measurements_survive_json() -> None:
    for found in (Measurement(1.5, 0.1, 7), failed("crashed"), Measurement(2.0, reason="not among the best")):
        assert Measurement.from_data(found.to_data()) == found
