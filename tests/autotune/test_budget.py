"""`autotune.budget_s`: shares by what contractions are expected to take; what there is no time for goes by estimate."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from litz_autotune.budget import LEAST_SECONDS, Budget, weights
from litz_autotune.measuring import Measuring
from litz_plugins import Choice, Estimate, TemplateSpec
from support import rivals
from support.fake_timer import FakeTimer
from support.tuned import Tuned

TIMER = FakeTimer((("library", 100), ("good", 50)))


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, float]]:
    """For each contraction that was about to be measured: its weight, that of the rest, and its seconds."""
    found: list[tuple[float, float, float]] = []
    share = Budget.share

    def spy(self: Budget, context: Any) -> float:
        seconds = share(self, context)
        found.append((*weights(context), seconds))
        return seconds

    monkeypatch.setattr(Budget, "share", spy)
    return found


def two_sizes(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
    return (a @ b).relu(), (c @ c.cos()).sin(), c.sin() @ c


def test_most_goes_where_most_time_is(tmp_path: Any, shares: list[tuple[float, float, float]]) -> None:
    small, large = torch.randn(64, 64), torch.randn(96, 96)
    Tuned(tmp_path, TIMER, rivals.good, **{"autotune.budget_s": 100.0})(two_sizes, small, small, large)
    (first, longer, seconds), (second, none, all_left) = shares  # two of the products are one problem
    assert first < longer and none == 0 and second == longer
    assert seconds == pytest.approx(100 * first / (first + longer)) and 90 < all_left <= 100


def test_of_equal_weight_the_first_may_take_all(tmp_path: Any, shares: list[tuple[float, float, float]]) -> None:
    """Else many alike would get a little each, and none would come to an end."""
    a, b = torch.randn(32, 64), torch.randn(64, 32)
    run = Tuned(tmp_path, TIMER, rivals.good, **{"autotune.budget_s": 100.0})
    run(lambda a, b: ((a @ b).relu(), (b.t() @ a.t()).cos()), a, b)
    assert shares[0][2] == 100.0 and shares[1][2] > 90


def test_the_next_process_goes_on_where_the_budget_ended(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has time for one screening: of the library call, of a candidate, of the other, then for the final."""
    a, timer = torch.randn(16, 16), FakeTimer((("library", 100), ("good", 70), ("better", 50)))
    screened = Measuring._screened
    seen: list[str] = []

    def one(self: Measuring, heat: Any, names: Any) -> None:
        seen.extend(names)
        screened(self, heat, names)
        self.deadline = 0.0

    monkeypatch.setattr(Measuring, "_screened", one)
    chosen = []
    for _ in range(5):
        compile_ = Tuned(tmp_path, timer, rivals.good, rivals.better)
        compile_(torch.mm, a, a)
        chosen += compile_.chosen
    assert seen == ["library", "good", "better"]
    assert chosen == ["aten.mm.default"] * 3 + ["better"] * 2
    assert compile_.autotune.counters.local_hits == 1


def test_a_share_is_not_too_small_to_be_of_use() -> None:
    budget = Budget(10.0)
    context = SimpleNamespace()
    for spent, expected in ((0.0, LEAST_SECONDS), (9.8, 0.2), (20.0, 0.0)):
        budget.spent = spent
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("litz_autotune.budget.weights", lambda context: (1.0, 1e6))
            assert budget.share(context) == pytest.approx(expected)  # type: ignore[arg-type]


def test_what_the_measuring_takes_is_spent() -> None:
    budget = Budget(10.0)
    with pytest.MonkeyPatch.context() as patch:
        clock = iter((100.0, 103.0))
        patch.setattr("litz_autotune.budget.monotonic", lambda: next(clock))
        patch.setattr("litz_autotune.budget.weights", lambda context: (1.0, 0.0))
        with pytest.raises(ValueError, match="no"), budget.deadline(None) as deadline:  # type: ignore[arg-type]
            assert deadline == 110.0
            raise ValueError("no")
    assert budget.left == 7.0


def test_without_time_the_estimate_decides(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = Tuned(tmp_path, TIMER, rivals.good, rivals.better, **{"autotune.budget_s": 0.0})
    specs = compile_.plugins.templates

    def with_estimates(options: Any) -> tuple[TemplateSpec, ...]:
        def estimated(spec: TemplateSpec) -> TemplateSpec:
            def make(*asked: Any) -> list[Choice]:
                surely, never = Estimate(1.0, 1.0, 1.0, "told"), Estimate(4.0, 1.0, 1e9, "told")
                return [
                    replace(
                        choice, estimate=surely if choice.name == "better" else never, replaced=Estimate(5, 5, 5, "")
                    )
                    for choice in spec.make_choices(*asked)
                ]

            return replace(spec, make_choices=make)

        return tuple(map(estimated, specs(options)))

    monkeypatch.setattr(compile_.plugins, "templates", with_estimates)
    a = torch.randn(16, 16)
    torch.testing.assert_close(compile_(torch.mm, a, a), a @ a)
    assert compile_.chosen == ["better"] and "by its estimate: not measured" in compile_.reasons[0]
    assert compile_.autotune.counters.races == 0 and compile_.autotune.counters.local_puts == 0
