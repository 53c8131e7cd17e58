"""What every rank says, known to every rank. In: each rank's value. Out: all values, or one error on all ranks.

Values go through the store of the default process group, so they cost the GPUs nothing.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from litz_plugins import LitzError
from litz_plugins.errors import describe

PATIENCE_S = 120.0
"""How long to wait for a rank that says nothing: for the slowest single measurement, and the start of NCCL."""


class CalibrationError(LitzError):
    """The group cannot be measured: what is wrong, and on which rank."""


class Together:
    """The ranks of the default group. Made, and `run`, equally often and in the same order on all of them."""

    def __init__(self, store: Any, rank: int, world_size: int, patience_s: float = PATIENCE_S) -> None:
        self.rank, self.world_size = rank, world_size
        self._store, self._patience = store, timedelta(seconds=patience_s)
        # Several may follow one another on a store; each rank counts its own.
        self._place = f"litz/together/{store.add(f'litz/together/made/{rank}', 1)}"
        self._turn = 0

    def run(self, function: Callable[[], Any]) -> list[Any]:
        """Returns what `function` returns on each rank, JSON-able. Errors: CalibrationError on every rank if it raises
        on one, or if one does not answer."""
        cause: Exception | None = None
        try:
            said = {"value": function()}
        except Exception as error:
            cause, said = error, {"error": describe(error)}
        self._turn += 1
        place = f"{self._place}/{self._turn}"
        self._store.set(f"{place}/{self.rank}", json.dumps(said))
        answers = [self._answer(place, rank) for rank in range(self.world_size)]
        for rank, answer in enumerate(answers):
            if "error" in answer:
                raise CalibrationError(f"rank {rank} failed to measure: {answer['error']}") from cause
        return [answer["value"] for answer in answers]

    def share(self, value: Any) -> list[Any]:
        """Returns each rank's value."""
        return self.run(lambda: value)

    def _answer(self, place: str, rank: int) -> dict[str, Any]:
        key = f"{place}/{rank}"
        try:
            self._store.wait([key], self._patience)
        except RuntimeError as cause:  # torch raises DistStoreError, a RuntimeError
            raise CalibrationError(
                f"rank {rank} said nothing for {self._patience.total_seconds():g} s",
                todo="see that rank's own output; NCCL_DEBUG=INFO shows what NCCL does",
            ) from cause
        return json.loads(self._store.get(key))


def slowest(values: Sequence[Sequence[float] | None]) -> float:
    """Returns the median over repeats of the slowest rank's time. values: None for a rank that took no part."""
    taken = [times for times in values if times is not None]
    return statistics.median(max(times) for times in zip(*taken, strict=True))
