"""The conformance tool itself: what it takes for equal, and that no case can end the run."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="torch.testing's operator table needs it")

from litz_testing.conformance import known, results, workers
from litz_testing.conformance.call import clones, make_call
from litz_testing.conformance.cases import Job, jobs, samples, spread
from litz_testing.conformance.check import Outcome, Way
from litz_testing.conformance.compare import aliases, differences
from litz_testing.conformance.workers import Settings, run_job, run_jobs


def test_equal_results_have_no_differences() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf")])
    assert differences([x, 3, None], [x.clone(), 3, None]) == []


@pytest.mark.parametrize(
    "got, want, word",
    [
        (torch.zeros(2), torch.ones(2), "element 0"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "dtype"),
        (torch.zeros(2), torch.zeros(1, 2), "shape"),
        (torch.zeros(2, 3), torch.zeros(3, 2).t(), "strides"),
        (torch.tensor([float("nan")]), torch.tensor([1.0]), "nan"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2"),
        (3, 4, "eager's is 4"),
    ],
)
def test_a_difference_is_found(got: Any, want: Any, word: str) -> None:
    exact = [want.double() if isinstance(want, torch.Tensor) and want.dtype.is_floating_point else want]
    found = differences([got], [want], lambda: exact)
    assert len(found) == 1 and word in found[0]


def test_what_is_known_of_strides_excuses_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing with a torch that has it right."""

    def reason(other: list[float]) -> str | None:
        found = differences([torch.tensor([other] * 3)], [torch.tensor([[1.0, 2.0]] * 3).t().contiguous().t()])
        return known.reason_of(Outcome("fft.rfft/float32/0/static/run", "wrong", "; ".join(found)))

    monkeypatch.setattr(known, "TORCH", (2, 11))
    assert "_fft_r2c" in str(reason([1.0, 2.0]))
    assert reason([1.0, 3.0]) is None
    monkeypatch.setattr(known, "TORCH", (2, 12))
    assert reason([1.0, 2.0]) is None


def test_a_result_nearer_to_the_truth_than_eagers_is_right() -> None:
    exact = torch.tensor([100.0], dtype=torch.float64)
    eager, better = torch.tensor([101.0], dtype=torch.float16), torch.tensor([100.0], dtype=torch.float16)
    assert differences([better], [eager], lambda: [exact]) == []
    assert differences([eager], [better], lambda: [exact]) != []


@pytest.mark.parametrize(
    "got, want",
    [
        (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2.0**-23])),
        (torch.tensor([1.0 + 0.0j]), torch.tensor([complex(1.0, -0.0)])),
        (torch.tensor([0.0, 1.0]).to_sparse(), torch.tensor([0.0, 1.0 + 2.0**-23]).to_sparse()),
        (1.0, 1.0 + 2.0**-52),
    ],
)
def test_where_bits_count_the_last_one_does(got: Any, want: Any) -> None:
    assert differences([got], [want]) == []
    assert len(differences([got], [want], bits=True)) == 1
    nan = torch.tensor([float("nan"), -0.0])
    assert differences([want, nan], [want, nan.clone()], bits=True) == []


def test_random_numbers_count_where_bits_do() -> None:
    job = Job("rand_like", torch.float32)
    found = [next(run_job(job, Settings(modes=("run",), way=Way(bits=bits)))) for bits in (False, True)]
    assert [outcome.status for outcome in found] == ["passed", "wrong"]  # litz draws other numbers than eager


def test_aliases_name_the_first_owner() -> None:
    x, y = torch.zeros(4), torch.zeros(4)
    assert aliases([x], [x[1:], y, y.view(2, 2), 3]) == ["input 0", "output 1", "output 1", "nothing"]


def test_clones_lie_as_the_originals_do_and_share_memory_as_they_do() -> None:
    base = torch.arange(12.0)
    left, right = base[1:7].view(2, 3).t(), base[2:4]
    a, b = clones([left, right])
    assert a.stride() == left.stride() and a.storage_offset() == 1
    b.zero_()
    assert a.flatten().tolist() != left.flatten().tolist()


def test_a_sample_becomes_a_function_with_its_arguments_written_out() -> None:
    sample = samples(Job("sum", torch.float32), 200, False)[1]
    call = make_call(torch.sum, sample)
    assert call.text.startswith("def call(t0):\n    return op(t0")
    torch.testing.assert_close(call.function(*call.tensors), torch.sum(sample.input, *sample.args, **sample.kwargs))


def test_samples_are_spread_over_all() -> None:
    assert spread(10, 3) == [0, 4, 9]
    assert spread(2, 5) == [0, 1]


def test_a_job_passes(tmp_path: Path) -> None:
    outcomes = list(run_job(Job("add", torch.float32), Settings(samples=1)))
    assert [outcome.status for outcome in outcomes] == ["passed"] * 4  # static and dynamic, run and train
    assert {outcome.how for outcome in outcomes} == {"native"}
    path = tmp_path / "results.json"
    results.write(path, outcomes, {})
    assert results.read(path) == outcomes
    assert "| float32 | 4 | 0 |" in results.table(outcomes)


def _crash(gm: Any, inputs: Sequence[Any]) -> Any:
    os._exit(3)


def _hang(gm: Any, inputs: Sequence[Any]) -> Any:
    time.sleep(60)


def _wrong(gm: Any, inputs: Sequence[Any]) -> Any:
    return lambda *args: tuple(result + 1 for result in gm(*args))


@pytest.mark.parametrize("backend, status", [(_crash, "error"), (_hang, "timeout"), (_wrong, "wrong")])
def test_a_case_that_fails_is_an_outcome_and_the_run_goes_on(backend: Any, status: str) -> None:
    before = torch.get_num_threads()
    seconds = 2.0 if backend is _hang else 60.0  # a busy machine takes its time for the others
    dynamic = (False,) if backend is _hang else (False, True)  # each case takes its seconds, in which nothing happens
    settings = Settings(samples=1, dynamic=dynamic, modes=("run",), way=Way(backend), seconds=seconds)
    outcomes = list(run_jobs(jobs((torch.float32,), "^neg$"), settings))
    torch.set_num_threads(before)
    # A new process takes over after each.
    modes = ("dynamic", "static")[-len(dynamic) :]
    assert sorted(outcome.case for outcome in outcomes) == [f"neg/float32/0/{mode}/run" for mode in modes]
    assert {outcome.status for outcome in outcomes} == {status}


def test_ratio_counts_what_the_peer_passes() -> None:
    ours = [Outcome("a", "passed"), Outcome("b", "wrong"), Outcome("c", "error")]
    peers = [Outcome("a", "passed"), Outcome("b", "passed"), Outcome("c", "error")]
    assert "1 of the 2" in results.ratio(ours, peers)
    assert results.behind(ours, peers) == ["b"]


@pytest.mark.nightly
def test_workers_for_a_gpu_are_forked_from_a_process_that_has_not_looked_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = workers._context
    monkeypatch.setattr(workers, "_context", lambda devices: original({"cuda"}))
    found = list(run_jobs([Job("add", torch.float32)], Settings(samples=1, dynamic=(False,), modes=("run",))))
    assert [outcome.status for outcome in found] == ["passed"]
