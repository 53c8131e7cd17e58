"""Tuning with the CPU as the device: what is measured, what wins, what is kept, and what is on record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

from litz.driver.builtin import builtin_plugins
from litz_autotune import Autotune
from litz_autotune.race import mismatch
from litz_plugins import Choice, hookimpl
from litz_plugins.manager import make_plugins
from support import rivals
from support.fake_timer import FakeTimer
from support.own_plugins import CONTRACTIONS
from support.rivals import Rivals
from support.tuned import Tuned

pytestmark = pytest.mark.usefixtures("interpreters_with_litz")
A, B = torch.randn(32, 48), torch.randn(48, 16)


@pytest.fixture
def tuned(tmp_path: Path) -> Iterator[Callable[..., Tuned]]:
    made: list[Tuned] = []

    def make(timer: Any, *functions: Callable[..., Any], **options: Any) -> Tuned:
        made.append(Tuned(tmp_path, timer, *functions, **options))
        return made[-1]

    yield make
    for one in made:
        one.autotune.close()


Make = Callable[..., Tuned]


def test_the_fastest_candidate_takes_the_contractions_place(tuned: Make) -> None:
    compile_ = tuned(FakeTimer((("library", 100), ("good", 80), ("better", 50))), rivals.good, rivals.better)
    torch.testing.assert_close(compile_(torch.mm, A, B), A @ B)
    assert compile_.chosen == ["better"]
    assert "gains 50.0%" in compile_.reasons[0]
    (decision, *_) = compile_.decisions
    assert dict(decision.considered) == {"library": 100, "good": 80, "better": 50}


def test_the_library_stays_where_nothing_is_faster(tuned: Make) -> None:
    compile_ = tuned(FakeTimer((("library", 100), ("good", 120))), rivals.good)
    compile_(torch.mm, A, B)
    assert compile_.chosen == ["aten.mm.default"] and "the library is the fastest" in compile_.reasons[0]


def test_the_library_stays_within_the_noise(tuned: Make) -> None:
    compile_ = tuned(FakeTimer((("library", 100), ("good", 97)), noise=5), rivals.good)
    compile_(torch.mm, A, B)
    assert compile_.chosen == ["aten.mm.default"] and "within the noise" in compile_.reasons[0]


def test_a_candidate_that_is_wrong_does_not_win(tuned: Make) -> None:
    compile_ = tuned(FakeTimer((("wrong", 1), ("nan", 1), ("raises", 1))), rivals.wrong, rivals.nan, rivals.raises)
    torch.testing.assert_close(compile_(torch.mm, A, B), A @ B)
    assert compile_.chosen == ["aten.mm.default"]
    for text in ("wrong gives other values", "nan gives other values", "this candidate always raises"):
        assert text in compile_.reasons[0]


@pytest.mark.parametrize(
    ("rival", "text"),
    [
        (rivals.crashes, "crashes the process was ended by signal 11"),
        (rivals.exits, "exits the process ended with status 3"),
        # Five seconds, for a busy machine; tests/autotune/test_pool.py waits less for another that hangs.
        pytest.param(rivals.hangs, "did not end in", marks=pytest.mark.nightly),
    ],
)
def test_what_crashes_or_hangs_costs_only_itself(tuned: Make, rival: Any, text: str) -> None:
    timer = FakeTimer(((rival.__name__, 1), ("good", 50)))
    options = {"autotune.in_subprocess": True, "autotune.timeout": 5.0}
    compile_ = tuned(timer, rival, rivals.good, **options)
    torch.testing.assert_close(compile_(torch.mm, A, B), A @ B)
    assert compile_.chosen == ["good"]
    assert text in compile_.reasons[0]


@pytest.mark.parametrize("in_subprocess", [False, True])
def test_nothing_is_held_on_to_after_the_compile(tuned: Make, in_subprocess: bool) -> None:
    compile_ = tuned(FakeTimer(), rivals.good, **{"autotune.in_subprocess": in_subprocess})
    compile_(torch.mm, A, B)
    (runner,) = compile_.autotune._runners.values()
    (count,) = runner.run([Held()])
    assert count == 0 and compile_.autotune.counters.races > 0


class Held:
    """How much a measuring process keeps from race to race."""

    def run(self, state: dict[str, Any]) -> int:
        return len(state)


def test_real_measurements_on_the_cpu(tuned: Make) -> None:
    """Nothing is asserted of who wins: only that it is measured and right."""
    compile_ = tuned(None, rivals.good)
    torch.testing.assert_close(compile_(torch.mm, A, B), A @ B)
    assert all(us is not None and us > 0 for _, us in compile_.decisions[0].considered)


def test_what_was_measured_is_not_measured_again(tuned: Make) -> None:
    timer = FakeTimer((("library", 100), ("good", 50)))
    first = tuned(timer, rivals.good)
    first(lambda a, b: (a @ b) @ b.t() @ b, A, B)
    assert first.autotune.counters.tuned == 2  # a @ b and x @ b are one problem
    calls = len(timer.calls)
    again = tuned(timer, rivals.good)  # another plugin, as in another process
    again(lambda a, b: (a @ b).cos(), A, B)
    assert again.chosen == ["good"]
    assert (again.autotune.counters.tuned, again.autotune.counters.local_hits) == (0, 1)
    assert len(timer.calls) == calls and again.autotune.counters.races == 0


def test_other_candidates_are_another_question(tuned: Make) -> None:
    timer = FakeTimer((("library", 100), ("good", 50), ("better", 20)))
    tuned(timer, rivals.good)(torch.mm, A, B)
    more = tuned(timer, rivals.good, rivals.better)
    more(torch.mm, A, B)
    assert more.chosen == ["better"] and more.autotune.counters.tuned == 1


def test_without_the_local_cache_nothing_is_kept(tuned: Make) -> None:
    timer = FakeTimer((("library", 100), ("good", 50)))
    for _ in range(2):
        compile_ = tuned(timer, rivals.good, **{"autotune.local_cache": False})
        compile_(torch.mm, A, B)
        assert compile_.autotune.counters.tuned == 1 and compile_.autotune.counters.local_puts == 0


def test_a_spent_budget_leaves_it_to_the_estimate_and_is_not_remembered(tuned: Make) -> None:
    timer = FakeTimer((("library", 100), ("good", 50)))
    late = tuned(timer, rivals.good, **{"autotune.budget_s": 0.0})
    late(torch.mm, A, B)
    assert late.chosen == ["aten.mm.default"] and "autotune.budget_s is spent" in late.reasons[0]
    assert late.reasons[0].startswith("by its estimate") and late.decisions[0].considered
    in_time = tuned(timer, rivals.good)
    in_time(torch.mm, A, B)
    assert in_time.chosen == ["good"]


def test_dynamic_shapes_are_tuned_on_their_hints(tuned: Make) -> None:
    compile_ = tuned(FakeTimer((("library", 100), ("good", 50))), rivals.good)
    torch.testing.assert_close(compile_(torch.mm, A, B, dynamic=True), A @ B)
    assert compile_.chosen == ["good"]


@dataclass(frozen=True)
class ByRows(FakeTimer):
    """ "good" takes 50 µs for few rows and 200 for many, the library 100."""

    def time(
        self, functions: Mapping[str, Callable[[], Any]], device: torch.device, seconds: float, limit_us: float = inf
    ) -> Mapping[str, list[float]]:
        rows = {name: function()[0].shape[0] for name, function in functions.items()}
        return {name: [100.0 if name == "library" else 50.0 if rows[name] < 100 else 200.0] * 9 for name in functions}


def test_several_sizes_have_choices_of_their_own(tuned: Make) -> None:
    sizes = (8, 500)
    for measured in (3, 0):  # the second time they are found
        compile_ = tuned(ByRows(), rivals.good, sizes=sizes)
        x = torch.randn(32, 48)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compile_(torch.mm, x, B), x @ B)
        assert compile_.chosen == ["good", "good", "aten.mm.default"]
        assert compile_.autotune.counters.tuned == measured
    assert "gains 50.0%" in compile_.reasons[1] and "the library is the fastest" in compile_.reasons[2]
    assert "with n0 = 500" in compile_.report.attachments["autotune.txt"]
    text = compile_.report.wrapper_source
    small, large = text.partition("def call_1")[2].split("def call_2")
    assert "good" in small and "good" not in large and "aten_mm" in large and "> 126)" in large


def test_nothing_happens_without_max_autotune(tuned: Make) -> None:
    compile_ = tuned(FakeTimer(), rivals.good, max_autotune=False)
    compile_(torch.mm, A, B)
    assert compile_.chosen == [] and compile_.autotune.counters.tuned == 0


def test_a_restriction_that_leaves_nothing_is_an_error_that_lists_why(tuned: Make) -> None:
    compile_ = tuned(FakeTimer(), rivals.raises, rivals.wrong, **{"autotune.backends": ("triton",)})
    with pytest.raises(Exception, match="NoValidChoicesError") as caught:
        compile_(torch.mm, A, B)
    for text in ("always raises", "gives other values", "autotune.backends does not have 'library'", "mm(f32[32, 48]"):
        assert text in str(caught.value)


def test_infinite_times_are_no_choices(tuned: Make) -> None:
    options = {"autotune.backends": ("triton",)}
    with pytest.raises(Exception, match="NoValidChoicesError"):
        tuned(FakeTimer(default=inf), rivals.good, **options)(torch.mm, A, B)


def test_a_kind_without_templates_is_an_error_where_the_library_may_not_run(tuned: Make) -> None:
    compile_ = tuned(FakeTimer(), **{"autotune.backends": ("triton",)})
    with pytest.raises(Exception, match="NoValidChoicesError") as caught:
        compile_(torch.mm, A, B)
    assert "no template for it on a cpu device" in str(caught.value)


def test_where_the_library_may_not_run_the_best_of_the_rest_does(tuned: Make) -> None:
    compile_ = tuned(FakeTimer((("library", 1), ("good", 50))), rivals.good, **{"autotune.backends": ("triton",)})
    torch.testing.assert_close(compile_(torch.mm, A, B), A @ B)
    assert compile_.chosen == ["good"]


def test_another_plugins_opinion_comes_in_order_of_names(tuned: Make, tmp_path: Path) -> None:
    class Aardvark:
        @hookimpl
        def litz_select_choice(self, choices: list[Choice]) -> Choice:
            return choices[0]

    autotune = Autotune(FakeTimer((("good", 1),)))
    extra = [CONTRACTIONS, ("aardvark", Aardvark()), ("autotune", autotune), ("rivals", Rivals(rivals.good))]
    compile_ = tuned(None)
    compile_.plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
    compile_(torch.mm, A, B)
    assert autotune.counters.tuned == 0


def test_what_was_measured_under_other_settings_of_torch_does_not_count(tuned: Make) -> None:
    for value, expected in ((True, (1, 0)), (False, (1, 0)), (True, (0, 1))):
        compile_ = tuned(FakeTimer(), rivals.good)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=value):
            compile_(torch.mm, A, B)
        counters = compile_.autotune.counters
        assert (counters.tuned, counters.local_hits) == expected


def _small(wanted: torch.Tensor) -> torch.Tensor:
    return wanted * (1 + 2e-3)


def _last_rows(wanted: torch.Tensor) -> torch.Tensor:
    return wanted.index_fill(-2, torch.arange(wanted.shape[-2] - 4, wanted.shape[-2]), 0)


def _last_column(wanted: torch.Tensor) -> torch.Tensor:
    return wanted.index_fill(-1, torch.tensor(wanted.shape[-1] - 1), 0)


def _one_batch(wanted: torch.Tensor) -> torch.Tensor:
    return wanted.index_fill(0, torch.tensor(wanted.shape[0] - 1), float("nan"))


def _few_signs(wanted: torch.Tensor) -> torch.Tensor:
    changed = wanted.clone()
    changed.view(-1)[::10007] *= -1
    return changed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(50257, 16), (16, 50257), (2, 20011, 16)], ids=str)
@pytest.mark.parametrize("fault", [_last_rows, _last_column, _one_batch])
def test_a_few_wrong_rows_of_many_are_noticed(fault: Any, size: tuple[int, ...], dtype: torch.dtype) -> None:
    """In the norm of the whole, 4 rows of 50257 that are 0 are an error of less than a percent."""
    wanted = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert mismatch([wanted], [wanted]) == ""
    before, given = wanted.clone(), fault(wanted)
    assert "other values" in mismatch([given], [wanted])
    assert torch.equal(wanted, before), "what is right is kept for the next candidate"


@pytest.mark.parametrize("size", [(50257, 16), (300, 200), (7,), (1, 9), (0, 5), ()], ids=str)
def test_what_rounds_otherwise_is_no_other_value(size: tuple[int, ...]) -> None:
    wanted = torch.randn(size, generator=torch.Generator().manual_seed(0))
    assert mismatch([_small(wanted)], [wanted]) == ""
    zeros = torch.zeros(size)
    assert mismatch([zeros], [zeros]) == ""
    # A user that jumps turns a few over.
    signs = torch.ones(400, 4000, dtype=torch.bfloat16)
    assert mismatch([_few_signs(signs)], [signs]) == ""


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_results_of_float8_may_be_rounded_the_other_way(dtype: torch.dtype) -> None:
    exact = torch.randn(640, 96, generator=torch.Generator().manual_seed(0)) * 4
    wanted = exact.to(dtype)
    beside = (exact * (1 + 1e-3 * torch.randn(640, 96))).to(dtype)
    assert not torch.equal(beside.float(), wanted.float())
    assert mismatch([beside], [wanted]) == "" and mismatch([wanted], [wanted]) == ""
    assert "other values" in mismatch([(exact * 1.3).to(dtype)], [wanted])
    wrong = exact.clone()
    wrong[5] = 0
    assert "in a part" in mismatch([wrong.to(dtype)], [wanted])
