"""What the terminal and the pages both say of a report. In: parts of a report. Out: text."""

from __future__ import annotations

UNTIMED = (
    "No times, as this CPU was never measured: `litz calibrate cpu` (of litz-tools), then "
    "LITZ_CALIBRATION=cpu.toml. Until then decisions compare assumed figures, which are shown as shares."
)
"""The advice for a report without times."""


def break_in_words(reason: str) -> str:
    """Returns the reason of a graph break in a line: dynamo's title and explanation, without the hints."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    explained = next((line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")), "")
    return ": ".join([*lines[:1], *([explained] if explained else [])])
