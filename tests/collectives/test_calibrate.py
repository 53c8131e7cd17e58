"""`litz calibrate-collectives`: on two gloo processes as on GPUs, but for the figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from litz.cli.main import main
from litz_collectives.calibrate import Measured, Request, Row, csv_text, default_world_sizes, plan
from litz_collectives.evaluate import error_lines, errors_of, split_points
from litz_collectives.fit import UNSEEN, Curve, Regime, fit_curve
from litz_collectives.measure import message_bytes
from litz_collectives.profile import Profile, read_points, read_profile
from litz_collectives.together import CalibrationError, slowest
from litz_collectives.topology import make_topology
from support.ranks import Ranks

pytestmark = pytest.mark.xdist_group("ranks")

KIB = 1 << 10
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
PAIR = {**ALONE, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def run_command(rank: int, arguments: tuple[str, ...]) -> str:
    """The command on a rank of a job that torchrun could have started."""
    environment = {**PAIR, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    result = CliRunner().invoke(main, ["calibrate-collectives", *arguments], env=environment)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command(ranks: Ranks, tmp_path: Path) -> None:
    profile, csv = tmp_path / "p.json", tmp_path / "p.csv"
    asked = (
        str(profile),
        "--csv",
        str(csv),
        "--gpu",
        "H200",
        "--most",
        "256KiB",
        "--collectives",
        "all_gather all_reduce",
    )
    said, silent = ranks.run(__file__, "run_command", asked)
    assert not silent and "all_gather          2  fitted" in said and f"wrote {profile}" in said
    made = read_profile(profile)
    assert set(made.curves) == {"all_reduce", "all_gather"} and made.curves["all_gather"].world_sizes == (2,)
    assert made.gemm_tflops > 0 and made.copy_gb_s > 0 and made.launch_us["all_reduce"] > 0
    assert "gloo on the CPU, 2 ranks" in made.source
    points, _ = read_points(csv)
    assert [size for size, _, _ in points["all_reduce"]] == [KIB << power for power in range(9)]
    asked = ("--collective", "all_reduce", "--bytes", "65536", "--world-size", "2", "--profile", str(profile), "--json")
    result = CliRunner().invoke(main, ["estimate-collective", *asked])
    found = json.loads(result.output)
    assert found["why"].startswith("measured: gloo") and found["low_us"] < found["time_us"] < found["high_us"]


def run_with_a_failure(rank: int, turn: int) -> str:
    """One rank raises; both say so, and go on together afterwards."""
    from litz.capture import torch_api
    from litz_collectives.together import Together

    store = torch_api.default_store()
    assert store is not None
    ranks = Together(store[0], rank, 2)
    ranks.run(lambda: None)

    def fails() -> int:
        if rank == 1:
            raise torch.OutOfMemoryError("no memory left")
        return 1

    try:
        ranks.run(fails)
    except CalibrationError as error:
        assert ranks.share(rank) == [0, 1]
        return str(error)
    return "nothing"


def test_a_rank_that_fails_is_an_error_on_all(ranks: Ranks) -> None:
    said = ranks.run(__file__, "run_with_a_failure", 0)
    assert said[0] == said[1] and "rank 1 failed to measure" in said[0] and "no memory left" in said[0]


@pytest.mark.parametrize(
    ("environment", "arguments", "says"),
    [
        ({}, (), "torchrun did not start it"),
        (ALONE, (), "a group of one rank sends nothing"),
        (PAIR, (), "there is no GPU here"),
        (PAIR, ("--gpu", "Voodoo2"), "litz knows no links of a 'Voodoo2'"),
        (PAIR, ("--gpu", "H200", "--world-sizes", "2,4"), "a group of 4 ranks cannot be measured: there are 2"),
        (PAIR, ("--gpu", "H200", "--hold-out", "2"), "one is fitted to at least"),
        (PAIR, ("--gpu", "H200", "--collectives", "gossip"), "got gossip"),
        (PAIR, ("--gpu", "H200", "--most", "lots"), "'lots' is no size such as"),
        (PAIR, ("--gpu", "H200", "--world-sizes", "two"), "'two' is no list of numbers"),
    ],
)
def test_mistakes_are_messages(
    environment: Mapping[str, str], arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litz_collectives.job.machine_topology", lambda: None)
    unset: dict[str, Any] = dict.fromkeys(PAIR)
    result = CliRunner().invoke(main, ["calibrate-collectives", "p.json", *arguments], env={**unset, **environment})
    assert result.exit_code != 0 and says in result.output and "Traceback" not in result.output


def test_the_plan_has_what_a_curve_needs_first() -> None:
    tasks = plan(Request((2, 4), (3,)))
    first = [task for task in tasks if not task.spare]
    assert tasks[: len(first)] == first and {task.world_size for task in first} == {2, 3, 4}
    assert {task.size for task in first} == {1 << power for power in range(10, 31, 2)}
    assert {(task.kind, task.world_size, task.size) for task in tasks} == {
        (kind, n, 1 << power)
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        for n in (2, 3, 4)
        for power in range(10, 31)
    }
    assert not any(task.spare for task in plan(Request((2,), most=256 * KIB)))
    with pytest.raises(CalibrationError, match="8 message sizes"):
        plan(Request((2,), most=128 * KIB))


def test_world_sizes_and_messages() -> None:
    assert [default_world_sizes(n) for n in (2, 3, 4, 8)] == [(2,), (2, 3), (2, 4), (2, 4, 8)]
    assert [message_bytes(1024, n) for n in (2, 3, 7)] == [1024, 1056, 1120]


def test_the_slowest_rank_of_the_usual_repeat_counts() -> None:
    assert slowest([[1.0, 50.0, 2.0], None, [3.0, 1.0, 2.5]]) == 3.0


def test_times_survive_the_file(tmp_path: Path) -> None:
    rows = (Row("all_reduce", 3, 1056, 9.5, 30.0), Row("all_reduce", 3, 1 << 20, 20.25, 31.0))
    measured = Measured(rows, 1.0, 1.0)
    (tmp_path / "p.csv").write_text(csv_text(rows))
    assert read_points(tmp_path / "p.csv") == (measured.points, measured.launch_us)
    assert measured.launch_us == {"all_reduce": 30.0}


def ring(size: int, n: int) -> float:
    return 5 + 1.5 * (n - 1) + size * (n - 1) / n / 3e5


def test_a_held_out_world_size_is_predicted() -> None:
    points = [(message_bytes(1 << power, n), n, ring(1 << power, n)) for n in (2, 3, 4) for power in range(10, 31)]
    fitted, held = split_points({"all_gather": points}, [3])
    curve = fit_curve("all_gather", fitted["all_gather"])
    profile = Profile(make_topology("H200"), {"all_gather": curve})
    rows = errors_of(profile, {"all_gather": points})
    assert [(row.world_size, row.fitted) for row in rows] == [(2, True), (3, False), (4, True)]
    assert all(row.all < 0.02 and row.within == 1 for row in rows) and len(held["all_gather"]) == 21
    assert "held out" in error_lines(rows)[2]


def test_the_error_on_unseen_world_sizes_is_that_of_leaving_each_out() -> None:
    def odd(size: int, n: int) -> float:  # three ranks have a link that the ring does not explain
        return ring(size, n) * (1.3 if n == 3 else 1.0)

    sizes = [1 << power for power in range(10, 31, 2)]
    regular = fit_curve("all_gather", [(size, n, ring(size, n)) for n in (2, 3, 4) for size in sizes])
    irregular = fit_curve("all_gather", [(size, n, odd(size, n)) for n in (2, 3, 4) for size in sizes])
    assert all(regime.unseen < 0.02 for regime in regular.regimes)
    assert all(regime.unseen > 0.2 for regime in irregular.regimes)
    pair = fit_curve("all_gather", [(size, n, ring(size, n)) for n in (2, 4) for size in sizes])
    assert all(regime.unseen == regime.error + UNSEEN for regime in pair.regimes)


def test_errors_are_shares_of_the_measured_time() -> None:
    flat = Curve("all_reduce", (2,), (Regime(float("inf"), 90.0, 0.0, 0.0, 0.0, 0.05, 0.1),))
    profile = Profile(make_topology("H200"), {"all_reduce": flat})
    (row,) = errors_of(profile, {"all_reduce": [(1024, 2, 100.0), (2 << 20, 2, 120.0)]})
    assert (row.all, row.large, row.within) == (pytest.approx(0.175), pytest.approx(0.25), 0.0)


@pytest.mark.gpu2
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus(tmp_path: Path) -> None:
    from support.third_party import run_python

    profile = tmp_path / "p.json"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run_python(*torchrun, "-m", "litz", "calibrate-collectives", str(profile), "--most", "16MiB")
    assert done.returncode == 0, done.stdout + done.stderr
    made = read_profile(profile)
    assert set(made.contention) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    assert made.gemm_tflops > 10 and made.copy_gb_s > 100
    assert all(1 <= row.gemm < 5 and 1 <= row.collective < 20 for rows in made.contention.values() for row in rows)
