"""Tables of measured rows: in, the rows of benchmarks/results; out, Markdown.

Ratios above 1 are in litz's favour, but for memory, where litz's peak is divided by Inductor's.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median

from benchmarks.record import PEERS, TASKS, WHOLE_MODELS, Row

MEMORY = "memory, litz / Inductor"
FAR = 3
"""A row is an outlier where its ratio is so many times the median, or the median so many times its ratio."""
FEWEST, MOST, SHORT, MEMORY_ROWS = 2, 7, 2, 3
"""Rows of a task's table on the page of all tasks: the slowest, and all losses up to `MOST`, or `SHORT` where a task
has two tables."""
JUDGED_BY: Mapping[str, Sequence[str]] = {
    "inference": ("kernel_ms", "wall_ms"),
    "training": ("kernel_ms", "wall_ms"),
    "first_calls": ("cold_s", "warm_s"),
    "decoding": ("wall_ms",),
    "artifacts": ("cold_s", "warm_s"),
}
"""Measures whose ratios a task's table has; the first that a row has, of `ONE_OF`, for all others."""
ONE_OF = ("copy_share", "kernel_ms", "wall_ms")
OVER: Mapping[str, Sequence[str]] = {"products": ("eager",), "communication": ("inductor", "inductor, overlap")}
"""Whom litz is compared with, where that is not Inductor: the fastest of these."""
OURS: Mapping[str, Sequence[str]] = {"communication": ("litz", "litz, overlap")}
HEADINGS: Mapping[str, str] = {
    "kernel_ms": "kernels", "wall_ms": "clock", "copy_share": "speed", "cold_s": "cold", "warm_s": "warm",
    "peak_mib": "memory",
}  # fmt: skip
IN_MS = ("inference", "training")
"""Tasks whose tables have milliseconds of kernels, and "(clock)" behind those that were measured on the clock alone."""


def measures(row: Row) -> Sequence[str]:
    """The measures that a row is judged by."""
    if row.task in JUDGED_BY:
        return JUDGED_BY[row.task]
    return [each for each in ONE_OF if ratio(row, each) is not None][:1]


def ratio(row: Row, measure: str) -> float | None:
    """How many times as fast litz is as the fastest of whom the task compares it with; for memory, as `Row.ratio`."""
    ours = OURS.get(row.task, ("litz",))
    fastest = [
        max((found for own in ours if (found := row.ratio(measure, theirs, own)) is not None), default=None)
        for theirs in OVER.get(row.task, ("inductor",))
    ]
    return min((found for found in fastest if found is not None), default=None)


def worst(row: Row) -> float:
    """The lowest of the ratios that a row is judged by, as tables show it; infinite where there is none."""
    found = (ratio(row, each) for each in measures(row))
    return min((round(each, 2) for each in found if each is not None), default=float("inf"))


# ---------------------------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class Group:
    """Rows that one line sums up. label: in words. measure: of the ratios, "" where rows differ in it. holds:
    which rows are in the group. over: the peer that litz is compared with, where that is not the task's own."""

    label: str
    task: str
    measure: str
    mode: str = "default"
    holds: Callable[[Row], bool] = field(default=lambda row: True)
    over: str = ""


def on_gpu(row: Row) -> bool:
    """Whether the row is of a GPU."""
    return "NVIDIA" in row.device


def _device(name: str) -> Callable[[Row], bool]:
    return lambda row: name in row.device


GRAPHS, TUNED = "reduce-overhead", "max-autotune"
GROUPS: Sequence[Group] = (
    Group("inference, kernels", "inference", "kernel_ms", holds=on_gpu),
    Group("inference, clock", "inference", "wall_ms", holds=on_gpu),
    Group("inference, reduce-overhead, clock", "inference", "wall_ms", GRAPHS),
    Group("inference, max-autotune, clock", "inference", "wall_ms", TUNED),
    Group("training, kernels", "training", "kernel_ms", holds=on_gpu),
    Group("training, clock", "training", "wall_ms", holds=on_gpu),
    Group("training, reduce-overhead, clock", "training", "wall_ms", GRAPHS),
    Group("peak memory of inference, litz / Inductor", "inference", "peak_mib"),
    Group("peak memory of training, litz / Inductor", "training", "peak_mib"),
    Group("first call on a GPU, empty caches", "first_calls", "cold_s", holds=on_gpu),
    Group("first call on a GPU, full caches", "first_calls", "warm_s", holds=on_gpu),
    Group("first call on a CPU, empty caches", "first_calls", "cold_s", holds=lambda row: not on_gpu(row)),
    Group("first call on a CPU, full caches", "first_calls", "warm_s", holds=lambda row: not on_gpu(row)),
    Group("first call, max-autotune, empty caches", "first_calls", "cold_s", TUNED),
    Group("memory-bound kernels, H100", "kernels", "", holds=_device("H100")),
    Group("memory-bound kernels, H200", "kernels", "", holds=_device("H200")),
    Group("memory-bound kernels, CPU", "kernels", "", holds=_device("CPU")),
    Group("flex_attention", "attention", "kernel_ms"),
    Group("flex_attention, the library's attention / litz", "attention", "kernel_ms", over="library"),
    Group("products, eager / litz", "products", "kernel_ms"),
    Group("decoding, CUDA graphs", "decoding", "wall_ms", GRAPHS),
    Group("a model compiled and stored, CPU", "artifacts", "cold_s", holds=lambda row: not on_gpu(row)),
    Group("a stored model loaded and called, CPU", "artifacts", "warm_s", holds=lambda row: not on_gpu(row)),
    Group("the host's time for a launch", "host", "wall_ms"),
)


def ratios_of(group: Group, rows: Iterable[Row]) -> list[tuple[float, Row]]:
    """The ratios of a group's rows."""
    alike = [row for row in rows if (row.task, row.mode) == (group.task, group.mode) and group.holds(row)]
    by = ((row, group.measure or next(iter(measures(row)), "wall_ms")) for row in alike)
    both = ((row.ratio(name, group.over) if group.over else ratio(row, name), row) for row, name in by)
    return [(found, row) for found, row in both if found is not None]


def artefacts(rows: Iterable[Row]) -> set[tuple[str, str]]:
    """(task, case) of models where Inductor's kernels take longer than eager's, in default mode."""
    found = set()
    for row in rows:
        theirs, eager = row.figure("inductor", "kernel_ms"), row.figure("eager", "kernel_ms")
        if row.task in WHOLE_MODELS and row.mode == "default" and theirs and eager and theirs > eager:
            found.add((row.task, row.case))
    return found


def outliers(group: Group, rows: Sequence[Row]) -> list[Row]:
    """Rows that lift or lower a mean: Inductor is slower than eager, the ratio is far from the median, or the measure
    is the clock and the row was not measured alone."""
    found, slow = ratios_of(group, rows), artefacts(rows)
    middle = median([number for number, _ in found])
    far = [row for number, row in found if not middle / FAR <= number <= middle * FAR]
    busy = [row for _, row in found if group.measure == "wall_ms" and row.alone is False]
    return [row for _, row in found if row in far or row in busy or (row.task, row.case) in slow]


def summary_table(rows: Sequence[Row], groups: Sequence[Group] = GROUPS) -> str:
    """A line for each group that has rows, with and without outliers."""
    lines = [
        "| what | rows | median | mean | losses | without outliers: rows | median | mean | worst |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for group in groups:
        found = ratios_of(group, rows)
        if not found:
            continue
        left_out = outliers(group, rows)
        memory = group.measure == "peak_mib"
        least, row = (max if memory else min)(found, key=lambda each: each[0])
        losses = sum(round(number, 2) > 1 if memory else round(number, 2) < 1 for number, _ in found)
        cells = [group.label, *_averages([number for number, _ in found])]
        cells += [str(losses), *_averages([number for number, row in found if row not in left_out])]
        cells.append(f"{least:.2f} ({_short_case(row.case)}, {_kind(row.device)})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _kind(device: str) -> str:
    return "CPU" if device.startswith("CPU") else short_device(device)


def _averages(ratios: Sequence[float]) -> list[str]:
    return [str(len(ratios)), f"{median(ratios):.2f}", f"{geometric_mean(ratios):.2f}"]


def outlier_list(rows: Sequence[Row]) -> str:
    """The outliers of whole models by their cause, as sentences."""
    slow = artefacts(rows)
    lines = []
    for task in WHOLE_MODELS:
        group = Group("", task, "kernel_ms", holds=on_gpu)
        far = [row for row in outliers(group, rows) if (row.task, row.case) not in slow]
        slower = _listed(case for of, case in slow if of == task)
        lines.append(f"{task.capitalize()}: Inductor is slower than eager for {slower}; "
                     f"far from the median are {_listed(row.case for row in far)}.")  # fmt: skip
    return " ".join(lines)


def _listed(names: Iterable[str]) -> str:
    found = sorted(map(_short_case, names))
    return ", ".join(found) if found else "none"


def _short_case(case: str) -> str:
    return case.rpartition(":")[2] if case.startswith(("timm:", "transformers:")) else case


# -------------------------------------------------------------------------------------------------------------- tables


def of_task(task: str, rows: Iterable[Row]) -> list[Row]:
    """A task's rows, losses first."""
    return sorted((row for row in rows if row.task == task), key=worst)


def lost(row: Row) -> bool:
    """Whether litz is slower by one of the ratios that the row is judged by."""
    return worst(row) < 1


def slowest(task: str, rows: Sequence[Row], most: int = MOST) -> str:
    """The task's losses, up to so many, and where there are fewer, the rows next to them; '' for a task without one."""
    found = of_task(task, rows)
    losses = sum(map(lost, found))
    return table(found[: min(max(losses, FEWEST), most)], brief=True) if losses else ""


def most_memory(rows: Sequence[Row]) -> str:
    """The models for which litz takes most beyond Inductor."""
    found = [row for row in rows if (row.ratio("peak_mib") or 0) > 1]
    return table(sorted(found, key=lambda row: -(row.ratio("peak_mib") or 0))[:MEMORY_ROWS], brief=True, bold=False)


def table(rows: Sequence[Row], brief: bool = False, home: str = "docs/benchmarks", bold: bool = True) -> str:
    """The rows as Markdown. brief: without what the task's own page adds. home: the page's folder. bold: for losses."""
    columns = [*_columns(rows, brief, bold)]
    if not brief:
        columns.append(("source", lambda row: _source(row, home)))
    columns = [(name, of) for name, of in columns if name in ("case", "date", "commit") or any(of(row) for row in rows)]
    lines = [f"| {' | '.join(name for name, _ in columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(of(row) for _, of in columns)} |" for row in rows)])


Column = tuple[str, Callable[[Row], str]]


def _columns(rows: Sequence[Row], brief: bool, bold: bool) -> Iterator[Column]:
    task = rows[0].task
    yield "case", lambda row: f"**{row.case}**" if bold and lost(row) else row.case
    yield "mode", lambda row: "" if row.mode == "default" else row.mode
    yield "device", lambda row: short_device(row.device)
    if "warm_s" in JUDGED_BY.get(task, ()):
        for state in ("cold", "warm"):
            for peer, name in (("inductor", "Inductor"), ("litz", "litz")):
                yield f"{name} {state}, s", lambda row, p=peer, s=state: number(row.figure(p, f"{s}_s"))  # type: ignore[misc]
    else:
        for peer in PEERS:
            name = peer.replace("inductor", "Inductor")
            unit = ", ms" if task in IN_MS else ""
            yield name + unit, lambda row, p=peer: figure(row, p)  # type: ignore[misc]
    over = "eager" if task == "products" else "Inductor"
    for measure in JUDGED_BY.get(task, ("",)):
        heading = f"{over} / litz" + (f": {HEADINGS[measure]}" if measure else "")
        yield heading, lambda row, m=measure: number(ratio(row, m or next(iter(measures(row)), "wall_ms")))  # type: ignore[misc]
    if task == "attention":
        yield "library / litz", lambda row: number(row.ratio("kernel_ms", "library"))
    if task in WHOLE_MODELS:
        yield MEMORY, lambda row: number(row.ratio("peak_mib"))
    if task == "artifacts":
        yield "MiB: Inductor, litz", lambda row: _both(row, "stored_mib")
    if task == "budgets":
        for measure, name in (("budget_mib", "budget"), ("planned_mib", "planned"), ("peak_mib", "measured")):
            yield f"{name}, MiB", lambda row, m=measure: number(row.figure("litz", m))  # type: ignore[misc]
    if task == "communication":
        for peer, name in (("inductor, overlap", "Inductor"), ("litz, overlap", "litz")):
            yield f"{name} with overlap: exposed ms", lambda row, p=peer: number(row.figure(p, "exposed_ms"))  # type: ignore[misc]
            yield f"{name}: GiB", lambda row, p=peer: _gib(row.figure(p, "peak_mib"))  # type: ignore[misc]
    if not brief:
        yield "kernels: Inductor, litz", lambda row: _both(row, "kernels")
        if "cold_s" not in JUDGED_BY.get(task, ()):
            yield "first call, s: Inductor, litz", lambda row: _both(row, "cold_s")
        yield "errors: eager, litz", lambda row: _both(row, "error", ("eager", "litz"))
    yield "date", lambda row: (row.date or "not noted").replace("/", " to ")
    yield "commit", lambda row: row.commit or "not noted"
    if not brief:
        yield "script", lambda row: f"`{row.script}`"
    yield "note", _note


def number(value: float | None) -> str:
    """A figure as tables have it, "" where there is none."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.3g}"


def _gib(mib: float | None) -> str:
    return "" if mib is None else number(mib / 1024)


def short_device(device: str) -> str:
    """A device's name in tables: H100 for NVIDIA H100 80GB HBM3."""
    if "NVIDIA" not in device:
        return device
    return device.replace("NVIDIA ", "").replace(" 80GB HBM3", "").partition(" of one host")[0]


def figure(row: Row, peer: str) -> str:
    """A peer's time or speed: of whole models in milliseconds, of kernels with its unit."""
    share, kernel, wall = (row.figure(peer, measure) for measure in ("copy_share", "kernel_ms", "wall_ms"))
    if row.task in IN_MS:
        return number(kernel) if kernel is not None else f"{number(wall)} (clock)" if wall is not None else ""
    value = next((each for each in (kernel, wall, row.figure(peer, "processor_ms")) if each is not None), None)
    if share is not None and (value is None or row.task == "kernels"):
        return f"{number(share)} of a copy"
    return "" if value is None else f"{value * 1e3:.1f} µs" if value < 1 else f"{number(value)} ms"


def _both(row: Row, measure: str, peers: Sequence[str] = ("inductor", "litz")) -> str:
    found = [row.figure(peer, measure) for peer in peers]
    if not any(found):
        return ""
    return ", ".join("-" if each is None else f"{each:.1e}" if measure == "error" else _plain(each) for each in found)


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else number(value)


def _note(row: Row) -> str:
    said = [row.note, *(f"{peer}: {why}" for peer, why in row.problems.items())]
    return "; ".join(filter(None, said)).replace("|", "\\|")


def _source(row: Row, home: str) -> str:
    if row.source == "script":
        return "script"
    path, _, anchor = row.source.partition("#")
    return f"[lab]({posixpath.relpath(path, home)}#{anchor})"


def span(rows: Sequence[Row]) -> str:
    """The first and the last day of measurements."""
    days = sorted(day for row in rows if row.date for day in row.date.split("/"))
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def hardware(rows: Sequence[Row]) -> str:
    """Devices with their numbers of rows; CPUs are one."""
    return _counted(_kind(row.device) for row in rows)


def provenance(task: str, rows: Sequence[Row], home: str = "docs") -> str:
    """Where a task's rows are from: script, data, commits, dates, hardware and libraries, in one paragraph."""
    found = of_task(task, rows)
    scripts = ", ".join(f"[{name}]({_to(f'benchmarks/{name}.py', home)})" for name in sorted({r.script for r in found}))
    commits = _counted(row.commit or "not noted" for row in found)
    versions = _counted(f"torch {row.versions['torch']}" for row in found if "torch" in row.versions)
    return (
        f"{TASKS[task][0].upper()}{TASKS[task][1:]}. Scripts: {scripts}; data: [{task}.jsonl]"
        f"({_to(f'benchmarks/results/{task}.jsonl', home)}), {len(found)} rows. Dates: {span(found)}. "
        f"Hardware: {hardware(found)}. Commits: {commits}. Libraries: {versions}."
    )


def _to(path: str, home: str) -> str:
    return posixpath.relpath(path, home)


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{word} ({count})" for word, count in Counter(words).most_common())
