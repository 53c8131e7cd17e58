"""Measured convolutions: a file of times in either layout, which count before the table.

    python -m litz_layout.measured --out FILE SCRIPT [ARGS ...]

runs SCRIPT, times every convolution that it compiles with litz on the device that it ran on, channels first and last,
and writes FILE; `layout.measurements` (LITZ_LAYOUT_MEASUREMENTS) names it in later compiles.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

FORMAT = "litz-layout-measurements"
VERSION = 1
BATCH_US = 2000.0
"""The µs of the calls on a GPU that are timed together."""


@dataclass(frozen=True)
class Figures:
    """Measured convolutions: signature -> (µs channels first, µs channels last)."""

    rows: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A convolution to measure. sizes: of its tensors, in the order of the op's arguments. parameters: stride, padding,
    dilation, transposed, output_padding, groups. gradients: of a backward, which are wanted; None for a forward."""

    signature: str
    dtype: str
    device: str
    sizes: tuple[tuple[int, ...], ...]
    parameters: tuple[Any, ...]
    gradients: tuple[bool, ...] | None = None


def load_figures(path: Path | None, device: str) -> Figures:
    """Returns the figures of a file for a device, by the name that its driver gives it; none if there is no file to
    read.

    ValueError, which says what to do, for a file that is not what `python -m litz_layout.measured` writes.
    """
    if path is None:
        return Figures()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"it is {content['format']} of version {content['version']}")
        rows = {row["signature"]: (float(row["us"][0]), float(row["us"][1])) for row in content["rows"]}
        named = str(content["device"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"layout.measurements: {path} has no measurements ({error}); write it with python -m litz_layout.measured"
        ) from error
    return Figures(rows if named == device else {})


def measure(case: Case, seconds: float = 0.05) -> tuple[float, float]:
    """Returns the median µs of the convolution, channels first and channels last, each with its operands in that
    layout.

    seconds: of measuring per layout; the two are timed in turn, so that a machine that changes its speed changes both.
    """
    calls = [_call(case, channels_last) for channels_last in (False, True)]
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for call in calls:
            for _ in range(3):
                call()
        repeats = [_repeats(call, case.device) for call in calls]
        deadline = time.perf_counter() + 2 * seconds
        while len(times[0]) < 5 or time.perf_counter() < deadline:
            for call, count, found in zip(calls, repeats, times, strict=True):
                found.append(_elapsed_us(call, count, case.device) / count)
    return statistics.median(times[0]), statistics.median(times[1])


def _call(case: Case, channels_last: bool) -> Callable[[], Any]:
    dtype = getattr(torch, case.dtype)
    tensors = [_operand(size, dtype, case.device, channels_last) for size in case.sizes]
    if case.gradients is None:
        return partial(torch.ops.aten.convolution.default, *tensors, None, *case.parameters)
    wanted = [*case.gradients[:2], False]
    return partial(torch.ops.aten.convolution_backward.default, *tensors, None, *case.parameters, wanted)


def _repeats(call: Callable[[], Any], device: str) -> int:
    """Returns how many calls to time together: on a GPU so many that starting the first of them does not count."""
    return max(1, min(100, int(BATCH_US / _elapsed_us(call, 1, device)))) if device.startswith("cuda") else 1


def _elapsed_us(call: Callable[[], Any], repeats: int, device: str) -> float:
    """Returns the µs of `repeats` calls, one after the other."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return (time.perf_counter() - start) * 1e6


def _operand(size: Sequence[int], dtype: torch.dtype, device: str, channels_last: bool) -> torch.Tensor:
    format_ = torch.contiguous_format
    if channels_last:
        format_ = torch.channels_last if len(size) == 4 else torch.channels_last_3d
    return torch.randn(tuple(size), device=device).to(dtype).contiguous(memory_format=format_)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def find_cases(reports: Sequence[Any]) -> list[Case]:
    """Returns the convolutions of compiled graphs, each once, from the reports' attachments."""
    found: dict[str, Case] = {}
    for report in reports:
        for item in json.loads(report.attachments.get("convolutions.json", "[]")):
            sizes = tuple(map(tuple, item["sizes"]))
            gradients = None if item["gradients"] is None else tuple(item["gradients"])
            fields = {**item, "sizes": sizes, "parameters": tuple(item["parameters"]), "gradients": gradients}
            found.setdefault(item["signature"], Case(**fields))
    return list(found.values())


def to_json(cases: Sequence[Case]) -> str:
    """Returns the cases as the JSON that `find_cases` reads."""
    return json.dumps([asdict(case) for case in cases], indent=1) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    from litz import report
    from litz.target import target_of

    parser = argparse.ArgumentParser(prog="python -m litz_layout.measured", description="Measure convolutions.")
    parser.add_argument("--out", required=True, type=Path, help="the file to write")
    parser.add_argument("--seconds", type=float, default=0.05, help="of measuring per convolution and layout")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    before, sys.argv = sys.argv, [given.script, *given.args]
    try:
        with report.collect() as reports:
            runpy.run_path(given.script, run_name="__main__")
    finally:
        sys.argv = before
    rows = []
    device = ""
    for case in find_cases(reports):
        us = measure(case, given.seconds)
        device = target_of(case.device).name
        rows.append({"signature": case.signature, "us": us})
        print(f"{us[0]:10.1f} {us[1]:10.1f}  {case.signature}")
    content = {"format": FORMAT, "version": VERSION, "device": device, "torch": torch.__version__, "rows": rows}
    given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} convolutions, µs channels first and last, in {given.out}")


if __name__ == "__main__":
    main()
