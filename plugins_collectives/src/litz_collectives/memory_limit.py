"""The option collectives.memory_limit. In: its text, and what the graph takes without the pass. Out: bytes."""

from __future__ import annotations

import re

from litz_plugins.units import EXAMPLES, parse_size

ACCEPTED = f'a share of the memory without the pass, as "10%", or an amount, as {EXAMPLES}'
"""The texts that are understood, for messages."""


def read_limit(text: str) -> tuple[float, int]:
    """Returns the text of the option as (share, bytes), of which one is 0. Errors: ValueError."""
    share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    return (float(share[1]) / 100, 0) if share is not None else (0.0, parse_size(text))


def memory_limit(text: str, peak: int, held: int = 0) -> float:
    """Returns the bytes that temporaries, outputs and dying inputs (see `Live`) may take: of an option like "10%" (that
    much more than the graph takes in the source's order, its inputs included), "8GiB" or "8589934592".

    peak: of those in the source's order, which is always allowed. held: bytes of the other inputs. Errors: ValueError.
    """
    share, amount = read_limit(text)
    return max(peak, peak + share * (peak + held), amount)
