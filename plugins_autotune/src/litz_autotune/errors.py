"""The errors of autotuning that a user can see."""

from __future__ import annotations

from collections.abc import Sequence

from litz_plugins import LitzError


class NoValidChoicesError(LitzError):
    """Nothing that the options allow can run a contraction. rejected: (candidate, why) of each that was considered."""

    def __init__(self, problem: str, rejected: Sequence[tuple[str, str]]) -> None:
        self.problem = problem
        self.rejected = tuple(rejected)
        lines = [f"    {name}: {why}" for name, why in self.rejected] or ["    no template offers anything for it"]
        super().__init__(
            "\n".join([f"nothing that autotune.backends allows can run {problem}", *lines]),
            todo="allow the library call: options={'autotune.backends': ('library', 'triton')}",
        )
