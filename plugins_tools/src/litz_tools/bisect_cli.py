"""`litz bisect`: which decision makes a script slower than another backend, commit or option does, or wrong."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from litz.cli.common import load_plugins, make_console, make_table, no_plugin_warnings, print_json
from litz.logs.units import count_text, time_text
from litz_plugins.command_line import SECONDS, Number, ScriptCommand
from litz_plugins.scripts import check_script
from litz_tools.progress import Shown, can_be_seen

if TYPE_CHECKING:
    from litz_tools.bisect import Bisection, Finding
    from litz_tools.bisect.run import Outcome, Taken

TOO_NOISY_STATUS = 3
"""The exit status where equal runs are too far apart to say anything."""
QUIET = (
    "end what else runs on it (`uptime`, `nvidia-smi`), or run on another",
    "give each process cores of its own: taskset -c 0-3 litz bisect ...",
    "fix clocks: cpupower frequency-set -g performance; nvidia-smi -lgc CLOCK",
    "time GPU kernels alone, without the host: --clock kernels",
    "have the script call its functions more often, or pass --repeat 50",
)
"""What makes equal runs take equal time."""
SHOWN = 12
"""Decisions, kernels and measurements that are printed of many."""


@click.command(
    short_help="Find the decision that makes a script slow or wrong.",
    cls=ScriptCommand,
)
@click.option(
    "--against",
    required=True,
    metavar="eager|inductor|COMMIT|OPTIONS",
    help='What SCRIPT is compared with: eager, inductor, a commit of litz, or options, as "fusion=false".',
)
@click.option("--wrong", is_flag=True, help="Find what makes results differ from eager's, or the script fail.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as in python -m.")
@click.option("--runs", default=150, show_default=True, type=click.IntRange(1), help="Runs of the search, at most.")
@click.option("--timeout", default=600.0, show_default=True, type=SECONDS, help="Seconds after which a run is stopped.")
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1), help="Times to make each call.")
@click.option(
    "--clock",
    default="wall",
    show_default=True,
    type=click.Choice(["wall", "kernels"]),
    help="A call's time: between two waits for the device, or the sum of its GPU kernels'.",
)
@click.option(
    "--tolerance", type=Number(), help="With --wrong: largest difference allowed, relative to the largest value."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def bisect(
    script: str,
    args: Sequence[str],
    against: str,
    wrong: bool,
    module: bool,
    runs: int,
    timeout: float,
    repeat: int,
    clock: str,
    tolerance: float | None,
    as_json: bool,
) -> None:
    """Run SCRIPT with ARGS again and again, each time without some of litz's decisions; print the one at fault.

    SCRIPT is any script that calls what it compiles with backend="litz", some twenty times or more. Each run is a
    process of its own; kernels come from the cache.
    """
    check_script(script, module)
    from litz.driver.builtin import builtin_plugins
    from litz.driver.plugin_options import MAKERS, plugin_options
    from litz_tools.bisect import Bisection, side_of
    from litz_tools.bisect import bisect as run_it  # these load torch
    from litz_tools.bisect.run import Script, Settings

    with no_plugin_warnings():
        plugins, _ = load_plugins()
    own = {name for name, _ in builtin_plugins()}

    def makers(given: Mapping[str, Any]) -> list[str]:
        return [*MAKERS, *(item.name for item in plugins.passes(plugin_options(plugins, None, given)))]

    asked = Bisection(
        Script(script, tuple(args), module),
        side_of(against, plugins),
        wrong,
        Settings(timeout, repeat, "kernels" if clock == "kernels" else "wall", tolerance),
        runs,
        makers=makers,
        plugins=tuple(name for name in plugins.names() if name not in own),
    )
    line = RunLine(asked)
    shown = Shown.on_this_terminal(line.text) if can_be_seen(None) else None
    try:
        finding = run_it(asked, line.show)
    finally:
        if shown is not None:
            shown.stop()
    if as_json:
        print_json(_as_json(finding, asked))
    else:
        _print(finding, asked, make_console())
    if finding.too_noisy:
        sys.exit(TOO_NOISY_STATUS)


class RunLine:
    """The line of progress: which run it is, of how many at most, what runs, for how long, and the last value."""

    def __init__(self, asked: Bisection) -> None:
        self.wrong, self.begun, self.runs = asked.wrong, time.monotonic(), 0
        self.most = asked.most_runs
        self.what, self.last = "start", ""

    def show(self, what: str, count: int, value: float | None) -> None:
        """Takes the news of a run; see `litz_tools.bisect.bisection.Show`."""
        if value is None:
            self.runs += 1
            self.what = f"without {count_text(count, 'decision')} of {what}" if count else what
        else:
            self.last = f"; the last: {_value_text(value, self.wrong)}"

    def text(self) -> str:
        """Returns the line."""
        passed = time.monotonic() - self.begun
        return f"litz bisect: run {self.runs} of {self.most} at most, {self.what}, {passed:.0f} s{self.last}"


# --------------------------------------------------------------------------------------------------------------- text


def _print(finding: Finding, asked: Bisection, console: Console) -> None:
    _print_sides(finding, asked, console)
    if finding.why == "no difference":
        console.print(
            f"\nno difference found: litz's results are {asked.against.name}'s, but for rounding"
            if asked.wrong
            else f"\nno difference found: litz is no slower than {asked.against.name} by more than noise"
        )
        return
    if finding.measured:
        _print_measured(finding, asked, console)
    if finding.too_noisy:
        _print_noisy(finding, console)
        return
    if not finding.found:
        _print_nobody(finding, asked, console)
        return
    _print_found(finding, asked, console)


def _print_noisy(finding: Finding, console: Console) -> None:
    bar = finding.bar
    assert bar is not None
    console.print(
        f"\n[yellow]too noisy to say[/]: equal runs differ by {time_text(finding.apart * 1e6)}, and the two sides by "
        f"{time_text(abs(bar.base - bar.other) * 1e6)}"
    )
    if finding.suspected:
        makers = ", ".join(dict.fromkeys(each.maker for each in finding.suspected))
        with_it, without = (
            ", ".join(_value_text(value, False) for value in values) for values in (finding.with_it, finding.without_it)
        )
        count = count_text(len(finding.suspected), "decision")
        console.print(f"the search ended at {escape(makers)}, {count}; with it {with_it}; without it {without}")
    console.print("\nto make the machine quiet:")
    for line in QUIET:
        console.print(Padding(Text(line), (0, 0, 0, 2)))


def _print_sides(finding: Finding, asked: Bisection, console: Console) -> None:
    table = make_table("", "worst difference" if asked.wrong else "a round", "", numbers=("a round",))
    for name, outcome in (("litz", finding.base), (asked.against.name, finding.reference)):
        if asked.wrong:
            table.add_row(name, _difference_text(outcome, asked), "")
        else:
            assert finding.bar is not None
            mine, bar = outcome is finding.base, finding.bar
            seconds = bar.base if mine else bar.other
            note = _sites_text(outcome) if mine else f"{bar.base / bar.other:.2f} times as fast"
            table.add_row(name, time_text(seconds * 1e6), note)
    console.print(table)
    if finding.bar is not None:
        noise, least = finding.bar.noise, finding.bar.least
        console.print(f"equal runs differ by {noise:.1%}; what gains less than {least:.1%} does not count")
    if finding.reference.dropped:
        console.print(f"[dim]options of litz's that inductor does not get: {', '.join(finding.reference.dropped)}[/]")


def _sites_text(outcome: Outcome) -> str:
    return ", ".join(f"{escape(site)} x{len(times)}" for site, times in outcome.times.items())


def _difference_text(outcome: Outcome, asked: Bisection) -> str:
    if outcome.failure:
        return escape(outcome.failure)
    if not outcome.differences:
        return "the judge" if asked.against.backend == "eager" or not outcome.times else "none compared"
    worst = outcome.differences[0]
    where = f"call {worst['call'] + 1} of {escape(worst['site'])}, output {worst['output']}"
    return f"{worst['difference']:.2g}, {worst['allowed']:.2g} allowed: {where}"


def _print_measured(finding: Finding, asked: Bisection, console: Console) -> None:
    table = make_table("left out", "decisions", "right" if asked.wrong else "a round", "change", numbers=("decisions",))
    base = 0.0 if finding.bar is None else finding.bar.base
    for maker, count, value in finding.measured:
        change = "" if asked.wrong or math.isinf(value) else f"{value / base - 1:+.1%}"
        table.add_row(escape(maker), str(count), _value_text(value, asked.wrong), change)
    console.print()
    console.print(table)
    console.print(f"[dim]{count_text(finding.runs, 'run')} of the script[/]")


def _value_text(value: float, wrong: bool) -> str:
    if wrong:
        return "no" if value else "yes"
    return "did not run" if math.isinf(value) else time_text(value * 1e6)


def _print_found(finding: Finding, asked: Bisection, console: Console) -> None:
    makers = ", ".join(dict.fromkeys(each.maker for each in finding.found))
    console.print(f"\n[bold]at fault[/]: {escape(makers)}, {count_text(len(finding.found), 'decision')}")
    for each in finding.found[:SHOWN]:
        console.print(Padding(Text(each.key, style="bold", overflow="fold"), (0, 0, 0, 2)))
        for line in _on_record(each, finding.base):
            console.print(Padding(Text(line), (0, 0, 0, 4)))
    if len(finding.found) > SHOWN:
        console.print(f"  and {len(finding.found) - SHOWN} more")
    if asked.wrong:
        worst, worst_without = (_ratio_text(each[0]) for each in (finding.with_it, finding.without_it))
        console.print(f"with it {worst}; without it {worst_without}")
    else:
        with_it, without = (statistics.median(each) for each in (finding.with_it, finding.without_it))
        both, none = (
            ", ".join(time_text(value * 1e6) for value in values) for values in (finding.with_it, finding.without_it)
        )
        console.print(f"with it {both}; without it {none}: {with_it / without:.2f} times as fast")
    console.print("\nto go on without it:")
    console.print(Text(f"  {_advice(finding.found)}"), soft_wrap=True)


def _ratio_text(ratio: float) -> str:
    return (
        "the script fails" if math.isinf(ratio) else f"the worst difference is {ratio:.2g} times what rounding may make"
    )


def _on_record(each: Taken, base: Outcome) -> list[str]:
    lines = []
    if each.subject:
        by = f" ({each.plugin})" if each.plugin not in ("core", "") else ""
        lines.append(f"{each.subject}: {each.chosen}, {each.reason}{by}")
    names = set(each.about.split("+"))
    for key, (nodes, fused, _) in base.kernels.items():
        if key.partition(":")[0] == each.graph and names & set(fused):
            lines.append(f"in {key.partition(':')[2]}: {nodes}")
    return lines


def _advice(found: Sequence[Taken]) -> str:
    from litz_tools.bisect.bisection import PLUGINS

    plugins = [each.about for each in found if each.maker == PLUGINS]
    if plugins:
        return f"LITZ_DISABLE_PLUGINS={','.join(plugins)}"
    keys = [each.key for each in found]
    return f'torch.compile(..., backend="litz", options={{"veto": {keys}}})'


def _print_nobody(finding: Finding, asked: Bisection, console: Console) -> None:
    if finding.why == "out of runs":
        console.print(f"\nnothing found in {asked.most} runs of the search; --runs grants more")
        return
    state = "right" if asked.wrong else "faster"
    console.print(
        f"\nno decision is at fault: the script is {state} without none of those on record, alone or together."
    )
    if finding.differing:
        console.print("kernels of the same loops have other texts on the two sides:")
        for name in finding.differing[:SHOWN]:
            console.print(Padding(Text(name), (0, 0, 0, 2)))
        if len(finding.differing) > SHOWN:
            console.print(f"  and {len(finding.differing) - SHOWN} more")
    else:
        console.print(
            "What is left: the code of kernels, which `litz bench-kernels` times one by one, the library's own "
            "kernels, and what a call takes on the host."
        )


def _as_json(finding: Finding, asked: Bisection) -> dict[str, Any]:
    def side(outcome: Outcome, seconds: float) -> dict[str, Any]:
        return {
            "seconds": seconds,
            "failure": outcome.failure,
            "differences": [dict(row) for row in outcome.differences[:SHOWN]],
        }

    bar = finding.bar
    return {
        "against": asked.against.name,
        "wrong": asked.wrong,
        "litz": side(finding.base, finding.base.seconds if bar is None else bar.base),
        "reference": side(finding.reference, finding.reference.seconds if bar is None else bar.other),
        "noise": None if bar is None else bar.noise,
        "measured": [
            {"maker": m, "decisions": n, "value": None if math.isinf(v) else v} for m, n, v in finding.measured
        ],
        "found": [
            {"key": t.key, "subject": t.subject, "chosen": t.chosen, "reason": t.reason, "plugin": t.plugin}
            for t in finding.found
        ],
        "suspected": [each.key for each in finding.suspected],
        "why": finding.why,
        "with_it": list(finding.with_it),
        "without_it": list(finding.without_it),
        "confirmed": bool(finding.found) and finding.confirmed,
        "runs": finding.runs,
    }
