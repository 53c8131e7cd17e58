"""The hook of litz-triton-kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from litz_plugins import Exporter, KernelSource, hookimpl


@hookimpl
def litz_register_lowerings() -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowerings of the two higher-order ops that launch a kernel of the user's."""
    from .lowering import lowerings

    return lowerings()


@hookimpl
def litz_cache_fingerprint() -> None:
    """Returns None: what is lowered depends on the graph alone, by no names of its nodes."""


@hookimpl
def litz_select_exporter(source: KernelSource | None) -> Exporter | None:
    """Returns the exporter of a kernel that this plugin launches."""
    from .lowering import LOADER

    own = source is not None and source.settings.get("loader") == LOADER
    return Exporter(LOADER) if own else None
