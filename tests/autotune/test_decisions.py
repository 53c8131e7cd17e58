"""Decisions measured instead of estimated: a wrong cost model is found out, and a tie stays as it was."""

import json
import threading
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from litz import pipeline
from litz import report as reports
from litz.driver import stages
from litz.driver.builtin import builtin_plugins
from litz.runtime.background import Replaceable, wait
from litz_autotune import Autotune, kept
from litz_autotune.alternatives import rank
from litz_autotune.commands import tune
from litz_autotune.difference import whole
from litz_autotune.duel import Different, Duel, differ
from litz_autotune.judge import judge
from litz_autotune.kept import Tried, Tuned
from litz_plugins import Weighed
from litz_plugins.manager import make_plugins
from support.cost_models import BytesAlone
from support.fake_timer import FakeTimer
from support.own_plugins import CONTRACTIONS

ATTACHMENT = "decisions measured.txt"


class Compiled:
    """A function compiled with the autotuner and a wrong cost model on the CPU. tuned: the record of its decisions."""

    def __init__(self, fn, folder, timer=None, tune=True, extra=None, **options):
        plugins = [CONTRACTIONS, ("autotune", Autotune(timer)), ("cheap", extra or BytesAlone())]
        self.plugins = make_plugins(builtin_plugins(), extra=plugins, entry_points=())
        # Each folder is new: the C++ compiler would be tested again.
        self.options = {"max_autotune": tune, "cache_dir": folder, "cpp.qualify": False, **options}
        self.fn = torch.compile(fn, backend=self._compile, dynamic=False)
        torch._dynamo.reset()

    def _compile(self, gm, inputs):
        return pipeline.compile_backend(gm, inputs, options=self.options, plugins=self.plugins)

    def __call__(self, *args):
        with reports.collect() as collected:
            result = self.fn(*args)
        if collected:
            self.report = collected[-1]
            self.text = self.report.attachments.get(ATTACHMENT, "")
        return result

    def record(self, folder):
        (found,) = [each for each in kept.latest(pipeline.make_compiler(options={"cache_dir": folder}).cache)]
        return found


def again_and_again(x, w):
    """The row is expensive, and read by 256 others."""
    row = (torch.erf(torch.log1p(x.exp())).tanh() + torch.sin(x).exp()).atan()
    return w * row


X, W = torch.rand(1024), torch.rand(256, 1024)


def fastest(*fns):
    """The least seconds that each function takes, in turns: whatever else the machine does slows all of them."""

    def once(fn):
        start = time.perf_counter()
        fn(X, W)
        return time.perf_counter() - start

    return [min(times) for times in zip(*([once(fn) for fn in fns] for _ in range(60)), strict=True)]


def check(result):
    wanted = again_and_again(X.double(), W.double())
    torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-6)


def test_a_cost_model_that_is_wrong_is_found_out_and_the_next_process_knows(tmp_path):
    wrong = Compiled(again_and_again, tmp_path, tune=False)
    check(wrong(X, W))
    assert len(wrong.report.steps) == 1
    state = torch.get_rng_state()
    tuned = Compiled(again_and_again, tmp_path)
    check(tuned(X, W))
    assert torch.equal(torch.get_rng_state(), state)
    quick, slow = fastest(tuned.fn, wrong.fn)
    assert quick < slow  # a sixth where nothing else runs, half on a machine that is busy
    assert len(tuned.report.steps) == 2 and "* inline_pointwise/" in tuned.text
    found = next(d for d in tuned.report.decisions if d.reason.startswith("measured"))
    assert found.chosen == "kept"
    # Another process: nothing is measured, and what was found runs.
    never = FakeTimer(times=None)
    later = Compiled(again_and_again, tmp_path, never)
    check(later(X, W))
    assert not never.calls and "by an earlier process" in later.text
    assert later.report.kernel_sources == tuned.report.kernel_sources
    # As an option it needs no autotuner.
    record = Tuned.from_json(Compiled.record(tuned, tmp_path).to_json())
    by_hand = Compiled(again_and_again, tmp_path, tune=False, prefer=[f"{k}={way}" for k, way in record.ways.items()])
    check(by_hand(X, W))
    assert by_hand.report.kernel_sources == tuned.report.kernel_sources


def eight(x):
    return x + 1, x * 2, x - 3, x * x, x.neg(), x.abs(), x.relu(), x.square() + 1


@pytest.fixture
def refused(tmp_path):
    """The function of eight results as a wrong cost model has it."""
    wrong = Compiled(eight, tmp_path, tune=False, extra=BytesAlone(10.0))
    wrong(torch.ones(300, 301))
    assert len(wrong.report.steps) >= 8
    return wrong


def test_fusions_that_a_wrong_cost_model_refused_are_tried(refused, tmp_path):
    timer = FakeTimer((("otherwise", 50.0),))
    tuned, x = Compiled(eight, tmp_path, timer, extra=BytesAlone(10.0)), torch.randn(300, 301)
    for mine, theirs in zip(tuned(x), eight(x), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert "alike: yes" in tuned.text, "equal decisions are one alternative"
    assert len(tuned.report.steps) <= 4, tuned.text


@pytest.mark.nightly
def test_fusions_that_a_wrong_cost_model_refused_are_made(refused, tmp_path):
    """By the clock. Others may have the processor for as long as a duel takes: once in three times is enough, as
    nothing but a gain that was measured makes a fusion that the estimates refuse."""
    x, texts = torch.randn(300, 301), []
    for attempt in range(3):
        tuned = Compiled(eight, tmp_path / str(attempt), extra=BytesAlone(10.0))
        for mine, theirs in zip(tuned(x), eight(x), strict=True):
            torch.testing.assert_close(mine, theirs)
        texts.append(tuned.text)
        if len(tuned.report.steps) <= 4:
            return
    pytest.fail("\n\n".join(texts))


def test_a_tie_stays_as_it_was(tmp_path):
    plain = Compiled(again_and_again, tmp_path, tune=False)
    plain(X, W)
    timer = FakeTimer(noise=1.0)
    tuned = Compiled(again_and_again, tmp_path, timer)
    check(tuned(X, W))
    assert timer.calls and "no faster" in tuned.text and "*" not in tuned.text
    assert tuned.report.kernel_sources == plain.report.kernel_sources


def test_what_wins_in_parts_and_loses_as_a_whole_is_not_taken(tmp_path):
    class Whole(FakeTimer):
        def time(self, functions, device, seconds, limit_us=float("inf")):
            self.calls.append("duel")
            us = {"as it is": 100.0, "otherwise": 150.0 if len(self.calls) > 2 else 50.0}
            return {name: [us[name]] * 12 for name in functions}

    plain = Compiled(again_and_again, tmp_path, tune=False)
    plain(X, W)
    tuned = Compiled(again_and_again, tmp_path, Whole(run=False))
    check(tuned(X, W))
    assert "loses as a whole" in tuned.text
    assert tuned.report.kernel_sources == plain.report.kernel_sources
    assert not tuned.record(tmp_path).ways


def test_a_variant_that_fails_costs_itself_alone(tmp_path):
    class Broken(FakeTimer):
        def time(self, functions, device, seconds, limit_us=float("inf")):
            raise RuntimeError("no clock here")

    tuned = Compiled(again_and_again, tmp_path, Broken())
    check(tuned(X, W))
    assert "RuntimeError: no clock here" in tuned.text and "*" not in tuned.text


def test_without_time_nothing_is_tried_and_the_next_process_goes_on(tmp_path):
    timer = FakeTimer()
    hurried = Compiled(again_and_again, tmp_path, timer, **{"autotune.budget_s": 0.0})
    check(hurried(X, W))
    assert not timer.calls and "the budget was spent" in hurried.text
    check(Compiled(again_and_again, tmp_path, timer)(X, W))
    assert timer.calls


@pytest.mark.nightly
def test_the_budget_is_in_seconds(tmp_path):
    class Slow(FakeTimer):
        def time(self, functions, device, seconds, limit_us=float("inf")):
            time.sleep(3.0)
            return super().time(functions, device, seconds, limit_us)

    def f(x, w):
        return again_and_again(x, w), again_and_again(x + 1, w), again_and_again(x + 2, w), again_and_again(x + 3, w)

    Compiled(f, tmp_path, tune=False)(X, W)  # its kernels are built
    timer = Slow()
    tuned = Compiled(f, tmp_path, timer, **{"autotune.budget_s": 8.0})
    tuned(X, W)
    assert "the budget was spent" in tuned.text
    # A trial that takes longer than the ones before it is ended by nobody: on a busy machine they do.
    assert tuned.report.stage_seconds["tune"] < 8.0 + 8.0, f"{timer.calls} {tuned.text}"


def test_it_can_be_switched_off(tmp_path):
    timer = FakeTimer()
    check(Compiled(again_and_again, tmp_path, timer, **{"autotune.decisions": False})(X, W))
    assert not timer.calls


@pytest.mark.nightly
def test_in_the_background(tmp_path):
    tuned = Compiled(again_and_again, tmp_path, **{"autotune.background": True})
    check(tuned(X, W))
    assert len(tuned.report.steps) == 1 and "in the background" in str(tuned.report.decisions[-1])
    (slow,) = fastest(tuned.fn)  # while it is measured
    assert wait(300)
    check(tuned.fn(X, W))
    assert fastest(tuned.fn) < [slow]
    assert tuned.record(tmp_path).ways


def test_graphs_that_communicate_are_left_alone(tmp_path):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        timer = FakeTimer()

        def f(x, w):
            return torch.ops._c10d_functional.wait_tensor(
                torch.ops._c10d_functional.all_reduce(again_and_again(x, w), "sum", dist.group.WORLD.group_name)
            )

        tuned = Compiled(f, tmp_path, timer)
        tuned(X, W)
        assert not timer.calls
        assert any("every rank must decide alike" in d.reason for d in tuned.report.decisions)
    finally:
        dist.destroy_process_group()


def test_inputs_that_are_written_are_written_once(tmp_path):
    def f(x, w):
        x.add_(1)
        return again_and_again(x, w)

    x = torch.zeros(1024)
    tuned = Compiled(f, tmp_path, FakeTimer((("otherwise", 50.0),)))
    result = tuned(x, W)
    assert torch.equal(x, torch.ones(1024))
    wanted = again_and_again(torch.ones(1024).double(), W.double())
    torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.ci_cases("0", "37")
@pytest.mark.parametrize("columns", [0, 1, 37])
def test_odd_sizes(columns, tmp_path):
    x, w = torch.rand(columns), torch.rand(5, columns)
    tuned = Compiled(again_and_again, tmp_path, FakeTimer((("otherwise", 50.0),)))
    wanted = again_and_again(x.double(), w.double())
    torch.testing.assert_close(tuned(x, w).double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
def test_training_with_everything_taken_otherwise(tmp_path):
    """Forward and backward are right whatever wins."""
    torch.manual_seed(0)
    x, w = torch.rand(64, requires_grad=True), torch.rand(16, 64, requires_grad=True)
    wanted = torch.autograd.grad(again_and_again(x.double(), w.double()).square().mean(), (x, w))
    tuned = Compiled(lambda x, w: again_and_again(x, w).square().mean(), tmp_path, FakeTimer((("otherwise", 50.0),)))
    found = torch.autograd.grad(tuned(x, w), (x, w))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8)


def test_dynamic_sizes(tmp_path):
    tuned = Compiled(again_and_again, tmp_path, FakeTimer((("otherwise", 50.0),)))
    x, w = torch.rand(40), torch.rand(7, 40)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(w, 1)
    check(tuned(X, W))
    wanted = again_and_again(x.double(), w.double())
    torch.testing.assert_close(tuned(x, w).double(), wanted, rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------------------------------------- its parts


def weighed(key, now, other, chosen="yes"):
    ways = (("no", now if chosen == "no" else other), ("yes", now if chosen == "yes" else other))
    return key, Weighed(f"g:{key}", ways, chosen)


def test_close_calls_come_first_and_those_alike_are_one():
    decisions = dict(
        [
            weighed("fuse/far", 100.0, 10000.0),
            weighed("fuse/ten", 100.0, 1000.0),
            weighed("fuse/close", 100.0, 101.0),
            weighed("fuse/small", 1.0, 1.01),
            *(weighed(f"fuse/layer{n}", 50.0, 60.0) for n in range(3)),
            weighed("fuse/kept", 100.0, 90.0, chosen="no"),
        ]
    )
    found = rank(decisions, 1000.0)
    assert [each.promise for each in found] == sorted((each.promise for each in found), reverse=True)
    by_key = {each.keys[0]: each for each in found}
    assert by_key["fuse/layer0"].keys == ("fuse/layer0", "fuse/layer1", "fuse/layer2")
    assert by_key["fuse/kept"].way == "yes" and by_key["fuse/close"].way == "no"
    assert by_key["fuse/kept"].promise > by_key["fuse/close"].promise > by_key["fuse/layer0"].promise / 3
    assert "fuse/far" not in by_key, "estimates are not off by that much"
    assert by_key["fuse/ten"].promise < by_key["fuse/close"].promise / 100
    assert "fuse/close" not in {key for each in rank(decisions, 1000.0, {"fuse/close"}) for key in each.keys}


def test_nothing_is_expected_of_what_costs_nothing():
    decisions = dict(
        [weighed("fuse/a", 0.0, 0.0), ("fuse/b", Weighed("g:fuse/b", (("no", None), ("yes", 1.0)), "yes"))]
    )
    assert rank(decisions, 100.0) == []


@pytest.mark.parametrize(
    ("first", "second", "handicap", "won", "why"),
    [
        ([100.0] * 12, [90.0] * 12, 0.0, True, "gains 10.0%"),
        ([100.0] * 12, [100.0] * 12, 0.0, False, "no faster"),
        ([100.0] * 12, [98.0] * 12, 0.0, False, "within the noise"),
        ([100.0, 160.0] * 6, [170.0, 90.0] * 6, 0.0, False, "faster in 6 of 12 rounds"),
        ([100.0, 300.0] * 12, [300.0, 60.0] * 12, 0.0, True, "12 runs faster than any other"),
        ([100.0, 900.0] * 6, [90.0, 800.0] * 6, 0.0, True, "faster in 12 of 12 rounds"),
        ([100.0] * 12, [90.0] * 12, 20.0, False, "no faster"),
    ],
)
def test_a_win_is_beyond_noise(first, second, handicap, won, why):
    found = judge(first, second, "cpu", handicap)
    assert found.won is won and why in found.reason


def test_a_win_of_events_is_beyond_their_noise():
    assert judge([100.0] * 12, [98.0] * 12, "cuda").won and not judge([100.0] * 12, [99.5] * 12, "cuda").won
    assert not judge([100.0, 140.0] * 6, [98.0, 138.0] * 6, "cuda").won
    assert not judge([5.0] * 12, [4.6] * 12, "cuda").won, "half a microsecond of a short kernel is nothing"
    assert judge([float("inf")] * 12, [1.0] * 12, "cuda").us is None


def schedule_of(fn, *args):
    """The schedule of a function that returns one tensor."""
    found = []
    compiler = pipeline.make_compiler()

    def keep(graph):
        found.append(pipeline.schedule_graph(graph, compiler))
        return lambda inputs: torch.fx.Interpreter(graph.module).run(*inputs, enable_io_processing=False)

    torch._dynamo.reset()
    torch.compile(fn, backend=lambda gm, inputs: stages.capture(gm, inputs, keep, compiler))(*args)
    return whole(found[0], found[0]).first


def test_a_duel_compares_results_first(tmp_path):
    options = pipeline.make_compiler(options={"cache_dir": tmp_path}).options
    root, other, same = (
        schedule_of(fn, torch.rand(64))
        for fn in (lambda x: x.sqrt() + 1, lambda x: x.sqrt() + 1.5, lambda x: 1 + x.sqrt())
    )
    timer = FakeTimer()
    with pytest.raises(Different, match="relative error"):
        Duel(root, other, timer, options, str(tmp_path)).run({})
    assert not timer.calls
    first, second = Duel(root, same, timer, options, str(tmp_path)).run({})  # the roots of negative numbers are equal
    assert len(first) == len(second) > 0 and timer.calls


def test_what_is_infinite_in_one_only_is_a_difference():
    ones = torch.ones(100)
    assert not differ([ones], [ones]) and not differ([ones * float("nan")], [ones * float("nan")])
    odd = torch.where(torch.arange(100) < 50, float("inf"), ones)
    assert "finite in one only" in differ([odd], [ones]) and not differ([odd], [odd])
    assert "other values" in differ([ones.int()], [ones.int() + 1])


def test_a_record_is_what_was_written():
    tuned = Tuned({"fuse/a+b": "no"}, (Tried("fuse/a+b: no", True, "gains", (2.0, 1.0)),), False, "g on cpu")
    assert Tuned.from_json(tuned.to_json()) == tuned
    for damaged in ("", "[]", "{}", json.dumps({**json.loads(tuned.to_json()), "version": 99})):
        with pytest.raises(ValueError, match=r"record|format|Expecting"):
            Tuned.from_json(damaged)


def test_a_swap_is_between_two_calls():
    entered, leave = threading.Event(), threading.Event()

    def slow(args):
        entered.set()
        assert leave.wait(30)
        return ("old",)

    entry = Replaceable(lambda args: ("first",), lambda stopped: lambda args: ("new",), "g")
    assert entry([]) == ("first",)
    assert wait(30) and entry([]) == ("new",)
    entry = Replaceable(slow, lambda stopped: None, "g")
    found = []
    thread = threading.Thread(target=lambda: found.append(entry([])))
    thread.start()
    assert entered.wait(30)
    entry.entry = lambda args: ("new",)
    leave.set()
    thread.join()
    assert found == [("old",)] and entry([]) == ("new",)


def test_a_job_that_fails_is_a_warning():
    def job(stopped):
        raise RuntimeError("no luck")

    entry = Replaceable(lambda args: ("old",), job, "graph7")
    with pytest.warns(UserWarning, match=r"graph7 as it was first compiled.*RuntimeError: no luck"):
        entry([])
        assert wait(30)
    assert entry([]) == ("old",)


def test_the_command_line_lists_what_was_tried(tmp_path):
    Compiled(again_and_again, tmp_path, FakeTimer((("otherwise", 50.0),)))(X, W)
    shown = CliRunner().invoke(tune, ["list", "--dir", str(tmp_path)]).output
    assert "inference on" in shown and "alternatives tried" in shown and "* inline_pointwise/" in shown


def test_keys_are_found_whatever_the_graph_is_called(tmp_path):
    """The same function again, as another graph of the process."""
    Compiled(again_and_again, tmp_path, FakeTimer((("otherwise", 50.0),)))(X, W)
    assert Path(tmp_path / kept.KIND).is_dir()
    never = FakeTimer()
    other = Compiled(lambda x, w: again_and_again(x, w), tmp_path, never)
    check(other(X, W))
    assert not never.calls
