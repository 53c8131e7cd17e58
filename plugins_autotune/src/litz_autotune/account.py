"""An account of what was decided: in, contests with their measurements; out, a table as text and a picture as SVG.

The report shows both: `litz explain` the table, the HTML page the picture as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import inf

from .measurement import Measurement
from .results import LIBRARY

ROW, HEAD, LABEL, BARS, TIMES = 15, 34, 380, 360, 150
"""Heights of a candidate and of a contest's title, and widths of the columns, in pixels."""
LIBRARY_COLOUR, CHOSEN_COLOUR, OTHER_COLOUR = "#d08a3e", "#2f6fdb", "#9db8e8"
SHOWN = 12
"""Candidates of one contest in the picture, the fastest."""


@dataclass(frozen=True)
class Contested:
    """A decision: the problem, what was chosen and why, all measurements by candidate (those of the library begin with
    "library"), and how many contractions of the graph it is for."""

    problem: str
    chosen: str
    reason: str
    measured: Mapping[str, Measurement]
    count: int = 1

    def took(self, name: str) -> bool:
        """Returns whether a measurement is of what was chosen. The library's are alone and with its surroundings."""
        return name == self.chosen or (self.chosen == LIBRARY and name.startswith(LIBRARY))

    @property
    def ranked(self) -> list[tuple[str, Measurement]]:
        """Returns the candidates, the fastest first, those without a time last."""
        return sorted(self.measured.items(), key=lambda item: item[1].us)

    @cached_property
    def text(self) -> str:
        """Returns the decision as a table: time, noise (the standard error of the median) and runs of each
        candidate."""
        times = f", {self.count} times" if self.count > 1 else ""
        lines = [f"{self.problem}{times}", f"  {self.chosen}: {self.reason}", "        us    noise  runs"]
        for name, found in self.ranked:
            mark = "*" if self.took(name) else " "
            why = f" ({found.reason})" if found.reason else ""
            if found.us == inf:
                lines.append(f"  {mark}{'-':>7}{'':15}  {name}{why}")
            else:
                lines.append(f"  {mark}{found.us:7.4g} {found.noise_us:8.2g} {found.runs:5}  {name}{why}")
        return "\n".join(lines)

    @cached_property
    def picture(self) -> tuple[str, int]:
        """Returns the decision's part of the picture as SVG, from 0 down, and the height of that part."""
        shown = [item for item in self.ranked if item[1].us < inf][:SHOWN]
        return "\n".join(_contest(self, shown)), HEAD + ROW * len(shown) + 14


def render_text(contested: Sequence[Contested]) -> str:
    """Returns a table for each decision, as text."""
    return "\n\n".join(one.text for one in contested) + "\n"


def render_picture(contested: Sequence[Contested]) -> str:
    """Returns an SVG picture: for each decision a bar per candidate, as long as its time, with a line of three standard
    errors to either side."""
    parts: list[str] = []
    top = 0
    for one in contested:
        part, height = one.picture
        parts += [f'<g transform="translate(0 {top})">', part, "</g>"]
        top += height
    width = LABEL + BARS + TIMES
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}" '
            'font-family="system-ui, sans-serif" font-size="11" fill="currentColor">',
            *parts,
            "</svg>",
            "",
        ]
    )


def _contest(one: Contested, shown: Sequence[tuple[str, Measurement]]) -> list[str]:
    title = one.problem + (f", {one.count} times" if one.count > 1 else "")
    lines = [
        f'<text x="0" y="13" font-weight="600">{escape(title[:150])}</text>',
        f'<text x="0" y="27">{escape(f"{one.chosen}: {one.reason}"[:160])}</text>',
    ]
    longest = max((found.us + 3 * found.noise_us for _, found in shown), default=1.0)
    for row, (name, found) in enumerate(shown):
        y = HEAD + ROW * row
        colour = LIBRARY_COLOUR if name.startswith(LIBRARY) else OTHER_COLOUR
        colour = CHOSEN_COLOUR if one.took(name) else colour
        low, high = (LABEL + BARS * max(0.0, found.us + 3 * side * found.noise_us) / longest for side in (-1, 1))
        label = f"{name} ({found.reason})" if found.reason else name
        lines += [
            f'<text x="{LABEL - 6}" y="{y + 10}" text-anchor="end">{escape(label[:70])}</text>',
            f'<rect x="{LABEL}" y="{y + 2}" width="{BARS * found.us / longest:.1f}" height="{ROW - 4}" '
            f'fill="{colour}"/>',
            f'<line x1="{low:.1f}" y1="{y + ROW / 2}" x2="{high:.1f}" y2="{y + ROW / 2}" stroke="currentColor"/>',
            f'<text x="{LABEL + BARS + 6}" y="{y + 10}">{found.us:.4g} ± {found.noise_us:.2g} us</text>',
        ]
    return lines
