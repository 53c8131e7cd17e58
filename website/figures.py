"""The figures of README and docs: where each comes from, and whether text and source agree.

README's rows are cells of docs/benchmarks.md's tables: no number of them is typed by hand. The errors of estimated
collectives in docs/ come from the measurements in tests/collectives/data. `python -m website.figures` compares all of
it; with `--write` it writes README's table anew. The other figures of docs/benchmarks.md are what the script that is
named beside them printed; their data are not kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from website import collective_errors

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
HEADINGS = ("what", "eager", "Inductor", "litz", "wall, Inductor / litz", "script")
TABLE = re.compile(r"(<!-- figures -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)


@dataclass(frozen=True)
class Figure:
    """A row of README's table.

    label: what was measured. script: in benchmarks/. under: a line of docs/benchmarks.md; the figure is in the first
    table below it. eager, inductor, litz, wall: a row's first cell and a column's heading, or only a column's heading
    where `row` has the row; '' for none.
    """

    label: str
    script: str
    under: str
    row: str
    eager: tuple[str, str] | str
    inductor: tuple[str, str] | str
    litz: tuple[str, str] | str
    wall: tuple[str, str] | str = ""


def _zoo(label: str, task: str, model: str) -> Figure:
    return Figure(label, "side_by_side", task, model, "eager ms", "Inductor ms", "litz ms", "wall")


INFERENCE, TRAINING = "Inference:", "Training (forward and backward):"
GRAPHS = "### H200, reduce-overhead"
FIGURES: Sequence[Figure] = (
    _zoo("GPT-2, inference: kernels", INFERENCE, "gpt2"),
    _zoo("GPT-2, training: kernels", TRAINING, "gpt2"),
    _zoo("a Llama of 8 layers, inference: kernels", INFERENCE, "llama"),
    _zoo("ResNet-50, training: kernels", TRAINING, "resnet50"),
    Figure(
        "GPT-2, inference, CUDA graphs: a step", "side_by_side", GRAPHS, "gpt2", "", "Inductor ms", "litz ms", "clock"
    ),
    _zoo("a GRU, inference: kernels (a loss)", INFERENCE, "gru"),
    _zoo("Mamba-2, training: kernels", TRAINING, "mamba2"),
    Figure(
        "ResNet-50, training: a step on a slow host, eager in channels last, H100",
        "layouts", "## Convolutional networks and layouts", "ResNet-50 training", "eager last", "Inductor", "litz",
    ),
    Figure(
        "a decoding step, bf16 weights, batch 1: all under CUDA graphs",
        "decode", "## Decoding", "bf16, 1", "eager ms", "Inductor", "litz",
    ),
    Figure(
        "causal attention by `flex_attention`, forward and backward; \"eager\" is cuDNN (a loss to it)",
        "attention", "## flex_attention", "causal, 128, 4096, both", "sdpa", "Inductor", "litz",
    ),
    Figure(
        "a sharded training step on 4 GPUs; Inductor and litz with overlap",
        "overlap", "## Communication that is hidden, four H200", "",
        ("fsdp, eager", "step ms"), ("fsdp, Inductor, overlap scheduling and bucketing", "step ms"),
        ("fsdp, litz, `overlap`", "step ms"),
    ),
    Figure(
        "GPT-2, inference, 4 CPU cores (measured by the script's forerunner)",
        "side_by_side", "## Models, CPU", "GPT-2 inference", "eager ms", "Inductor ms", "litz ms",
    ),
)  # fmt: skip
ERRORS: Mapping[str, Mapping[str, str]] = {
    "collectives.md": {label: label for label in (
        "litz, fitted to 2 and 4 ranks, on these", "the same, on 3 ranks, which it has not seen",
        "litz, fitted to 2 and 3 ranks, on 4", "litz without calibration, on 2, 3 and 4",
    )},
    "benchmarks.md": {
        "litz, calibrated on 2 and 4 ranks, on another run of these": "litz, fitted to 2 and 4 ranks, on these",
        "the same, on 3 ranks": "the same, on 3 ranks, which it has not seen",
    },
}  # fmt: skip
"""Rows of pages, by their labels: the row of `collective_errors` that each is."""


def rows() -> list[dict[str, str]]:
    """README's rows, each by column. KeyError: docs/benchmarks.md has no such table, row or column."""
    text = BENCHMARKS.read_text(encoding="utf-8")
    return [_row(figure, _table(text, figure.under)) for figure in FIGURES]


def table(found: Iterable[Mapping[str, str]]) -> str:
    """README's table as Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row[name] for name in HEADINGS)} |" for row in found)])


def complaints(found: Sequence[Mapping[str, str]] | None = None) -> list[str]:
    """Where README says something else than docs/benchmarks.md does; a line for each. found: in place of `rows()`."""
    readme, benchmarks = (_plain(path.read_text(encoding="utf-8")) for path in (README, BENCHMARKS))
    wanted = table(rows() if found is None else found).splitlines()
    there = README.read_text(encoding="utf-8").splitlines()
    missing = [f"README.md lacks the row\n  {line}" for line in wanted if line not in there]
    known = {f"`{figure.script}`" for figure in FIGURES}
    scripts = {name for name in known if not (ROOT / "benchmarks" / f"{name.strip('`')}.py").exists()}
    missing += [f"benchmarks/ has no script {name}" for name in sorted(scripts)]
    for sentence, in_readme in summaries().items():
        missing += [] if sentence in benchmarks else [f"docs/benchmarks.md does not say: {sentence}"]
        missing += [] if sentence in readme or not in_readme else [f"README.md does not say: {sentence}"]
    return missing + _wrong_errors()


def summaries() -> Mapping[str, bool]:
    """Sentences of docs/benchmarks.md that sum tables up, as the tables give them; whether README says them too."""
    text = BENCHMARKS.read_text(encoding="utf-8")
    inference, training = ([*_table(text, task).values()] for task in (INFERENCE, TRAINING))
    attention = _table(text, "## flex_attention")
    forward = [cells for label, cells in attention.items() if label.endswith("forward")]
    both = [cells for label, cells in attention.items() if label.endswith("both")]
    memory = [float(cells["litz"]) for cells in _table(text, "## Memory-bound kernels, one H100").values()]
    eager = [min(_ratios(cells, "eager ms", "litz ms")) for cells in (inference, training)]
    models = [
        f"{_mean(_ratios(cells, 'Inductor ms', 'litz ms'))} ({len(cells)} models), "
        f"wall time {_mean([float(row['wall']) for row in cells])}"
        for cells in (inference, training)
    ]
    passes = [_ratios(cells, "Inductor", "litz") for cells in (forward, both)]
    return {
        f"inference {models[0]}; training {models[1]}": True,
        f"no model is slower: {eager[0]:.2f} at the least in inference, {eager[1]:.2f} in training": False,
        f"Inductor / litz: {_mean(passes[0])} forward ({len(forward)} rows), {_mean(passes[1])} with the backward "
        f"({len(both)}), the least {min(map(min, passes)):.2f}": False,
        f"{sum(share >= 0.92 for share in memory)} of the {len(memory)} are at 0.92 or more": False,
    }


def _ratios(rows: Iterable[Mapping[str, str]], over: str, under: str) -> list[float]:
    return [float(row[over]) / float(row[under]) for row in rows]


def _mean(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.2f}"


def _wrong_errors() -> list[str]:
    """Where docs/ says other errors of estimated collectives than the measurements give."""
    found, errors = [], collective_errors.rows()
    for page, labels in ERRORS.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for label, row in labels.items():
            line = f"| {label} | {' | '.join(errors[row])} |"
            found += [] if line in text else [f"docs/{page} lacks the row\n  {line}"]
    small, large = zip(*(each.split(" / ") for each in errors["the other host"]), strict=True)
    sentence = f"they are {_listed(small)} % off, {_listed(large)} from 1 MiB up"
    page = _plain((ROOT / "docs" / "collectives.md").read_text(encoding="utf-8"))
    return found if sentence in page else [*found, f"docs/collectives.md does not say: {sentence}"]


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _row(figure: Figure, cells: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    def of(place: tuple[str, str] | str) -> str:
        if not place:
            return ""
        row, column = place if isinstance(place, tuple) else (figure.row, place)
        return re.sub(r"[* ]|\(.*\)", "", cells[row][column])

    values = (
        figure.label,
        of(figure.eager),
        of(figure.inductor),
        of(figure.litz),
        of(figure.wall),
        f"`{figure.script}`",
    )
    return dict(zip(HEADINGS, values, strict=True))


def _table(text: str, under: str) -> Mapping[str, Mapping[str, str]]:
    """The first table below a line, by the first cell of each row and by its column's heading."""
    lines = iter(text.splitlines())
    if not any(line == under for line in lines):
        raise KeyError(f"{BENCHMARKS.name} has no line {under!r}")
    found: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
        elif found:
            break
    headings, _, *rest = found
    return {cells[0]: dict(zip(headings, cells, strict=True)) for cells in rest}


def _plain(text: str) -> str:
    return " ".join(text.split())


def main() -> int:
    """0 if README and docs/benchmarks.md agree."""
    if "--write" in sys.argv[1:]:
        text = README.read_text(encoding="utf-8")
        README.write_text(TABLE.sub(lambda mark: f"{mark[1]}{table(rows())}\n{mark[3]}", text), encoding="utf-8")
    found = complaints()
    counts = (len(FIGURES), sum(map(len, ERRORS.values())), len(summaries()))
    checked = "{} rows of README.md, {} rows and {} summaries of docs/".format(*counts)
    print("\n".join(found) or f"{checked} agree with their sources")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
