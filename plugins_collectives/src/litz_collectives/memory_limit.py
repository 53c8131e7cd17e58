"""The option collectives.memory_limit. In: its text, and what the graph takes without the pass. Out: bytes."""

from __future__ import annotations

import re

from litz_plugins import LitzError
from litz_plugins.units import parse_size


class MemoryLimitError(LitzError):
    """The option collectives.memory_limit is no amount of memory."""


def memory_limit(text: str, peak: int, held: int = 0) -> float:
    """Returns the bytes that temporaries, outputs and dying inputs (see `Live`) may take: of an option like "10%" (that
    much more than the graph takes in the source's order, its inputs included), "8GiB" or "8589934592".

    peak: of those in the source's order, which is always allowed. held: bytes of the other inputs. Errors:
    MemoryLimitError.
    """
    share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if share is not None:
        return max(peak, peak + float(share[1]) / 100 * (peak + held))
    try:
        return max(peak, parse_size(text))
    except ValueError as cause:
        raise MemoryLimitError(
            f"the option collectives.memory_limit is {text!r}, which is no amount of memory",
            todo='give bytes ("8GiB", "512MiB", "1000000") or a share of the memory without the pass ("10%")',
        ) from cause
