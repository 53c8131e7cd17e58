"""torch's settings that decide which library kernels run: TF32, reduced precision, determinism.

A process that measures has to run the library as the user's process would, and what was measured under some settings
says nothing of others: so `snapshot` goes with each request, where `restore` sets it, and into the key of what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch


@dataclass(frozen=True)
class Setting:
    """read, write: of this process. read raises RuntimeError where torch's old and new settings contradict each other,
    AttributeError where this torch does not have the setting."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _attribute(path: str) -> Setting:
    """Returns the setting at a path below torch.backends."""
    *parents, name = path.split(".")

    def owner() -> Any:
        return reduce(getattr, parents, torch.backends)

    return Setting(lambda: getattr(owner(), name), lambda value: setattr(owner(), name, value))


SETTINGS: Mapping[str, Setting] = {
    # The old settings first: they set the new ones too.
    "float32_matmul_precision": Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic": Setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    **{
        path: _attribute(path)
        for path in (
            "cudnn.allow_tf32",
            "cuda.matmul.fp32_precision",
            "cudnn.conv.fp32_precision",
            "cuda.matmul.allow_fp16_reduced_precision_reduction",
            "cuda.matmul.allow_bf16_reduced_precision_reduction",
            "cuda.matmul.allow_fp16_accumulation",
            "cudnn.enabled",
            "cudnn.benchmark",
            "cudnn.deterministic",
        )
    },
}


def _writable() -> AbstractContextManager[None]:
    """Returns a context in which torch takes new values of cuDNN's settings. After an import of torch.testing._internal
    it takes them in its own `flags` blocks only, which put back what was; a snapshot has to stay."""
    allow = getattr(torch.backends, "__allow_nonbracketed_mutation", nullcontext)
    found: AbstractContextManager[None] = allow()
    return found


def snapshot() -> dict[str, Any]:
    """Returns the settings of this process by name, as far as they can be read."""
    found: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        try:
            found[name] = setting.read()
        except (RuntimeError, AttributeError):
            continue
    return found


def restore(settings: Mapping[str, Any]) -> None:
    """Makes this process's settings those of a snapshot. What is so already is left alone: to write one setting can
    change what others say."""
    for name, value in settings.items():
        if snapshot().get(name) != value:
            with _writable():
                SETTINGS[name].write(value)


__all__ = ["SETTINGS", "restore", "snapshot"]
