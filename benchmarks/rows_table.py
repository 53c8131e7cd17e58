"""The table of `benchmarks.side_by_side`: in, rows; out, lines of 100 columns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

import torch

from benchmarks.rows import Figures, Row
from benchmarks.zoo_step import MODES, PEERS, TASKS

HEADER = (
    f"{'':26}{'GPU, ms':>24}{'ind/litz':>13}{'kernels':>13}{'memory':>7}{'error':>6}{'first, s':>11}\n"
    f"{'model':20}{'task':6}{'eager':>8}{'induct.':>8}{'litz':>8}{'GPU':>7}{'wall':>6}{'ind.':>7}{'litz':>6}"
    f"{'l/ind':>7}{'l/e':>6}{'ind.':>6}{'litz':>5}"
)


def line(row: Row) -> str:
    """A row of the table, of 100 columns. Ratios above 1 are in litz's favour."""
    eager, ind, litz = (row.peers.get(peer, Figures()) for peer in PEERS)
    label = f"{row.model.rpartition(':')[2][:19]:20}{row.task[:5]:6}"
    text = label + "".join(
        _number(value, width, digits)
        for value, width, digits in (
            (eager.gpu_ms, 8, 2), (ind.gpu_ms, 8, 2), (litz.gpu_ms, 8, 2), (_over(ind.gpu_ms, litz.gpu_ms), 7, 2),
            (_over(ind.wall_ms, litz.wall_ms), 6, 2), (ind.launches, 7, 0), (litz.launches, 6, 0),
            (_over(litz.peak_mib, ind.peak_mib), 7, 2), (_over(litz.error, eager.error), 6, 1),
            (ind.first_s, 6, 0), (litz.first_s, 5, 0),
        )
    )  # fmt: skip
    notes = [note for note in (row.problem, row.note, "" if row.alone else "others compiled meanwhile") if note]
    notes += [f"{peer}: {figures.problem}" for peer, figures in row.peers.items() if figures.problem]
    if row.mode != "default":
        notes += [f"{peer} made no CUDA graph" for peer in PEERS[1:] if peer in row.peers and _unrecorded(row, peer)]
    if row.problem and not row.peers:
        return f"{label}{row.problem}"[:100]
    return "\n".join([text, *(f"    {note}"[:100] for note in notes)])


def _unrecorded(row: Row, peer: str) -> bool:
    return not row.peers[peer].graphs and not row.peers[peer].problem and torch.cuda.is_available()


def _number(value: float, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if math.isnan(value) else f"{value:{width}.{digits}f}"


def _over(above: float, below: float) -> float:
    return above / below if below and not math.isnan(below) else math.nan


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Geometric means, and the worst, by mode and task."""
    for mode in MODES:
        for task in TASKS:
            alike = [row for row in rows if (row.mode, row.task) == (mode, task) and not _lacking(row)]
            if not alike:
                continue
            text = f"{mode}, {task}, {len(alike)} models, geometric means:"
            for peer in ("inductor", "eager"):
                for name, get in (("GPU", lambda f: f.gpu_ms), ("wall", lambda f: f.wall_ms)):
                    both = {row.model: (row.peers.get(peer, Figures()), row.peers["litz"]) for row in alike}
                    ratios = {model: _over(get(theirs), get(ours)) for model, (theirs, ours) in both.items()}
                    ratios = {model: ratio for model, ratio in ratios.items() if ratio > 0}
                    if ratios:
                        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios.values()))
                        worst = min(ratios, key=lambda model: ratios[model])
                        text += f"\n    {peer} / litz, {name:5}{mean:6.3f}   worst {ratios[worst]:.2f} {worst}"
            yield text


def _lacking(row: Row) -> bool:
    return "litz" not in row.peers or bool(row.peers["litz"].problem)
