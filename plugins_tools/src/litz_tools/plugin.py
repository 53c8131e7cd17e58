"""The hooks of litz-tools: commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litz_plugins import hookimpl


@hookimpl
def litz_register_commands() -> Mapping[str, Any]:
    """Returns the command `litz bisect`."""
    from .bisect_cli import bisect

    return {"bisect": bisect}
