"""A user's script, run as `python SCRIPT ARGS` would: for plugins' commands that watch what a script compiles. Who has
a command has click, which this package does not need."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import TracebackType


def check_script(script: str, module: bool) -> None:
    """Raises click.UsageError if `script` is no file, unless it is a module's name (`module`)."""
    import click

    if not module and not Path(script).is_file():
        raise click.UsageError(f"there is no file {script!r}; for a module write -m {script}")


def run_script(script: str, args: Sequence[str], module: bool, to_stderr: bool = False) -> tuple[int, Exception | None]:
    """(its exit status, what it raised): what was compiled before an error is still worth reading. to_stderr: what the
    script prints goes to standard error, for a command whose own output is JSON."""
    with _arguments(script, args, module), redirect_stdout(sys.stderr) if to_stderr else nullcontext():
        try:
            if module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            return (end.code if isinstance(end.code, int) else int(end.code is not None)), None
        except Exception as error:
            return 1, error
    return 0, None


def print_failure(failure: Exception) -> None:
    """Prints an exception to standard error with its traceback from the script on, without the frames that ran the
    script. A command calls this before it prints what it found."""
    sys.stdout.flush()
    traceback.print_exception(type(failure), failure, _below_here(failure.__traceback__))
    sys.stderr.flush()


def say_what_came(graphs: int, failure: Exception | None) -> None:
    """Prints a line about a script that raised, after its traceback, or that compiled nothing with litz. graphs: how
    many graphs were compiled."""
    import click

    count = f"{graphs or 'no'} graph{'' if graphs == 1 else 's'}"
    if failure is not None:
        click.echo(f"the script ended with {type(failure).__name__} after {count} compiled by litz")
    elif not graphs:
        click.echo('no graph was compiled with litz. Is torch.compile(..., backend="litz") called?')


def _below_here(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


@contextmanager
def _arguments(script: str, args: Sequence[str], module: bool) -> Iterator[None]:
    """sys.argv and sys.path as `python SCRIPT ARGS` would have them."""
    argv, path = sys.argv, sys.path
    sys.argv = [script, *args]
    sys.path = [str(Path.cwd()) if module else str(Path(script).resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


__all__ = ["check_script", "print_failure", "run_script", "say_what_came"]
