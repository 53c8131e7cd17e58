"""The option collectives.memory_limit. In: its text, and what the graph takes without the pass. Out: bytes."""

from __future__ import annotations

import re

from litz_plugins import LitzError

UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


class MemoryLimitError(LitzError):
    """The option collectives.memory_limit is no amount of memory."""


def memory_limit(text: str, peak: int, held: int = 0) -> float:
    """Bytes that temporaries, outputs and dying inputs (see `Live`) may take: of an option like "10%" (that much more
    than the graph takes in the source's order, its inputs included), "8GiB" or "8589934592".

    peak: of those in the source's order, which is always allowed. held: bytes of the other inputs. Errors:
    MemoryLimitError.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*|%)\s*", text.lower())
    if found is None or (found[2] != "%" and found[2] not in UNITS):
        raise MemoryLimitError(
            f"the option collectives.memory_limit is {text!r}, which is no amount of memory",
            todo='give bytes ("8GiB", "512MiB", "1000000") or a share of the memory without the pass ("10%")',
        )
    amount = float(found[1])
    return max(peak, peak + amount / 100 * (peak + held) if found[2] == "%" else amount * UNITS[found[2]])
