"""`python -m litz_testing.fuzz`: run the fuzzer, or one program of it again."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import click
import torch

from .check import Checker
from .execute import FuzzCompiler
from .generate import generate
from .run import Record, failed, run
from .worker import small


@click.command()
@click.option("--seed", default="0", show_default=True, help="a run's programs depend on it alone")
@click.option("--programs", default=1000, show_default=True)
@click.option("--first", default=0, show_default=True, help="the number of the first program, to go on with a run")
@click.option("--seconds", default=float("inf"), help="stop after that long")
@click.option("--workers", default=2, show_default=True, help="processes at a time")
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@click.option("--compiled/--interpreted", default=True, help="kernels too, or only lowering and fusion (faster)")
@click.option("--level", default=1, show_default=True, help="the C++ compiler's -O; the product has 3")
@click.option("--dynamic/--static", default=None, help="only symbolic or only fixed sizes; else both")
@click.option(
    "--numerics",
    default="default",
    show_default=True,
    type=click.Choice(["default", "strict"]),
    help="strict: kernels have eager's values bit for bit (litz-numerics)",
)
@click.option("--folder", default="fuzz_failures", show_default=True, type=click.Path(path_type=Path))
@click.option("--shrink", "shrink_seconds", default=60.0, show_default=True, help="seconds to shrink a failure")
@click.option("--sanitize", is_flag=True, help="C++ kernels with AddressSanitizer, by g++: five times as slow")
@click.option("--json", "path", type=click.Path(path_type=Path), help="where to write the record")
@click.option("--only", help="one program, by its label (SEED:NUMBER), in this process, with its failure in full")
def main(
    seed: str,
    programs: int,
    first: int,
    seconds: float,
    workers: int,
    device: str,
    compiled: bool,
    level: int,
    dynamic: bool | None,
    numerics: str,
    folder: Path,
    shrink_seconds: float,
    sanitize: bool,
    path: Path | None,
    only: str | None,
) -> None:
    """Random programs, compiled by litz, against eager. A failure is shrunk to a script in a folder."""
    if only is not None:
        _again(only, Checker(FuzzCompiler(compiled, level, device, numerics=numerics)), dynamic, shrink_seconds)
        return
    shown, said = [time.time()], [0]

    def show(record: Record) -> None:
        for failure in record.failures[said[0] :]:  # at once: a run may be killed before its end
            click.echo(failed(failure), err=True)
        said[0] = len(record.failures)
        if time.time() - shown[0] > 15:
            shown[0] = time.time()
            click.echo(f"{record.programs} programs, {len(record.failures)} failures, {record.seconds:.0f} s", err=True)

    record = run(
        seed,
        programs,
        seconds,
        start=first,
        workers=workers,
        device=device,
        compiled=compiled,
        level=level,
        dynamic=dynamic,
        numerics=numerics,
        folder=folder,
        shrink_seconds=shrink_seconds,
        sanitize=sanitize,
        show=show,
    )
    click.echo(record.summary())
    if path is not None:
        path.write_text(record.to_json(), encoding="utf-8")
    sys.exit(1 if record.failures else 0)


def _again(label: str, checker: Checker, dynamic: bool | None, shrink_seconds: float) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    program, _ = generate(label, dynamic=dynamic)
    failure = checker.check(program)
    if failure is None:
        click.echo(f"{program.script()}\n# no failure")
        return
    failure = small(failure, checker, shrink_seconds)
    click.echo(failure.program.script(f"{failure.kind}\n{failure.message}"))
    sys.exit(1)


if __name__ == "__main__":
    main()
