"""`litz tune`: what was measured on this machine, and taking it to another."""

from __future__ import annotations

import json
from pathlib import Path

import click

from litz.cli.common import current_options
from litz.runtime.cache import Cache

from .results import Counters, LocalStore, export_records, import_records

_DIR = click.option("--dir", "folder", type=click.Path(path_type=Path), help="Another cache than the one in use.")


def _store(folder: Path | None) -> LocalStore:
    return LocalStore(Cache(folder or current_options().cache_dir), Counters())


@click.group()
def tune() -> None:
    """Look at what the autotuner measured, or take it to another machine."""


@tune.command("list")
@_DIR
def list_(folder: Path | None) -> None:
    """Show each problem with its fastest candidate and the library's time."""
    store = _store(folder)
    for key in store.all_keys():
        record = store.find(key)
        if record is None:
            continue
        valid = {name: found for name, found in record.measured.items() if found.valid}
        best = min(valid, key=lambda name: valid[name].us, default="")
        times = f"{best} {valid[best].us:.4g} us" if best else "nothing ran"
        library = next((f"library {found.us:.4g} us" for name, found in valid.items() if name == "library"), "")
        click.echo(f"{record.problem} on {record.problem.device}: {times}{f'; {library}' if library else ''}")


@tune.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_DIR
def export(file: Path, folder: Path | None) -> None:
    """Write every measurement of this machine to FILE, as JSON."""
    data = export_records(_store(folder))
    file.write_text(json.dumps(data, indent=1, sort_keys=True))
    click.echo(f"{len(data['records'])} problems written to {file}")


@tune.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@_DIR
def import_(file: Path, folder: Path | None) -> None:
    """Take over the measurements in FILE, where this machine has none for a problem."""
    try:
        count = import_records(_store(folder), json.loads(file.read_text()))
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from error
    click.echo(f"{count} problems taken over from {file}")
