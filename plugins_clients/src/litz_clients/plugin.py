"""The hooks of litz-clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from litz_plugins import hookimpl


@hookimpl
def litz_register_lowerings() -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowering of calls that AOTAutograd wraps since they write into their arguments."""
    from .lowering import lowerings

    return lowerings()


@hookimpl
def litz_cache_fingerprint() -> None:
    """Returns None: what is lowered depends on the graph alone, by no names of its nodes."""
