"""The command line: which jobs, how, and where the results go."""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path

import click
import torch

from . import results
from .cases import DTYPES, jobs
from .check import Outcome, Way
from .edges import edge_jobs
from .workers import Settings, run_jobs

_MODES = click.Choice(["run", "train", "either"])
_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


@click.command()
@click.option("--dtype", "dtypes", multiple=True, help="float32 (the default), float64, int64, ...; may be repeated")
@click.option("--all-dtypes", is_flag=True, help=f"all of {', '.join(_NAMES)}")
@click.option("--only", help="a regular expression: operators whose name it is found in")
@click.option("--edges", is_flag=True, help="instead: every op that takes a number, at and beyond the type's edges")
@click.option("--samples", default=2, show_default=True, help="samples of each operator and dtype")
@click.option("--static/--dynamic", "static", default=None, help="only static or only dynamic sizes; else both")
@click.option("--mode", "modes", multiple=True, type=_MODES, help="gradients: no, yes, where there are any")
@click.option("--device", default="cpu", show_default=True)
@click.option("--peer", help='another backend, such as "inductor", on the same cases, for a ratio')
@click.option(
    "--peer-cases",
    type=click.Choice(["all", "failed"]),
    default="all",
    show_default=True,
    help="what the peer runs: everything, or the operators and dtypes with a failure",
)
@click.option("--backend", default="litz", show_default=True)
@click.option(
    "--numerics",
    type=click.Choice(["default", "strict"]),
    default="default",
    show_default=True,
    help="strict: values are eager's bit for bit, random ones too (litz-numerics)",
)
@click.option("--workers", default=2, show_default=True, help="processes at a time")
@click.option("--seconds", default=60.0, show_default=True, help="a case may take")
@click.option("--shard", default="0/1", show_default=True, help="K/N: every N-th job, from the K-th")
@click.option("--limit", type=float, help="stop after so many seconds; jobs are then taken in a mixed order")
@click.option("--json", "path", type=click.Path(path_type=Path), help="where to write the results")
@click.option("--strict/--no-strict", default=True, help="exit with 1 if a case fails that is not known to")
def main(
    dtypes: tuple[str, ...],
    all_dtypes: bool,
    only: str | None,
    edges: bool,
    samples: int,
    static: bool | None,
    modes: tuple[str, ...],
    device: str,
    peer: str | None,
    peer_cases: str,
    backend: str,
    numerics: str,
    workers: int,
    seconds: float,
    shard: str,
    limit: float | None,
    path: Path | None,
    strict: bool,
) -> None:
    """Compile PyTorch's operator samples with litz and compare with eager."""
    chosen = DTYPES if all_dtypes else tuple(getattr(torch, name) for name in dtypes) or (torch.float32,)
    part, parts = (int(number) for number in shard.split("/"))
    wanted = (edge_jobs if edges else jobs)(chosen, only, device)[part::parts]
    if limit is not None:
        wanted.sort(key=lambda job: zlib.crc32(str(job).encode()))
    dynamic = (False, True) if static is None else (not static,)

    bits = numerics == "strict"
    way = Way(backend, {"numerics.mode": numerics} if bits else {}, bits)
    settings = Settings(samples, dynamic, modes or ("run", "train"), way, seconds)
    known = {"samples": samples, "dynamic": dynamic, "modes": settings.modes, "device": device, "shard": shard}
    known["numerics"] = numerics
    found = _run(wanted, settings, workers, limit)
    if path is not None:
        results.write(path, found, known | {"backend": backend})
    _show(found)
    if peer:
        if peer_cases == "failed":
            failed = {outcome.case.rsplit("/", 3)[0] for outcome in results.failures(found)}
            wanted = [job for job in wanted if str(job) in failed]
        other = _run(wanted, Settings(samples, dynamic, settings.modes, Way(peer), seconds), workers, limit)
        if path is not None:
            results.write(path.with_suffix(f".{peer}.json"), other, known | {"backend": peer})
        click.echo(f"\n{peer}:\n{results.table(other)}\n\n{results.ratio(found, other)}")
        for case in results.behind(found, other):
            click.echo(f"litz fails and {peer} passes: {case}")
    unknown = [outcome for outcome in results.failures(found) if not results.reason_of(outcome)]
    if strict and unknown:
        sys.exit(1)


def _run(wanted: list, settings: Settings, workers: int, limit: float | None) -> list[Outcome]:
    start, found = time.perf_counter(), []
    for outcome in run_jobs(wanted, settings, workers):
        if limit is not None and time.perf_counter() - start > limit:
            break
        found.append(outcome)
        if outcome.failed and not results.reason_of(outcome):
            click.echo(f"{outcome.case} {outcome.status}: {outcome.detail}", err=True)
        if len(found) % 100 == 0:
            bad = len(results.failures(found))
            click.echo(
                f"{settings.way.backend}: {len(found)} cases, {bad} failed, {time.perf_counter() - start:.0f} s",
                err=True,
            )
    return found


def _show(found: list[Outcome]) -> None:
    text = results.failures_text(found)
    if text:
        click.echo(text + "\n")
    click.echo(results.table(found))
