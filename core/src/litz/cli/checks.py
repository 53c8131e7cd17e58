"""A row of `litz doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """A row of `litz doctor`. name: what was looked at. detail: what was found. todo: what to do, '' where nothing has
    to be done."""

    name: str
    status: Status
    detail: str
    todo: str = ""


__all__ = ["Check", "Status"]
