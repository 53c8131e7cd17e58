"""`litz bisect`: the search, what it says, and what it does where there is nothing to find; the script's runs are made
up. `test_bisect_runs.py` has real ones."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from litz.cli.main import main
from litz.errors import InvalidOptionError, UnknownOptionError
from litz_plugins import Plugins, make_plugins
from litz_tools import bisect_cli
from litz_tools.bisect import bisection as bisection_module
from litz_tools.bisect import side_of
from litz_tools.bisect.bisection import differing_kernels, makers_of
from litz_tools.bisect.judge import clear_gain, time_bar
from litz_tools.bisect.run import Outcome, Taken
from litz_tools.bisect.search import Search
from litz_tools.bisect.sides import package_folders, parse_options
from litz_tools.errors import BisectError

# -------------------------------------------------------------------------------------------------------------- search


def program(costs):
    """A measure: each decision that is left out changes the value (of 100) by its cost; groups of names by theirs."""

    def measure(keys):
        gone = set(keys)
        return 100.0 + sum(cost for names, cost in costs.items() if set(names.split()) <= gone)

    return measure


def search(makers, costs, most=60, hides=True):
    found = Search(100.0, 0.05, program(costs), most, hides)
    result = found.run(makers)
    return (set() if result is None else set(result.group.keys)), found


MAKERS = {"fuse": tuple(f"f{n}" for n in range(9)), "inline": tuple(f"i{n}" for n in range(4)), "order": ("o",)}


@pytest.mark.parametrize("culprit", ["f0", "f4", "f8", "i3", "o"])
def test_the_one_decision_that_harms(culprit):
    found, ran = search(MAKERS, {culprit: -30.0})
    assert found == {culprit} and len(ran.measured) <= 3 + 2 * 4  # three makers, then halves of nine


def test_harm_that_hides_among_what_helps():
    costs = {f"f{n}": 10.0 for n in range(9)} | {"f5": -20.0, "i0": 3.0, "o": 1.0}
    found, _ = search(MAKERS, costs)
    assert found == {"f5"}


def test_two_that_harm_only_together():
    found, _ = search(MAKERS, {"f2 f7": -30.0})
    assert found == {"f2", "f7"}


def test_two_makers_that_harm_only_together():
    found, _ = search(MAKERS, {"f2 i1": -30.0})
    assert found == {"f2", "i1"}


def test_of_two_that_harm_the_worse():
    found, _ = search(MAKERS, {"f2": -10.0, "i1": -40.0})
    assert found == {"i1"}


@pytest.mark.parametrize("costs", [{}, {"f2": -4.0}, {"f1": 30.0}])
def test_nothing_to_find(costs):
    assert search(MAKERS, costs)[0] == set()


def test_runs_are_limited():
    found, ran = search(MAKERS, {"f2 f7": -30.0}, most=5)
    assert len(ran.measured) == 5 and ran.exhausted and found == set(MAKERS["fuse"])  # as far as it got
    assert search(MAKERS, {}, most=2)[0] == set()


def test_where_nothing_hides_good_halves_are_not_looked_at():
    _, ran = search(MAKERS, {}, hides=False)
    assert len(ran.measured) == 4  # each maker alone, and all


def test_where_nothing_hides_the_first_that_gains_is_enough():
    found, ran = search(MAKERS, {"f2": -30.0}, hides=False)
    assert found == {"f2"} and not any("i0" in each.group.keys for each in ran.measured)


def test_a_run_that_fails_is_no_gain():
    def measure(keys):
        return math.inf if "f0" in keys else 60.0 if "f1" in keys else 100.0

    result = Search(100.0, 0.05, measure, 60).run({"fuse": ("f0", "f1", "f2", "f3")})
    assert result is not None and result.group.keys == ("f1",)


def test_nothing_is_measured_twice():
    _, ran = search(MAKERS, {"f2 i1": -30.0})
    seen = [frozenset(each.group.keys) for each in ran.measured]
    assert len(seen) == len(set(seen))


# ------------------------------------------------------------------------------------------------------------ outcomes


def outcome(ms=10.0, taken=("g:fuse/a+b", "g:fuse/c+d", "g:lower/exp", "g:order_steps"), calls=30, **more):
    times = {"f": (5.0,) * 2 + (ms / 1e3,) * (calls - 2)}
    return Outcome(times, taken=tuple(Taken(key) for key in taken), **more)


def test_the_time_of_a_round_has_every_function_by_its_share_of_calls():
    two = Outcome({"f": (9.0,) + (0.01,) * 39, "backward": (9.0,) + (0.02,) * 19, "once": (9.0,)})
    assert two.seconds == pytest.approx(0.01 + 0.02 / 2) and two.enough
    some = Outcome({"f": (0.01,) * 20, "backward": (0.02,) * 20}, {"f": 40, "backward": 20})  # 20 calls are profiled
    assert some.seconds == pytest.approx(0.01 + 0.02 / 2)
    assert not Outcome({"f": (1.0,) * 6}).enough and not Outcome().enough


def test_the_spread_is_that_of_a_median():
    times = tuple(0.01 + 0.001 * (n % 3) for n in range(42))
    assert 0 < Outcome({"f": times}).spread < 0.05 and outcome().spread == 0


def bar(base, other=(10.0,)):
    return time_bar([outcome(ms) for ms in base], [outcome(ms) for ms in other])


def test_the_bar_is_twice_the_noise():
    found = bar([10.0, 11.0, 10.0], [9.0])
    assert found.base == pytest.approx(0.01) and found.noise == pytest.approx(0.1)
    assert found.least == pytest.approx(0.2) and not found.differs and not found.too_noisy
    assert bar([10.0, 10.0]).least == 0.02
    assert bar([10.0, 10.0], [5.0, 9.0]).noise == pytest.approx(0.4), "the other side's runs are equal runs too"


def test_a_difference_counts_only_beyond_the_noise():
    assert bar([10.0, 13.0], [12.0]).too_noisy
    assert bar([10.0, 15.0], [1.0]).differs, "so much faster, whatever the noise"
    assert not bar([1.0, 86.0, 5.0], [0.06]).differs and bar([1.0, 86.0, 5.0], [0.06]).too_noisy
    assert not bar([1.0, 86.0, 86.0], [1.0]).differs


@pytest.mark.parametrize(
    ("slower", "faster", "clear"),
    [
        ([10.0, 11.0, 10.0], [5.0, 5.0, 6.0], True),
        ([10.0, 86.0, 10.0], [5.0, 5.0, 6.0], False),
        ([10.0, 10.0, 10.0], [5.0, 12.0, 5.0], False),
        ([10.0, 10.0, 10.0], [9.9, 9.9, 9.9], False),
        ([10.0, 10.0, 10.0], [5.0, float("inf"), 5.0], False),
        ([], [], False),
    ],
)
def test_a_gain_is_clear_where_equal_runs_are_nearer_to_each_other(slower, faster, clear):
    assert clear_gain(slower, faster) == clear


def test_decisions_are_those_of_one_side_the_doubtful_first():
    taken = (
        Taken("g:fuse", ""),
        Taken("g:fuse/a", gain=0.5),
        Taken("g:fuse/b", gain=0.1),
        Taken("g:fuse/c"),
        Taken("g:order_steps"),
        Taken("h:order_steps"),
        Taken("g:lower/x"),
    )
    found = makers_of(Outcome(taken=taken), Outcome(taken=(Taken("g:lower/x"), Taken("h:order_steps"))))
    assert found == {"fuse": ("g:fuse/b", "g:fuse/a", "g:fuse/c"), "order_steps": ("g:order_steps",)}


def test_kernels_that_differ():
    a = outcome(kernels={"g:kernel0": ("add", ("op1",), "1"), "g:kernel1": ("mul", ("op2",), "2")})
    b = outcome(kernels={"g:kernel0": ("add", ("op1",), "1"), "g:kernel5": ("mul", ("op2",), "3")})
    assert differing_kernels(a, b) == ("g:kernel1 (mul)",) and differing_kernels(a, a) == ()


# --------------------------------------------------------------------------------------------------------------- sides


def test_options_as_text():
    text = "fusion=false, sizes=64;128, cpp.march=native, autotune.budget_s=1.5, calibration=None"
    assert parse_options(text) == {
        "fusion": False,
        "sizes": (64, 128),
        "cpp.march": "native",
        "autotune.budget_s": 1.5,
        "calibration": None,
    }
    with pytest.raises(BisectError, match="'=3' is not an option"):
        parse_options("=3")


def test_what_to_bisect_against():
    plugins = make_plugins(entry_points=[])
    assert side_of("eager", plugins).backend == "eager" and side_of("inductor", plugins).backend == "inductor"
    assert side_of("fusion=false", plugins).options == {"fusion": False}
    with pytest.raises(UnknownOptionError, match="did you mean 'fusion'"):
        side_of("fusoin=false", plugins)
    with pytest.raises(InvalidOptionError, match="threads"):
        side_of("threads=0", plugins)
    with pytest.raises(BisectError, match=r"nothing called 'no-such-commit'.*\n.*\n.*eager, inductor"):
        side_of("no-such-commit", plugins)


def test_a_checkouts_packages(tmp_path):
    for name in ("core/src/litz", "plugins/src/litz_plugins", "docs"):
        (tmp_path / name).mkdir(parents=True)
    assert package_folders(tmp_path) == [tmp_path / "core/src", tmp_path / "plugins/src"]


# --------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def litz(monkeypatch, tmp_path):
    """Runs the command on made-up runs: `litz(answer, ...)`, where answer(side, keys, values) is an Outcome."""
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    script = tmp_path / "script.py"
    script.write_text("")

    def run(answer, *arguments):
        class Fake:
            def __init__(self, script, settings, folder):
                self.count = 0

            def run(self, side, veto=(), values=""):
                self.count += 1
                return answer(side, set(veto), values)

        monkeypatch.setattr(bisection_module, "Runner", Fake)
        result = CliRunner().invoke(main, ["bisect", *arguments, str(script)])
        assert max(map(len, result.stdout.splitlines()), default=0) <= 80 or "veto" in result.stdout
        return result

    return run


def slow(culprit):
    """Runs of 10 ms, of 5 without one decision; eager takes 6."""

    def answer(side, veto, values):
        if side.backend == "eager":
            return outcome(6.0, taken=())
        return outcome(5.0 if veto & culprit else 10.0)

    return answer


def test_what_is_at_fault_is_printed_with_its_times(litz):
    result = litz(slow({"g:fuse/c+d", "fuse"}), "--against", "eager")
    assert result.exit_code == 0, result.output
    for part in ("10 ms", "1.67 times as fast", "at fault: fuse, 1 decision", "g:fuse/c+d", "2.00 times as fast"):
        assert part in result.stdout
    assert "options={\"veto\": ['g:fuse/c+d']}" in result.stdout


def test_as_json(litz):
    found = json.loads(litz(slow({"g:lower/exp", "lower"}), "--against", "eager", "--json").stdout)
    assert [each["key"] for each in found["found"]] == ["g:lower/exp"] and found["confirmed"] and found["why"] == ""
    assert found["litz"]["seconds"] == 0.01 and found["with_it"] == [0.01] * 3 and found["without_it"] == [0.005] * 3


def test_no_difference(litz):
    result = litz(lambda side, veto, values: outcome(10.0), "--against", "inductor")
    assert result.exit_code == 0 and "no difference found: litz is no slower than inductor" in result.stdout


def test_no_decision_at_fault(litz):
    kernels = {"g:kernel0": ("add + mul", ("op1",), "1")}

    def answer(side, veto, values):
        if "fusion" in side.options:
            return outcome(5.0, kernels={"g:kernel0": ("add + mul", ("op1",), "2")}, taken=())
        return outcome(10.0, kernels=kernels)

    result = litz(answer, "--against", "fusion=false")
    assert "no decision is at fault" in result.stdout and "g:kernel0 (add + mul)" in result.stdout


def test_too_few_runs(litz):
    assert "1 runs of the search; --runs" in litz(slow(set()), "--against", "eager", "--runs", "1").stdout


def test_a_plugin_at_fault(litz, monkeypatch):
    def answer(side, veto, values):
        if side.backend == "inductor":
            return outcome(5.0)
        return outcome(5.0 if "bad" in side.options.get("disable_plugins", ()) else 10.0)

    monkeypatch.setattr(Plugins, "names", lambda self: ("core", "bad", "good"))

    result = litz(answer, "--against", "inductor")
    assert "at fault: plugins, 1 decision" in result.stdout and "LITZ_DISABLE_PLUGINS=bad" in result.stdout


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (outcome(failure="ValueError: no", log="a\nb"), r"does not run with litz: ValueError: no(.|\n)*--wrong"),
        (outcome(failure="it ran for more than 600 s"), "ran for more than 600 s"),
        (Outcome(), r'calls nothing that it compiled(.|\n)*backend="litz"'),
        (outcome(0.0), r"no kernel ran on a GPU(.|\n)*--clock wall"),
        (outcome(calls=6), r"too few calls to be timed \(f 6\)(.|\n)*--repeat 20"),
    ],
)
def test_what_cannot_be_measured(litz, one, message):
    result = litz(lambda side, veto, values: one, "--against", "eager")
    assert result.exit_code == 1
    assert re.search(message, result.output), result.output


def test_the_other_side_fails(litz):
    def answer(side, veto, values):
        return outcome(failure="no inductor") if side.backend == "inductor" else outcome()

    result = litz(answer, "--against", "inductor")
    assert result.exit_code == 1 and "does not run with inductor: no inductor" in result.output


def noisy(litz, answer, *arguments):
    result = litz(answer, "--against", "eager", *arguments)
    assert result.exit_code == 3, result.output
    assert "too noisy to say" in result.output and "at fault" not in result.output and "veto" not in result.output
    assert "to make the machine quiet" in result.output and "taskset" in result.output
    return result.output


def test_two_sides_within_the_noise(litz):
    times = itertools.cycle((10.0, 10.0, 14.0))
    noisy(litz, lambda side, veto, values: outcome(next(times)))


def test_runs_that_differ_86_times_name_nobody(litz):
    """litz takes 1 ms or 86 ms, whatever is left out; eager is 77 times as fast as the slow runs."""
    times = itertools.cycle((86.0, 86.0, 1.0, 86.0, 1.0))
    noisy(litz, lambda side, veto, values: outcome(1.1 if side.backend == "eager" else next(times)))


def test_noise_that_begins_during_the_search_names_nobody(litz):
    times = itertools.chain((10.0,) * 3, itertools.cycle((10.0, 86.0, 1.0, 1.0, 40.0)))
    noisy(litz, lambda side, veto, values: outcome(6.0 if side.backend == "eager" else next(times)))


def test_one_lucky_run_is_no_gain(litz):
    """Without `order_steps` one of three runs is fast."""
    times = itertools.cycle((5.0, 10.0, 10.0))

    def answer(side, veto, values):
        if side.backend == "eager":
            return outcome(6.0, taken=())
        return outcome(next(times) if veto & {"order_steps", "g:order_steps"} else 10.0)

    assert "search ended" not in noisy(litz, answer)


def test_a_gain_that_is_gone_names_nobody(litz):
    calls = []

    def answer(side, veto, values):
        calls.append(veto)
        if side.backend == "eager":
            return outcome(6.0, taken=())
        return outcome(5.0 if veto & {"order_steps"} and len(calls) < 18 else 10.0)

    assert "the search ended at order_steps, 1 decision; with it 10 ms" in noisy(litz, answer)
    calls.clear()
    result = litz(answer, "--against", "eager", "--json")
    found = json.loads(result.stdout)
    assert (found["why"], found["found"], found["confirmed"]) == ("too noisy", [], False) and result.exit_code == 3
    assert found["suspected"] == ["g:order_steps"]


def test_the_line_of_progress(litz, monkeypatch):
    class Seen:
        def __init__(self, text):
            self.text, self.ended = text, False

        def stop(self):
            self.ended = True

    seen, lines = [], []
    monkeypatch.setattr(bisect_cli, "can_be_seen", lambda rank: True)
    monkeypatch.setattr(bisect_cli.Shown, "on_this_terminal", lambda text: seen.append(Seen(text)) or seen[0])
    inner = slow({"g:fuse/c+d", "fuse"})

    def answer(side, veto, values):
        lines.append(seen[0].text())
        return inner(side, veto, values)

    assert litz(answer, "--against", "eager", "--runs", "30").exit_code == 0 and seen[0].ended
    assert lines[0].startswith("litz bisect: run 1 of 42 at most, litz, 0 s") and ", eager, " in lines[1]
    assert "run 3 of" in lines[2] and "the last: 6 ms" in lines[2]
    assert any("without 2 decisions of fuse" in line for line in lines)


# wrong


def differs(ratio, failure=""):
    row = {"site": "f", "call": 0, "output": 1, "difference": ratio * 1e-4, "allowed": 1e-4, "ratio": ratio}
    return replace(outcome(), differences=(row,), failure=failure)


def wrong(culprit):
    def answer(side, veto, values):
        if side.backend == "eager":
            assert values == "write"
            return outcome(taken=())
        assert values == "read" and side.options["fallback_random"]
        return differs(0.1 if veto & culprit else 50.0)

    return answer


def test_what_is_wrong_is_found(litz):
    result = litz(wrong({"g:lower/exp", "lower"}), "--wrong", "--against", "eager")
    assert result.exit_code == 0, result.output
    assert "0.005, 0.0001 allowed: call 1 of f, output 1" in result.stdout
    assert (
        "at fault: lower, 1 decision" in result.stdout and "with it the worst difference is 50 times" in result.stdout
    )


def test_nothing_is_wrong(litz):
    result = litz(lambda side, veto, values: differs(0.5), "--wrong", "--against", "eager")
    assert "no difference found" in result.stdout


def test_wrong_whatever_is_decided(litz):
    result = litz(wrong(set()), "--wrong", "--against", "eager")
    assert "no decision is at fault: the script is right without none" in result.stdout


def test_a_compile_that_fails_is_bisected_by_makers(litz):
    def answer(side, veto, values):
        if side.backend == "eager" or "fuse" in veto:
            return outcome(taken=())
        return Outcome(failure="CompileError: graph0")

    result = litz(answer, "--wrong", "--against", "eager")
    assert "at fault: fuse, 1 decision" in result.stdout and "options={\"veto\": ['fuse']}" in result.stdout


def test_wrong_on_both_sides(litz):
    def answer(side, veto, values):
        return outcome() if side.backend == "eager" else differs(20.0)

    result = litz(answer, "--wrong", "--against", "inductor")
    assert result.exit_code == 1 and "wrong with inductor as well: 20 times" in result.output


def test_a_script_that_is_not_there(litz, tmp_path):
    result = CliRunner().invoke(main, ["bisect", "--against", "eager", str(tmp_path / "no.py")])
    assert result.exit_code == 2 and "there is no file" in result.output
