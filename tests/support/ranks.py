"""Two processes with a gloo group between them, for tests that communicate.

    with Ranks(2) as ranks:
        ranks.run(__file__, "function_of_this_file", argument)   # on every rank; raises what a rank raised

The function is called as `function(rank, argument)` in each process. The processes live as long as the Ranks, so that
many tests pay for importing torch once.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

START_SECONDS, RUN_SECONDS = 180, 180


class RankFailed(AssertionError):
    """A rank raised; the message has its traceback."""


class Ranks:
    """`count` processes, each a rank of the default group (gloo, on the CPU)."""

    def __init__(self, count: int = 2) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="litz-ranks-")
        self._workers = []
        for rank in range(count):
            mine, theirs = context.Pipe()
            place = str(Path(self._folder.name) / "store")
            process = context.Process(target=_work, args=(rank, count, place, theirs), daemon=True)
            process.start()
            self._workers.append((process, mine))
        self._gather(START_SECONDS)

    def run(self, file: str, function: str, argument: Any = None) -> list[Any]:
        """What `function` of `file` returns on each rank."""
        for _, pipe in self._workers:
            pipe.send((file, function, argument))
        return self._gather(RUN_SECONDS)

    def _gather(self, seconds: float) -> list[Any]:
        found, failures = [], []
        for rank, (process, pipe) in enumerate(self._workers):
            if not pipe.poll(seconds):
                self.close()
                raise RankFailed(f"rank {rank} said nothing for {seconds} s")
            try:
                failure, result = pipe.recv()
            except EOFError:
                process.join(10)
                self.close()
                raise RankFailed(f"rank {rank} died with exit code {process.exitcode}") from None
            found.append(result)
            failures += [f"rank {rank}:\n{failure}"] if failure else []
        if failures:
            raise RankFailed("\n".join(failures))
        return found

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.close()
            process.terminate()
            process.join(10)
        self._workers = []
        self._folder.cleanup()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _work(rank: int, count: int, place: str, pipe: Any) -> None:
    """A worker: joins the group, then runs what it is told until the pipe closes."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(place, count), rank=rank, world_size=count)
    modules: dict[str, Any] = {}
    pipe.send(("", None))
    while True:
        try:
            file, function, argument = pipe.recv()
        except EOFError:
            return
        try:
            if file not in modules:
                spec = importlib.util.spec_from_file_location(Path(file).stem, file)
                assert spec is not None and spec.loader is not None
                modules[file] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(modules[file])
            torch._dynamo.reset()
            pipe.send(("", getattr(modules[file], function)(rank, argument)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
