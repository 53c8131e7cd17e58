"""`numerics.deterministic`: one compiled function has torch's deterministic mode, whatever the process has.

In, lowerings, passes, or a graph's entry; out, the same, run in that mode. A lowering that would
write where threads meet refuses in the mode, as it does where `torch.use_deterministic_algorithms` is on, and torch's
kernel of the op runs: the one that repeats, or torch's error where there is none.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from litz_plugins import OptionsView

from .errors import NumbersError
from .exact import is_view

MEASURED = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "autotune.search_cache")
"""Options by which measurements decide."""
LEFT_OUT = frozenset({"fuse_written_attention", "contract_broadcast_products"})
"""Passes that put a call in place of loops, which would raise torch's error where eager raises none."""


def check(options: OptionsView) -> None:
    """Raises NumbersError for an option by which measurements decide: another run may measure otherwise."""
    for name in MEASURED:
        if options.get(name, False):
            raise NumbersError(
                f"numerics.deterministic contradicts {name}: what measures fastest may differ from run to run",
                where="options=",
                todo="give one of the two",
            )


class _Mode:
    """Torch's mode, which a process has once: the first call that needs the mode sets it, the last one that ends takes
    it back. inside: calls that run. ours: whether the mode was set here, and not by the user."""

    def __init__(self) -> None:
        self.lock, self.inside, self.ours = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if not torch.get_deterministic_debug_mode():
                torch.set_deterministic_debug_mode("error")
                self.ours = True

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.ours and not self.inside:
                torch.set_deterministic_debug_mode("default")
                self.ours = False


_MODE = _Mode()


def repeating(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, run in torch's deterministic mode: that of the user where there is one."""

    @functools.wraps(function)
    def repeats(*args: Any, **kwargs: Any) -> Any:
        with _MODE:
            return function(*args, **kwargs)

    return repeats


def _passes(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return {name: item for name, item in registered.items() if name not in LEFT_OUT}


def _lowerings(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return {op: rule if is_view(op) else repeating(rule) for op, rule in registered.items()}


NARROWED: Mapping[str, Callable[[Mapping[Any, Any]], Mapping[Any, Any]]] = {"lowering": _lowerings, "pass": _passes}
"""What the option uses of what is registered, by the kind that the hook `litz_narrow` names: lowerings of all but views
run in the mode, and no pass calls kernels whose runs differ."""
