"""core's tables of tiles for products and their users, from what `benchmarks.epilogues` measured.

    python -m benchmarks.epilogue_table FILE.json

What was measured with `--for-table` is for the figure "many_rows.tiles" of the device's data file, with `--unaligned`
for "many_rows.unaligned_tiles".

A tile's share and its µs are the least loss, in the mean of the rows, that covers every row: the kernel took no longer
than `many_rows.Cost.estimate` says at worst. Prints what default mode would then choose for each row, as measured over
eager, and the table's rows in Python: the tiles that some row chooses; the others as comments.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litz.target import figures_of, target_named
from litz_contractions.products.many_rows import Cost, ManyRowsFigures, Tile
from litz_plugins import Estimate

Row = Mapping[str, Any]
MOST_US, STEP_US = 10.0, 0.25
"""What is tried for the part of a loss that is the same for all products."""
EXACT = 1.1
"""The error of a kernel, of eager's, up to which its row counts."""


@dataclass(frozen=True)
class Fitted:
    """A tile with its share. rows: from so many. worst: the row that asks for the share."""

    tile: Tile
    rows: int
    worst: str


@dataclass(frozen=True)
class Chosen:
    """What default mode runs for a row: who, and eager's time over its time."""

    row: str
    who: str
    ratio: float


def cost_of(row: Row, who: str) -> Cost:
    """What a tile's estimate was made of."""
    limits = figures_of(target_named("H100"), ManyRowsFigures)  # this figure is the same for all GPUs
    known, tile = row["library"], row["tiles"][who]
    return Cost(
        Estimate(known["us"], known["low"], known["high"], ""), tile["filled"], tile["added_us"], limits.usual_share, ""
    )


def fit(rows: Sequence[Row], who: str) -> Fitted | None:
    """The tile of that name; None where no row measured it."""
    given = [row for row in rows if who in row["tiles"] and {who, "product"} <= row["us"].keys()]
    if not given:
        return None
    fitted = []
    for step in range(int(MOST_US / STEP_US) + 1):
        us = step * STEP_US
        shares = [cost_of(row, who).least_share(row["us"][who] - row["us"]["product"], us) for row in given]
        share = max(shares)
        losses = [
            (share / cost_of(row, who).filled * row["us"]["product"] + us) / row["us"]["product"] for row in given
        ]
        fitted.append((statistics.mean(losses), share, us, name_of(given[shares.index(share)])))
    _, share, us, worst = min(fitted)
    facts = given[0]["tiles"][who]
    share = int(share * 1000 + 1) / 1000  # not below what was measured
    sizes = (int(facts[key]) for key in ("m", "n", "stages", "warps"))
    return Fitted(Tile(*sizes, share, us, bool(facts["apart"])), len(given), worst)


def choose(row: Row, tiles: Mapping[str, Tile]) -> Chosen:
    """What `by_estimate` takes with these tiles."""
    found = [(each["replaced"] - each["us"], each["high"] < each["replaced"], "now") for each in row["rivals"]]
    for who, tile in tiles.items():
        if who in row["tiles"] and who in row["us"]:
            estimate, replaced = cost_of(row, who).estimate(tile), row["library"]["replaced"]
            found.append((replaced - estimate.us, estimate.high_us < replaced, who))
    _, gains, who = max(found, default=(0.0, False, "library"))
    who = who if gains and who in row["us"] else "library"
    return Chosen(name_of(row), who, row["us"]["eager"] / row["us"][who])


def name_of(row: Row) -> str:
    return f"{row['name']}; {row['users']}"


def usable(row: Row) -> bool:
    """Was everything measured that a choice needs?"""
    return {"eager", "library", "product"} <= row["us"].keys() and bool(row["tiles"])


def exact(row: Row) -> Row:
    """The row without kernels that are further off than eager."""
    most = EXACT * row["errors"]["eager"]
    return {**row, "tiles": {who: tile for who, tile in row["tiles"].items() if row["errors"].get(who, 2.0) <= most}}


def table(data: Mapping[str, Any]) -> list[str]:
    """The report, and the figure's value as the device's data file has it."""
    rows = [exact(row) for row in data["rows"] if usable(row)]
    names = sorted({who for row in rows for who in row["tiles"]})
    fitted = {who: found for who in names if (found := fit(rows, who))}
    tiles = {who: found.tile for who, found in fitted.items()}
    lines = [f"{data['where']}, {data['dtype']}, {len(rows)} rows of {len(data['rows'])}"]
    for row in rows:
        chosen = choose(row, tiles)
        best = min((row["us"][who], who) for who in (*row["tiles"], "library") if who in row["us"])
        lines.append(
            f"{chosen.row}: {chosen.who} {chosen.ratio:.3f}, best {best[1]} {row['us']['eager'] / best[0]:.3f}"
        )
    made = [choose(row, tiles) for row in rows]
    if made:
        mean, worst = statistics.geometric_mean(each.ratio for each in made), min(made, key=lambda each: each.ratio)
        lines.append(f"over eager: {mean:.3f} in geometric mean, least {worst.ratio:.3f} ({worst.row})")
    counts = Counter(each.who for each in made)
    lines.append("value = [")
    for who, one in fitted.items():
        tile = one.tile
        numbers = f"{tile.m}, {tile.n}, {tile.stages}, {tile.warps}, {tile.share:.3f}, {tile.us:.2f}"
        text = f"[{numbers}, {str(tile.apart).lower()}],"
        why = f"  # chosen for {counts[who]} of {one.rows} rows; its worst is {one.worst}"
        lines.append(f"    {'' if counts[who] else '# '}{text}{why}")
    return [*lines, "]"]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the report and the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epilogue_table", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    print("\n".join(table(json.loads(parser.parse_args(argv).file.read_text()))))


if __name__ == "__main__":
    main()
