"""What a candidate for a rule gains: cases of `benchmarks.gpu_kernels` with the rule as it is and with others.

    python -m benchmarks.gpu_variants [--only NAME ...] [--seconds S] [--json PATH]

A row for each case and setting of `ROWS`: microseconds with a cold L2 cache (median), and the share of the copy
bandwidth that the bytes of a perfect kernel make of that. All in one process, one after the other; results are compared
with float64. A setting changes names of modules for the time of one compile (`SETTINGS`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import litz.schedule as schedule_room
from litz.codegen.triton import sharing
from litz.schedule import estimate, split
from litz.schedule.direction import walk_back
from litz_plugins import Pass

from .gpu_kernels import CASES, DTYPES, Case, Timer, as_list, check, copy_bandwidth


def _with_walk_back() -> tuple[Pass, ...]:
    return (*_passes(), Pass("walk_back", "schedule", walk_back, after=("run_beside",)))


_passes = schedule_room.core_schedule_passes

SETTINGS: Mapping[str, Sequence[tuple[Any, str, Any]]] = {
    "as it is": (),
    "alike": ((split, "ROUNDED_ONCE", True),),
    "alike, half as many": ((split, "ROUNDED_ONCE", True), (split, "GPU_WAVES", 2)),
    "shared rows": ((sharing, "SHARED", True), (estimate, "SHARED", True)),
    "innermost": ((split, "INNERMOST", True),),
    "innermost, back": ((split, "INNERMOST", True), (schedule_room, "core_schedule_passes", _with_walk_back)),
}
"""(module, name, value) of what differs."""

ALIKE = ("as it is", "alike", "alike, half as many")
ROWS: Sequence[tuple[str, Sequence[str]]] = (
    ("modulation backward bf16", ALIKE),
    ("modulation backward f32", ALIKE),
    ("batch norm + relu, channels last bf16", ("as it is", "innermost", "innermost, back")),
    ("batch norm + relu, channels last f32", ("as it is", "innermost", "innermost, back")),
    ("batch norm + relu bf16", ("as it is", "shared rows")),
    ("batch norm + relu f32", ("as it is", "shared rows")),
    ("softmax 50257 bf16", ("as it is", "shared rows")),
    ("softmax 50257 f32", ("as it is", "shared rows")),
    ("column sum bf16", ("as it is", "innermost")),
    ("column sum f32", ("as it is", "innermost")),
    ("gelu backward bf16", ("as it is", "innermost")),
    ("silu backward bf16", ("as it is", "innermost")),
)


@contextmanager
def changed(setting: str) -> Iterator[None]:
    """Until the end, litz decides as a setting says."""
    changes = SETTINGS[setting]
    kept = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def _compiled(case: Case, setting: str, folder: str) -> Callable[[], Any]:
    """The case compiled by litz. A cache of its own for each setting: keys do not know of settings."""
    torch._dynamo.reset()
    options = {"cache_dir": str(Path(folder) / setting.replace(" ", "_").replace(",", ""))}
    with changed(setting), torch.no_grad():
        compiled = torch.compile(case.function, backend="litz", dynamic=False, options=options)
        results = as_list(compiled(*case.args))
    check(case, results)
    return lambda: compiled(*case.args)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose names hold one of these")
    parser.add_argument("--seconds", type=float, default=120, help="after which no further row is begun")
    options = parser.parse_args(argv)
    begun, timer = time.monotonic(), Timer()
    peak = copy_bandwidth(timer)
    print(f"{torch.cuda.get_device_name()}: copy {peak / 1e9:.0f} GB/s", flush=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="litz-benchmark-") as folder:
        for row, settings in ROWS:
            if options.only and not any(part in row for part in options.only):
                continue
            if time.monotonic() - begun > options.seconds:
                print(f"{row}: no time left")
                continue
            name, short = row.rsplit(" ", 1)
            case = CASES[name](DTYPES[short])
            for setting in settings:
                line = f"{row:38}{setting:24}"
                try:
                    call = _compiled(case, setting, folder)
                    with torch.no_grad():
                        us = timer(call)
                except Exception as error:  # one setting's failure must not cost the others
                    print(f"{line}{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", flush=True)
                    continue
                print(f"{line}{us:8.1f} us {case.bytes / us * 1e6 / peak:6.2f}", flush=True)
                rows.append({"case": row, "setting": setting, "us": us, "bytes": case.bytes})
            del case
            torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "copy": peak, "rows": rows}))


if __name__ == "__main__":
    main()
