"""`litz plugins --time SCRIPT` and `--trace SCRIPT`: what plugins do in a script that compiles. In: the script. Out: a
table, or a line for each call; and what the script exits with.
"""

from __future__ import annotations

import reprlib
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from litz.cli.common import make_console, print_json
from litz.cli.script import check_script, print_failure, run_script

if TYPE_CHECKING:
    from litz_plugins.blame import Called

WIDTH = 100
"""Letters of a result that a line of the trace has."""


def show_times(script: str, as_json: bool) -> int:
    """Runs a script, prints what each plugin's hooks and passes took, changed and gained in all graphs together, and
    returns the script's exit status."""
    from litz import report
    from litz.report import ledger, text

    words = _words(script)
    with report.collect() as reports:
        code, failure = run_script(words[0], words[1:], module=False, to_stderr=as_json)
    rows = ledger.together(row for one in reports for row in one.ledger)
    if as_json:
        print_json(rows)
    elif rows:
        make_console().print(text.ledger_table(rows))
        total = sum(one.compile_seconds for one in reports)
        took = sum(row.seconds for row in rows)
        click.echo(f"{took:.2f} s of {total:.2f} s in which litz compiled {len(reports)} graphs")
    else:
        click.echo("no graph was compiled with litz")
    if failure is not None:
        print_failure(failure)
    return code


def show_trace(script: str, as_json: bool) -> int:
    """Run a script; print each call of a plugin when the call has ended: plugin, time, what was called, what the call
    returned. as_json: one list of all calls, after the script's end."""
    from litz.report.tracing import tracing

    words = _words(script)
    calls: list[dict[str, Any]] = []

    def show(called: Called) -> None:
        if as_json:
            calls.append(_as_data(called))
        else:
            click.echo(line_of(called))

    with tracing(show):
        code, failure = run_script(words[0], words[1:], module=False, to_stderr=as_json)
    if as_json:
        print_json(calls)
    if failure is not None:
        print_failure(failure)
    return code


def _words(script: str) -> Sequence[str]:
    words = [script]
    try:
        check_script(script, module=False)
    except click.UsageError:  # a script with its arguments
        words = shlex.split(script) or [script]
        check_script(words[0], module=False)
    return words


def line_of(called: Called) -> str:
    """Returns "gentle        0.3 ms  litz_register_passes -> 1 of Pass"."""
    result = "failed" if called.failed else in_short(called.result)
    return f"{called.plugin:<14} {called.seconds * 1e3:9.3f} ms  {called.what} -> {result}"


def _as_data(called: Called) -> dict[str, Any]:
    """Returns what `line_of` prints, as JSON has it. The result is made text at once: a noun kept to the end costs
    memory."""
    result = None if called.failed else in_short(called.result)
    return {
        "plugin": called.plugin,
        "what": called.what,
        "seconds": called.seconds,
        "failed": called.failed,
        "result": result,
    }


def in_short(result: Any) -> str:
    """Returns a result as one line: collections by size and kind, litz's own nouns by kind, other values as they print,
    cut to `WIDTH` characters."""
    if isinstance(result, (list, tuple, dict)) and result:
        first = next(iter(result.values() if isinstance(result, dict) else result))
        return f"{len(result)} of {type(first).__name__}"
    if hasattr(result, "operations") or hasattr(result, "steps") or hasattr(result, "module"):
        return type(result).__name__
    text = " ".join(_SHORT.repr(result).split())
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = WIDTH

__all__ = ["in_short", "line_of", "show_times", "show_trace"]
