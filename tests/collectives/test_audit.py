"""What a run measured, beside what was expected: traces made by hand, and a run on two gloo processes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives  # defines the ops
from click.testing import CliRunner

from litz.cli.main import main
from litz.report import CompileReport, Step
from litz.report.streams import Realised
from litz_collectives.realised import realised_times
from support.ranks import Ranks

pytestmark = pytest.mark.xdist_group("ranks")

ops = torch.ops._c10d_functional
HOST, STREAM = 7, 20


def event(name: str, category: str, start: float, us: float, thread: int = HOST, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": us, "pid": 1, "tid": thread, "args": args}


def report(*names: str) -> CompileReport:
    steps = tuple(Step(name, "collective", "cuda:0", "_c10d_functional.all_reduce.default") for name in names)
    return CompileReport("graph0", "inference", "cuda:0", steps, 0, 0, Counter())


def call_on_gpu(at: float, number: int, gemm: float) -> list[dict[str, Any]]:
    """Two collectives of 100 and 50 µs; a product of `gemm` µs beside the first, which it starts 20 µs after."""
    first, second, product = (10 * number + n for n in range(3))
    return [
        event("litz graph0", "user_annotation", at, 60),
        event("_c10d_functional::all_reduce", "cpu_op", at + 5, 10),
        event("cudaLaunchKernelExC", "cuda_runtime", at + 8, 2, correlation=first),
        event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "kernel", at + 100, 100, STREAM, device=0, correlation=first),
        event("aten::mm", "cpu_op", at + 16, 5),
        event("cudaLaunchKernel", "cuda_runtime", at + 17, 2, correlation=product),
        event("sm90_gemm", "kernel", at + 120, gemm, STREAM + 1, device=0, correlation=product),
        event("another GPU's", "kernel", at + 100, 500, STREAM, device=1, correlation=999),
        event("_c10d_functional::all_gather_into_tensor", "cpu_op", at + 30, 10),
        event("cudaLaunchKernelExC", "cuda_runtime", at + 31, 2, correlation=second),
        event("ncclDevKernel_AllGather_RING_LL", "kernel", at + 200, 50, STREAM, device=0, correlation=second),
        event("_c10d_functional::wait_tensor", "cpu_op", at + 45, 2),
    ]


def test_kernels_beside_it_hide_a_collective_on_a_gpu() -> None:
    trace = {"traceEvents": call_on_gpu(0, 1, gemm=90.0)}
    (found,) = realised_times(trace, [report("a", "b")])
    assert found == {"a": Realised(100.0, 20.0, 1), "b": Realised(50.0, 40.0, 1)}


def test_the_first_call_is_left_out_and_the_median_counts() -> None:
    events = [e for n, gemm in enumerate((0.0, 80.0, 60.0, 70.0)) for e in call_on_gpu(1000.0 * n, n + 1, gemm)]
    (found,) = realised_times({"traceEvents": events}, [report("a", "b")])
    assert found["a"] == Realised(100.0, 30.0, 3)


def test_what_cannot_be_told_apart_is_not_reported() -> None:
    trace = {"traceEvents": call_on_gpu(0, 1, gemm=90.0)}
    assert realised_times(trace, [report("a", "b", "c")]) == [{}]
    assert realised_times({"traceEvents": []}, [report("a")]) == [{}]


def test_a_wait_of_the_host_exposes_a_collective_on_the_cpu() -> None:
    trace = {
        "traceEvents": [
            event("c10d::barrier", "cpu_op", 0, 2),  # of somebody else, before the graph
            event("gloo:barrier", "user_annotation", 1, 50, HOST + 1),
            event("litz graph0", "user_annotation", 10, 90),
            event("_c10d_functional::all_reduce_", "cpu_op", 12, 5),
            event("c10d::allreduce_", "cpu_op", 13, 3),
            event("_c10d_functional::broadcast", "cpu_op", 20, 5),
            event("_c10d_functional::broadcast", "cpu_op", 21, 4),  # the first call of an op goes through it twice
            event("c10d::broadcast_", "cpu_op", 21, 3),
            event("gloo:all_reduce", "user_annotation", 30, 40, HOST + 1),
            event("gloo:broadcast", "user_annotation", 32, 10, HOST + 2),
            event("_c10d_functional::wait_tensor", "cpu_op", 60, 10),
        ]
    }
    (found,) = realised_times(trace, [report("a", "b")])
    assert found == {"a": Realised(40.0, 10.0, 1), "b": Realised(10.0, 0.0, 1)}


SCRIPT = """
import sys
import torch
import torch.distributed._functional_collectives
ops = torch.ops._c10d_functional

def function(x):
    started = ops.all_reduce(x * 2, "sum", "0")
    product = x @ x
    return ops.wait_tensor(started) + product, ops.wait_tensor(ops.broadcast(product, 0, "0"))

compiled = torch.compile(function, backend="litz")
for _ in range(int(sys.argv[1])):
    out = compiled(torch.ones(64, 64))
torch.testing.assert_close(out, function(torch.ones(64, 64)))
"""


def run_command(rank: int, arguments: tuple[str, ...]) -> str:
    result = CliRunner().invoke(main, ["audit", *arguments], env={"RANK": str(rank)})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_run(ranks: Ranks, tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT)
    said, silent = ranks.run(__file__, "run_command", ("--json", "--out", str(out), str(script), "4"))
    assert not silent
    ((name, (first, second)),) = json.loads(said[said.index("{") :]).items()
    assert (first["op"], second["op"]) == (
        "_c10d_functional.all_reduce_.default",
        "_c10d_functional.broadcast_.default",
    )
    for row in (first, second):
        assert row["realised"]["runs"] == 3 and row["realised"]["us"] > 0
        assert 0 <= row["realised"]["exposed_us"] <= row["realised"]["us"]
    page = (out / name / "report.html").read_text()
    assert "of that exposed" in page and "<h2>Communication</h2>" in page
    trace = json.loads((out / "profile.json").read_text())
    assert sum(e.get("name") == f"litz {name}" for e in trace["traceEvents"]) >= 4


def test_mistakes_are_messages() -> None:
    result = CliRunner().invoke(main, ["audit", "no_such_script.py"])
    assert result.exit_code == 2 and "there is no file 'no_such_script.py'" in result.output


@pytest.mark.gpu2
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus(tmp_path: Path) -> None:
    from support.third_party import run_python

    script = Path(__file__).parents[2] / "examples" / "tensor_parallel.py"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "litz", "audit")
    done = run_python(*torchrun, "--out", str(tmp_path), str(script), LITZ_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("forward", "backward"):
        rows = json.loads((tmp_path / f"graph0_{kind}" / "report.json").read_text())["communication"]
        assert len(rows) == 2 and all(0 < row["realised"]["us"] < 1e6 for row in rows)
        assert all(0 <= row["realised"]["exposed_us"] <= row["realised"]["us"] for row in rows)
