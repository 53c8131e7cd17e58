"""Rows of `litz doctor`, and of what else checks: in, what was found; out, a table and the exit status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.markup import escape

from litz.cli.common import make_console, make_table, print_json

Status = Literal["ok", "warn", "fail"]
_MARKS: dict[Status, str] = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


@dataclass(frozen=True)
class Check:
    """A row of `litz doctor`. name: what was looked at. detail: what was found. todo: what to do, '' where nothing has
    to be done."""

    name: str
    status: Status
    detail: str
    todo: str = ""


def show_checks(checks: Sequence[Check], as_json: bool, good: str) -> None:
    """Prints checks, and `good` where none fails; exits with status 1 if one fails."""
    failed = [check for check in checks if check.status == "fail"]
    if as_json:
        print_json(checks)
    else:
        console = make_console()
        table = make_table("check", "", "found")
        for check in checks:
            todo = f"\n[bold]to do:[/] {escape(check.todo)}" if check.todo else ""
            table.add_row(check.name, _MARKS[check.status], escape(check.detail) + todo)
        console.print(table)
        console.print()
        console.print(f"[red]{len(failed)} of {len(checks)} checks failed[/]" if failed else f"[green]{good}[/]")
    if failed:
        raise SystemExit(1)


__all__ = ["Check", "Status", "show_checks"]
