"""The figures of README and docs: every one is made from data, and this module says where a page has another.

In: benchmarks/results (`benchmarks.record`), and the measurements of collectives in tests/collectives/data. Out: the
tables of README, of docs/index.md and of docs/benchmarks.md, between `<!-- made: NAME -->` and `<!-- end -->`, and the
pages of docs/benchmarks/, with every row. `python -m website.figures` compares; with `--write` it writes them anew.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.record import TASKS, Row, newest, read_rows

from website import collective_errors, tables

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
FRONT = ROOT / "docs" / "index.md"
PAGES = ROOT / "docs" / "benchmarks"
BLOCK = re.compile(r"(<!-- made: ([^>]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*\w)")
VERSION = re.compile(r"(torch|Python|Triton|transformers|CUDA|BSD) ?\d[\d.]*")
README_GROUPS = (
    "inference, kernels", "inference, clock", "training, kernels", "training, clock",
    "inference, reduce-overhead, clock", "training, reduce-overhead, clock", "inference, max-autotune, clock",
    "first call on a GPU, empty caches", "first call on a GPU, full caches", "first call on a CPU, empty caches",
    "peak memory of inference, litz / Inductor", "peak memory of training, litz / Inductor",
    "memory-bound kernels, H100", "flex_attention", "flex_attention, the library's attention / litz",
    "decoding, CUDA graphs",
)  # fmt: skip
FRONT_GROUPS = (
    "inference, kernels", "training, kernels", "inference, clock", "training, clock",
    "first call on a GPU, empty caches", "peak memory of training, litz / Inductor",
)  # fmt: skip
README_MODELS: Sequence[tuple[str, str, str, str]] = (
    ("GPT-2, inference", "inference", "gpt2", "default"),
    ("GPT-2, training", "training", "gpt2", "default"),
    ("GPT-2, inference, CUDA graphs", "inference", "gpt2", "reduce-overhead"),
    ("a Llama of 8 layers, inference", "inference", "llama", "default"),
    ("ResNet-50, training", "training", "resnet50", "default"),
    ("a GRU, inference (a loss)", "inference", "gru", "default"),
    ("StarCoder2 of 4 layers, training (a loss by the clock, while other models compiled)",
     "training", "transformers:starcoder2", "default"),
    ("Mamba-2, training (an outlier)", "training", "mamba2", "default"),
)  # fmt: skip
"""README's models: in words, and the task, the case and the mode of the row."""
MORE: Mapping[str, str] = {
    "inference": "[causes and changes](lab/models.md#which-models-were-slower-and-why).",
    "training": "[causes and changes](lab/models.md#which-models-were-slower-and-why).",
    "first_calls": "[long programs, and where the time goes](lab/compile_time.md).",
    "kernels": "[tilings, and what models showed](lab/kernels.md); [CPUs](lab/cpu.md).",
    "attention": '[what was tried](lab/attention.md). "Library" is cuDNN, which takes no mask or score of one\'s own.',
    "products": "[few rows, and other sizes](lab/products.md); [max-autotune](lab/autotune.md). "
    "Inductor was not measured. "
    "The tiles were fitted to these products, so the rows check no others.",
    "decoding": "[what changed](lab/products.md#decoding). Inductor's max-autotune was not measured.",
    "artifacts": "[what a package is](aot.md). Inductor is AOTInductor.",
    "communication": "[how well estimates of collectives fit](collectives.md#how-well-it-fits); "
    "[overlap](lab/communication.md). The ratio compares the faster way of each.",
}
"""Tasks that docs/benchmarks.md has a table for, and what follows the line that says where the table is from."""
TITLES = {"kernels": "Memory-bound kernels", "first_calls": "First calls"}
"""Headings of tasks whose name is none."""
ERRORS: Mapping[str, Mapping[str, str]] = {
    "collectives.md": {label: label for label in (
        "litz, fitted to 2 and 4 ranks, on these", "the same, on 3 ranks, which it has not seen",
        "litz, fitted to 2 and 3 ranks, on 4", "litz without calibration, on 2, 3 and 4",
    )},
}  # fmt: skip
"""Rows of pages, by their labels: the row of `collective_errors` that each is."""


def blocks(rows: Sequence[Row]) -> dict[str, str]:
    """What stands in README and docs/benchmarks.md, by name."""
    of = {group.label: group for group in tables.GROUPS}
    return {
        "summary": f"{tables.summary_table(rows)}\n\nOutliers lift the means. {tables.outlier_list(rows)}",
        "tasks": "\n\n".join(sections(rows)),
        "README summary": tables.summary_table(rows, [of[label] for label in README_GROUPS]),
        "README models": models(rows),
        "front summary": tables.summary_table(rows, [of[label] for label in FRONT_GROUPS]),
    }


def sections(rows: Sequence[Row]) -> Iterator[str]:
    """The sections of docs/benchmarks.md: one for each task that has rows, and one for memory."""
    gpu, cpu = ([row for row in rows if tables.on_gpu(row) == on_gpu] for on_gpu in (True, False))
    for task, more in MORE.items():
        if any(row.task == task for row in rows):
            parts = [(gpu, tables.SHORT), (cpu, tables.SHORT)] if task == "kernels" else [(rows, tables.MOST)]
            found = [tables.slowest(task, part, most) for part, most in parts if tables.of_task(task, part)]
            lost = sum(map(tables.lost, tables.of_task(task, rows)))
            left = lost - sum(table.count("\n| **") for table in found)
            losses = f" {left} more losses are on the task's page." if left else "" if lost else " No row is a loss."
            source = f"{tables.provenance(task, rows)} [All rows](benchmarks/{task}.md); {more}{losses}"
            yield "\n\n".join([f"## {TITLES.get(task, task.capitalize())}\n{source}", *filter(None, found)])
        if task == "training":
            about = "The models for which litz takes most beyond Inductor; the pages of both tasks have all:"
            yield f"## Memory\n{about}\n\n{tables.most_memory(rows)}"


def models(rows: Sequence[Row]) -> str:
    """README's table of single models. Errors: KeyError where a row is not there."""
    headings = ("model", "eager, ms", "Inductor, ms", "litz, ms", "Inductor / litz: kernels", "clock", tables.MEMORY)
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    there = {(row.task, row.case, row.mode): row for row in rows if tables.on_gpu(row)}
    for label, *key in README_MODELS:
        row = there[tuple(key)]  # type: ignore[index]
        times = [tables.figure(row, peer) for peer in ("eager", "inductor", "litz")]
        ratios = [tables.number(row.ratio(name)) for name in ("kernel_ms", "wall_ms", "peak_mib")]
        lines.append(f"| {' | '.join([f'{label}, {tables.short_device(row.device)}', *times, *ratios])} |")
    return "\n".join(lines)


def pages(rows: Sequence[Row]) -> dict[Path, str]:
    """The pages of docs/benchmarks/, with their texts: each task's rows, losses first."""
    found = {}
    for task in TASKS:
        of = tables.of_task(task, rows)
        if of:
            title = f"{task.replace('_', ' ').capitalize()}: every row"
            text = [
                "<!-- Made by `make figures ARGS=--write` from benchmarks/results. -->", f"# {title}", "",
                tables.provenance(task, rows, "docs/benchmarks"), "",
                "Rows that litz loses come first, in bold; [benchmarks](../benchmarks.md) explains the columns.", "",
                tables.table(of), "",
            ]  # fmt: skip
            found[PAGES / f"{task}.md"] = "\n".join(text)
    return found


def filled(text: str, made: Mapping[str, str]) -> str:
    """A page's text with each block made anew. A block that nobody makes stays as it is."""
    return BLOCK.sub(lambda block: f"{block[1]}{made.get(block[2], block[3].rstrip())}\n{block[4]}", text)


def complaints(
    rows: Sequence[Row] | None = None,
    readme: str | None = None,
    benchmarks: str | None = None,
    front: str | None = None,
) -> list[str]:
    """Where README or docs have another figure than the data; a line for each. The arguments: in place of what is
    there. front: the site's first page."""
    rows = newest(read_rows()) if rows is None else rows
    made = blocks(rows)
    texts = {
        "README.md": README.read_text(encoding="utf-8") if readme is None else readme,
        "docs/benchmarks.md": BENCHMARKS.read_text(encoding="utf-8") if benchmarks is None else benchmarks,
        "docs/index.md": FRONT.read_text(encoding="utf-8") if front is None else front,
    }
    found = [line for name, text in texts.items() for line in _wrong_blocks(name, text, made)]
    found += [f"{name}: {number} in prose is of no data: put it into a block" for name, text in texts.items()
              for number in loose_numbers(text)]  # fmt: skip
    wanted = pages(rows)
    for path in sorted({*wanted, *PAGES.glob("*.md")}):
        name = path.relative_to(ROOT).as_posix()
        if path not in wanted:
            found.append(f"{name} has no rows in benchmarks/results")
        elif not path.exists() or path.read_text(encoding="utf-8") != wanted[path]:
            found.append(f"{name} differs from benchmarks/results")
    return found + _wrong_errors()


def _wrong_blocks(name: str, text: str, made: Mapping[str, str]) -> Iterator[str]:
    there = {block[2]: block[3].rstrip("\n") for block in BLOCK.finditer(text)}
    for label, held in there.items():
        if label not in made:
            yield f"{name}: nobody makes the block {label!r}"
            continue
        old, new = held.splitlines(), made[label].splitlines()
        yield from (f"{name}, {label}: the data do not give\n  {line}" for line in old if line not in new)
        yield from (f"{name}, {label} lacks\n  {line}" for line in new if line not in old)
        if set(old) == set(new) and old != new:
            yield f"{name}, {label}: the lines are in another order"


def loose_numbers(text: str) -> list[str]:
    """Numbers with a decimal point outside of blocks and code, but for versions: somebody typed them."""
    bare = re.sub(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)", "", BLOCK.sub("", text), flags=re.DOTALL | re.MULTILINE)
    return NUMBER.findall(VERSION.sub("", bare))


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
    page = " ".join((ROOT / "docs" / "collectives.md").read_text(encoding="utf-8").split())
    return found if sentence in page else [*found, f"docs/collectives.md does not say: {sentence}"]


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def write() -> None:
    """Writes the blocks of README and docs/benchmarks.md and the pages of docs/benchmarks/ anew."""
    rows = newest(read_rows())
    made, wanted = blocks(rows), pages(rows)
    for path in (README, BENCHMARKS, FRONT):
        path.write_text(filled(path.read_text(encoding="utf-8"), made), encoding="utf-8")
    PAGES.mkdir(exist_ok=True)
    for path in set(PAGES.glob("*.md")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """0 if README and docs agree with the data."""
    if "--write" in sys.argv[1:]:
        write()
    found = complaints()
    print("\n".join(found) or f"README.md and docs/ agree with {len(read_rows())} rows of benchmarks/results")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
