"""Amounts of memory as people write them. In: "64MiB". Out: bytes. Options and commands share the one parser."""

from __future__ import annotations

import re

FACTORS = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
"""Bytes of each unit. A number without a unit counts bytes."""
EXAMPLES = "65536, 64KiB, 1.5GiB or 16MB"
"""Sizes that are understood, for messages."""


def parse_size(text: str) -> int:
    """Returns the bytes of a size such as "65536", "64KiB", "1.5 GiB" or "16MB"; letters may be of either case. A
    fraction of a byte is dropped. Errors: ValueError, whose message has examples."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in FACTORS:
        raise ValueError(f"{text!r} is no size such as {EXAMPLES}")
    number, factor = found[1], FACTORS[found[2]]
    return int(number) * factor if number.isdecimal() else int(float(number) * factor)
