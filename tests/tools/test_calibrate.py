"""`litz calibrate` measures the device that is here, and writes a file that a compile goes by. Clocks are fakes."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.cli.main import main
from litz.pipeline import generate, make_compiler, plan_schedule, schedule_only
from litz.target import data, figure_of, load_calibration, target_named, target_of
from litz_tools import steady, trials
from litz_tools.device_file import Measured, rewritten, speeds_of, write_file
from litz_tools.errors import MeasuringError
from litz_tools.speeds import check_present
from litz_tools.trial_programs import PROGRAMS, Program
from litz_tools.trials import TRIALS, Trial, choose, run_trial

CPU = torch.device("cpu")


def calibrate(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments)])


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs the tests is busy with them."""
    monkeypatch.setattr(steady, "check_idle", lambda device: None)
    monkeypatch.setattr(steady.Others, "share", lambda self: 0.0)


def test_measuring_this_processor(tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "MOST_SPREAD", math.inf)
    monkeypatch.setattr(steady, "BOUNDS", {})
    out = tmp_path / "figures"
    done = calibrate("cpu", "--out", out, "--quick")
    assert done.exit_code == 0 and f"LITZ_CALIBRATION={out / 'cpu.toml'}" in done.output
    figures = load_calibration(out).figures("cpu", "")
    assert {"bandwidth_gb_s", "launch_us", "matrix_tflops.fp32"} <= set(figures)
    target = target_of("cpu", {"calibration": out})
    assert target.bandwidth == figures["bandwidth_gb_s"] * 1e3 and not target.rough
    said = tomllib.loads((out / "cpu.toml").read_text())["measured"]
    assert said["command"] == "litz calibrate cpu" and "threads" in said["source"] and "5 rounds" in said["source"]


GOOD = {"bandwidth_gb_s": 20.0, "launch_us": 2.0, "matrix_tflops.fp32": 0.1}
REFUSALS = {
    "slow": ([{**GOOD, "bandwidth_gb_s": 1.4}], "no cpu device has bandwidth_gb_s = 1.4"),
    "fast": ([{**GOOD, "matrix_tflops.fp32": 1e6}], "no cpu device has matrix_tflops.fp32 = 1e+06"),
    "noisy": ([{**GOOD, "launch_us": float(us)} for us in (1, 2, 3, 4, 5)], "launch_us was 2 to 4"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_no_nonsense_is_written(name: str, tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, said = REFUSALS[name]
    given = itertools.cycle(rounds)
    monkeypatch.setattr("litz_tools.speeds.measure_speeds", lambda device, quick: next(given))
    done = calibrate("cpu", "--out", tmp_path / "c.toml", "--quick")
    assert done.exit_code == 1 and said in done.output and "nothing was written" in done.output
    assert not (tmp_path / "c.toml").exists()


def test_one_disturbed_round_is_left_out() -> None:
    rounds = [{"launch_us": value} for value in (2.0, 2.02, 40.0, 2.04, 2.0)]
    found, spread = steady.steady_figures(rounds, CPU, 2)
    assert found == {"launch_us": 2.02} and spread == pytest.approx(0.04 / 2.02)


def test_a_busy_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others took 30 of 100 processor seconds: before anything is measured, and again while it is measured."""
    times = itertools.cycle([steady.Work(0.0, 0.0, 0.0), steady.Work(50.0, 20.0, 100.0)])
    monkeypatch.setattr(steady.Others, "work", staticmethod(lambda: next(times)), raising=False)
    monkeypatch.setattr(steady.Others.__init__, "__defaults__", (lambda: next(times),))
    done = calibrate("cpu", "--out", tmp_path / "c.toml", "--quick")
    assert done.exit_code == 1 and "other programs took 30% of the processors' time" in done.output
    assert "`top`" in done.output and not (tmp_path / "c.toml").exists()
    monkeypatch.setattr(steady, "check_idle", lambda device: None)
    monkeypatch.setattr("litz_tools.speeds.measure_speeds", lambda device, quick: GOOD)
    done = calibrate("cpu", "--out", tmp_path / "c.toml", "--quick")
    assert done.exit_code == 1 and "30%" in done.output and not (tmp_path / "c.toml").exists()


def test_the_work_of_others_is_read(tmp_path: Path) -> None:
    """The machine's processors worked at least as long as this process, and a system that says nothing refuses none."""
    others = steady.Others()
    if others.begun is None:
        pytest.skip("no /proc/stat here")
    sum(range(1_000_000))
    now = steady.Work.now()
    assert now is not None and now.all >= others.begun.all > 0 and now.own > others.begun.own
    assert 0.0 <= others.share() <= 1.0
    assert steady.Work.now(tmp_path / "nothing") is None and steady.Others(lambda: None).share() == 0.0


def test_a_trial_that_others_disturb_decides_nothing(
    tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trials.Found("cpp.row_bytes", 1, 2, {1: {"p": 2.0}, 2: {"p": 1.0}}, others=0.5)
    monkeypatch.setattr("litz_tools.speeds.measure_speeds", lambda device, quick: GOOD)
    monkeypatch.setattr(trials, "run_trials", lambda *given: [found])
    done = calibrate("cpu", "--out", tmp_path / "c.toml")
    assert "1 stays: other programs took 50%" in done.output
    assert "cpp.row_bytes" not in (tmp_path / "c.toml").read_text()


@pytest.mark.parametrize(("other", "sure"), [([1, 1, 1, 1, 9], True), ([1, 1, 1, 9, 9], False)])
def test_a_value_wins_every_round_but_one(other: list[float], sure: bool) -> None:
    assert trials.wins({"p": [2.0] * 5}, {"p": other}) is sure


def test_commands_of_other_plugins_are_kinds_of_calibrate() -> None:
    assert "collectives" in calibrate("--help").output.split("Commands:")[1]
    assert "Start it on all GPUs of one machine" in calibrate("collectives", "--help").output
    assert "No such command 'nothing'" in calibrate("nothing").output


def test_calibrate_says_which_dist_has_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITZ_DISABLE_PLUGINS", "collectives")
    done = calibrate("collectives")
    assert done.exit_code == 2 and "pip install ./plugins_collectives" in done.output


def test_what_a_trial_finds_is_in_the_file(tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A threshold that another value beats, one that nothing beats, and one for which no time is left."""
    faster = {"cpp.row_bytes": 65536, "cpp.most_columns": 4096}
    present = {name: figure_of(target_of("cpu"), name) for name in faster}
    monkeypatch.setitem(trials.TRIALS, "cpu", tuple(Trial(name, (16,), ("long softmax",)) for name in faster))

    def compiled(program: Program, device: torch.device, file: Path) -> tuple[Callable[[], object], Any]:
        (value,) = (value for name, value in load_calibration(file).figures("cpu", "").items())
        return (lambda: value), value

    def clock(run: Callable[[], object], target: object) -> float:
        return 0.5 if run() == 16 and present["cpp.row_bytes"] == 65536 else 1.0

    monkeypatch.setattr(trials, "compiled", compiled)
    monkeypatch.setattr(trials, "row_seconds", lambda run, target, seconds: clock(run, target))
    monkeypatch.setattr("litz_tools.speeds.measure_speeds", lambda device, quick: {"launch_us": 2.0})
    done = calibrate("cpu", "--out", tmp_path / "c.toml", "--only", "row_bytes", "--json")
    assert json.loads(done.stdout)["figures"] == {"launch_us": 2.0, "cpp.row_bytes": 16}
    assert figure_of(target_of("cpu", {"calibration": tmp_path / "c.toml"}), "cpp.row_bytes") == 16
    late = calibrate("cpu", "--out", tmp_path / "c.toml", "--seconds", "0")
    assert late.output.count("no time was left") == 2
    assert load_calibration(tmp_path / "c.toml").figures("cpu", "")["figures.cpp.row_bytes"] == 16, "it stays"


@pytest.mark.parametrize(("other", "value"), [(0.9, 16), (0.98, 8), (1.2, 8)])
def test_only_what_is_surely_faster_is_taken(other: float, value: int) -> None:
    times = {8: {"a": 1.0, "b": 2.0}, 16: {"a": other, "b": 2 * other}}
    assert choose(8, times) == value


def test_nothing_is_timed_where_all_values_make_the_same_kernels() -> None:
    def never(run: Callable[[], object], target: object) -> float:
        raise AssertionError("there is nothing to time")

    trial = Trial("cpp.row_bytes", (1, 2), ("long softmax",))
    found = run_trial(trial, CPU, build=lambda program, device, file: (lambda: None, "text"), clock=never)
    assert found.value == found.before == figure_of(target_of(CPU), "cpp.row_bytes") and not found.seconds


def test_other_tables_stay_as_they_are(tmp_path: Path) -> None:
    old = '# mine\ntype = "cpu"\n\n[measured]\nlaunch_us = 9\n\n[cpp.row_bytes]\n# by hand\nvalue = 3\n'
    new = rewritten(old, [speeds_of({"launch_us": 1.5, "matrix_tflops.fp32": 2.0}, "s", "d", "c")])
    assert new.startswith("# mine\n") and "# by hand" in new and "launch_us = 9" not in new
    (tmp_path / "c.toml").write_text(new)
    figures = {"launch_us": 1.5, "matrix_tflops.fp32": 2.0, "figures.cpp.row_bytes": 3}
    assert load_calibration(tmp_path / "c.toml").figures("cpu", "") == figures


def test_a_data_file_of_litz_is_rewritten(tmp_path: Path) -> None:
    """What `litz calibrate --out core/src/litz/target/figures/h100.toml` does, twice."""
    path = tmp_path / "h100.toml"
    path.write_text(data.folder_of(data.CORE).joinpath("h100.toml").read_text())
    before = tomllib.loads(path.read_text())
    for value in (12344, 12345):
        found = Measured("tilings.two_loads_elements", {"value": value}, 'a "test"', "2026", "c")
        write_file(path, "cuda", "", [found])
    after = tomllib.loads(path.read_text())
    entry = {"value": 12345, "source": 'a "test"', "date": "2026", "command": "c"}
    assert after.pop("tilings") == {"two_loads_elements": entry}
    assert after == before


def test_speeds_in_a_data_file_count_for_that_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"bandwidth_gb_s": 3000.0, "source": "a test"}
    read = data.read

    def with_measured(name: str, package: str = data.CORE) -> Any:
        return {**read(name, package), **({"measured": measured} if (name, package) == ("h100", data.CORE) else {})}

    monkeypatch.setattr(data, "read", with_measured)
    data.device_file.cache_clear()
    try:
        assert target_named("H100").bandwidth == 3000e3 and target_named("H200").bandwidth == 4800e3
    finally:
        data.device_file.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_measuring_what_is_not_there(tmp_path: Path) -> None:
    done = calibrate("cuda", "--out", tmp_path / "x.toml")
    assert done.exit_code == 1 and "no CUDA device" in done.output and "litz calibrate cpu" in done.output
    assert not (tmp_path / "x.toml").exists()
    with pytest.raises(MeasuringError, match="only cpu and cuda"):
        check_present(torch.device("meta"))


IN_CI = ("cpp.row_bytes", "tilings.short_elements")
ALL = [
    pytest.param(type, trial, id=trial.figure, marks=() if trial.figure in IN_CI else pytest.mark.thorough)
    for type, found in TRIALS.items()
    for trial in found
]


@pytest.mark.parametrize(("type", "trial"), ALL)
def test_a_trial_shows_its_figure(type: str, trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some value of a figure makes other kernels of the trial's programs than the present one."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 32)
    before = figure_of(target_of(type), trial.figure)
    assert before is not None and before not in trial.values
    texts = []
    for number, value in enumerate((before, *trial.values)):
        file = tmp_path / f"{number}.toml"
        write_file(file, type, "", [Measured(trial.figure, {"value": value}, "", "", "")])
        texts.append([kernels(PROGRAMS[name], torch.device(type), file) for name in trial.programs])
    assert any(other != texts[0] for other in texts[1:])


def kernels(program: Program, device: torch.device, file: Path) -> list[list[str]]:
    with FakeTensorMode():
        inputs = [torch.empty(size, dtype=program.dtype, device=device) for size in program.sizes]
    torch._dynamo.reset()
    compiler = make_compiler(options={"calibration": file})
    with torch.no_grad():
        schedules = schedule_only(program.function, inputs, {"calibration": file})
    sources = (generate(plan_schedule(one, compiler), compiler) for one in schedules)
    return [sorted(source.text for source in own.values()) for own in sources]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_measuring_this_gpu(tmp_path: Path) -> None:
    only = ("--only", "two_loads", "--only", "short_elements")
    done = calibrate("cuda", "--out", tmp_path / "gpu.toml", *only)
    assert done.exit_code == 0, done.output
    figures = load_calibration(tmp_path / "gpu.toml").figures("cuda", torch.cuda.get_device_name())
    assert figures["figures.tilings.two_loads_elements"] in (8, 16, 32)
    assert figures["bandwidth_gb_s"] > 100 and figures["figures.tilings.short_elements"] in (512, 1024, 2048)
