"""The hooks of litz-operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from litz_plugins import OptionsView, hookimpl


@hookimpl
def litz_register_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Returns the decompositions of ops that a lowering of this dist takes whole in some cases."""
    from .decompositions import own_decompositions

    return own_decompositions()


@hookimpl
def litz_register_lowerings() -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowerings, by op."""
    from .lowerings import own_lowerings

    return own_lowerings()


@hookimpl
def litz_cache_fingerprint(options: OptionsView) -> str | None:
    """Returns None: results depend on the graph, the options and the target alone, which are in the key."""
    return None
