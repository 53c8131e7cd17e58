"""`litz check-plugins`: whether plugins fit and compile right. `litz watch-plugins SCRIPT`: what they do in a script's
compiles, as a table, or as a line for each call."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from litz.cli.common import load_plugins, make_console, no_plugin_warnings, print_json
from litz_plugins.command_line import ScriptCommand
from litz_plugins.scripts import check_script, print_failure, run_script, say_what_came

if TYPE_CHECKING:
    from litz_plugins.blame import Called

WIDTH = 100
"""Letters of a result that a line of the trace has."""


@click.command("check-plugins", short_help="Say whether plugins fit together, and compile right.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def check_plugins(as_json: bool) -> None:
    """Ask every plugin for all that it registers, and compile a small program with core alone, with each plugin, and
    with all of them.

    Says what to do about whatever does not work. Exit status 1 if a plugin is at fault.
    """
    from . import doctor, plugin_checks
    from .checks import show_checks

    checks = doctor.check_plugins()  # whether they load
    if not any(check.status == "fail" and not check.name.startswith("plugin ") for check in checks):
        with no_plugin_warnings():
            loaded, _ = load_plugins()
        registering = plugin_checks.check_registering(loaded)
        together = all(check.status != "fail" for check in (*checks, *registering))
        checks = [*checks, *registering, *plugin_checks.check_compiling(loaded, together)]
    show_checks(checks, as_json, "every plugin works here")


@click.command("watch-plugins", cls=ScriptCommand, short_help="Run a script; say what plugins did.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as in python -m.")
@click.option("--trace", "traced", is_flag=True, help="Print each call of a plugin as it ends, with its result.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; what SCRIPT prints goes to standard error.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def watch_plugins(script: str, args: Sequence[str], module: bool, traced: bool, as_json: bool) -> None:
    """Run SCRIPT with ARGS, and print what each hook and pass of each plugin took, changed and gained, in all graphs
    together."""
    check_script(script, module)

    def run() -> Ended:
        ended = run_script(script, args, module, to_stderr=as_json)
        if ended[1] is not None:
            print_failure(ended[1])
        return ended

    code, _ = (_trace if traced else _time)(run, as_json)
    sys.exit(code)


Ended = tuple[int, Exception | None]
"""A script's exit status, and what it raised."""


def _time(run: Callable[[], Ended], as_json: bool) -> Ended:
    from litz import report

    from . import ledger, text

    with report.collect() as reports:
        ended = run()
    rows = ledger.together(row for one in reports for row in ledger.ledger_of(one))
    if as_json:
        print_json(rows)
    elif rows:
        make_console().print(text.ledger_table(rows))
        total = sum(one.compile_seconds for one in reports)
        took = sum(row.seconds for row in rows)
        click.echo(f"{took:.2f} s of {total:.2f} s in which litz compiled {len(reports)} graphs")
    else:
        say_what_came(len(reports), ended[1])
    return ended


def _trace(run: Callable[[], Ended], as_json: bool) -> Ended:
    """Prints plugin, time, what was called and what the call returned. as_json: one list, after the script's end."""
    from litz.report.tracing import tracing

    calls: list[dict[str, Any]] = []

    def show(called: Called) -> None:
        if as_json:
            calls.append(_as_data(called))
        else:
            click.echo(line_of(called))

    with tracing(show):
        ended = run()
    if as_json:
        print_json(calls)
    return ended


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

__all__ = ["check_plugins", "in_short", "line_of", "watch_plugins"]
