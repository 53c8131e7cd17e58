"""A line on the terminal while candidates are measured; nothing where standard error is no terminal."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID


class Display:
    """Shows the problem, how many of its candidates are done, and the best so far; gone when the contest is over."""

    def __init__(self, problem: str, candidates: int) -> None:
        # Fifty modules that a process which measures nothing need not load.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("litz {task.description}"), BarColumn(20), TextColumn("{task.fields[best]}"))
        self._progress = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._task: TaskID = self._progress.add_task(problem, total=candidates, best="")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def done(self, count: int = 1, best: str = "") -> None:
        """Counts `count` candidates more as done. best: the best so far, '' to leave what is shown."""
        self._progress.advance(self._task, count)
        if best:
            self._progress.update(self._task, best=best)
