"""`litz tune`: what was measured on this machine, and taking it to another."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from litz.cli.common import current_options, print_json
from litz.logs.units import count_text, time_text
from litz_plugins.command_line import Output

if TYPE_CHECKING:
    from .results import LocalStore, Record

_DIR = click.option("--dir", "folder", type=click.Path(path_type=Path), help="Another cache than the one in use.")


_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def _store(folder: Path | None) -> LocalStore:
    from litz.cache.disk import Cache
    from litz.origins.trust import make_trust

    from .results import Counters, LocalStore  # this loads torch, which `litz tune --help` need not

    options = current_options()
    return LocalStore(Cache(folder or options.cache_dir, trust=make_trust(options.trust)), Counters())


@click.group(short_help="List, export or import what the autotuner measured.")
def tune() -> None:
    """Look at what the autotuner measured, or take it to another machine."""


@tune.command("list", short_help="List problems with times, and graphs' decisions.")
@_DIR
@_JSON
def list_(folder: Path | None, as_json: bool) -> None:
    """Show each problem with its fastest candidate's time and the library's; and what was tried of each graph's
    decisions (fusions, splits, layouts ...), with what was taken otherwise than estimated marked by a star."""
    from . import kept
    from .results import export_records

    store = _store(folder)
    records = [record for record in map(store.find, store.all_keys()) if record is not None]
    graphs = kept.latest(store.cache)
    if as_json:
        print_json({"problems": export_records(store)["records"], "graphs": [asdict(one) for one in graphs]})
        return
    for record in records:
        click.echo(f"{record.problem} on {record.problem.device}: {_times(record)}")
    for tuned in graphs:
        click.echo(f"{tuned.label}: {tuned}")
    if not records and not graphs:
        click.echo(f"nothing was measured yet (mode='max-autotune' does); looked in {store.cache.root}")


def _times(record: Record) -> str:
    from .results import LIBRARY, UNTUNED

    ran = sorted(((found.us, name) for name, found in record.measured.items() if found.valid))
    candidates = [f"{name} {time_text(us)}" for us, name in ran if not name.startswith((LIBRARY, UNTUNED))]
    library = [f"{name} {time_text(us)}" for us, name in ran if name.startswith((LIBRARY, UNTUNED))]
    return "; ".join([*candidates[:1], *library]) or "nothing ran"


@tune.command("export", short_help="Write all measurements to a file.")
@click.argument("file", type=Output(dir_okay=False))
@_DIR
@_JSON
def export(file: Path, folder: Path | None, as_json: bool) -> None:
    """Write every measurement of this machine to FILE, as JSON."""
    from .results import export_records

    data = export_records(_store(folder))
    try:
        file.write_text(json.dumps(data, indent=1, sort_keys=True), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from error
    _say(file, len(data["records"]), "written to", as_json)


@tune.command("import", short_help="Take over the measurements of a file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@_DIR
@_JSON
def import_(file: Path, folder: Path | None, as_json: bool) -> None:
    """Take over the measurements in FILE, where this machine has none for a problem."""
    from .results import import_records

    try:
        data = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{file} is no JSON; `litz tune export FILE` writes what this reads") from error
    try:
        count = import_records(_store(folder), data)
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from error
    _say(file, count, "taken over from", as_json)


def _say(file: Path, problems: int, what: str, as_json: bool) -> None:
    """Prints how many problems were written to a file, or taken over from one."""
    if as_json:
        print_json({"file": file, "problems": problems})
    else:
        click.echo(f"{count_text(problems, 'problem')} {what} {file}")
