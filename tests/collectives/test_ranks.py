"""A job as a whole: one rank's compile serves the others, and a rank that is killed is an error on the others."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the ops

from support.ranks import RankFailed, Ranks

pytestmark = pytest.mark.xdist_group("ranks")

ops = torch.ops._c10d_functional
SHARE = "collectives.share_builds"


def reduced(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(ops.wait_tensor(ops.all_reduce(x * 2, "sum", "0")), -1)


def run_together(rank: int, given: tuple[str, dict[str, Any], bool]) -> None:
    """Both ranks compile at a time, with one cache or one each."""
    folder, options, apart = given
    options = {"cache_dir": f"{folder}/cache{rank if apart else ''}", "cpp.compiler": f"{folder}/compiler", **options}
    options["cpp.qualify"] = False  # whose builds are not counted
    x = torch.ones(4, 37)
    dist.barrier()
    torch.testing.assert_close(torch.compile(reduced, backend="litz", options=options)(x), reduced(x))


@pytest.mark.parametrize(
    ("apart", "options", "times"),
    [(False, {SHARE: False}, 1), (True, {}, 1), (True, {SHARE: False}, 2)],
    ids=["one disk", "a disk each", "a disk each, not shared"],
)
def test_each_kernel_is_built_once_for_all_ranks(
    ranks: Ranks, tmp_path: Path, apart: bool, options: dict[str, Any], times: int
) -> None:
    """Ranks without a common disk send each other what they built."""
    log, compiler = tmp_path / "log", tmp_path / "compiler"
    real = shutil.which("g++") or shutil.which("c++")
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) echo "$PPID" >> {log};; esac\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    ranks.run(__file__, "run_together", (str(tmp_path), options, apart))
    built = log.read_text().splitlines()
    assert len(built) == 2 * times, "x * 2, and the softmax"
    for cache in ("cache0", "cache1") if apart else ("cache",):
        assert sum(1 for _ in (tmp_path / cache / "cpp").glob("*/manifest.json")) == 2


def run_until_killed(rank: int, file: str) -> None:
    """Rank 1 dies between two calls of a compiled graph; rank 0 writes down what it then hears."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return ops.wait_tensor(ops.all_reduce(x, "sum", "0"))

    compiled = torch.compile(function, backend="litz")
    torch.testing.assert_close(compiled(torch.ones(8)), torch.full((8,), 2.0))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        compiled(torch.ones(8))
        said = "nothing"
    except RuntimeError as error:
        said = f"{type(error).__name__}: {error}"
    Path(file).write_text(f"{time.monotonic() - start:.3f} {said}")


def test_a_rank_that_is_killed_is_an_error_on_the_others(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Ranks(2) as ranks, pytest.raises(RankFailed, match="rank 1 died with exit code -9"):
        ranks.run(__file__, "run_until_killed", str(file))
    seconds, said = file.read_text().split(" ", 1)
    assert float(seconds) < 10 and said.startswith("RuntimeError"), said
    assert "gloo" in said.lower() or "connection" in said.lower(), said
