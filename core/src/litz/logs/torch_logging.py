"""torch's own logging: the one place that knows `torch._logging`, which is meant for other modules and may move.

Whatever is not there in another version of torch is left out: logging must not stop a compile.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache

BELOW = "torch.litz"
"""Where the loggers of artifacts hang: torch has a handler for everything below "torch", and none for late comers."""


def register(descriptions: Mapping[str, str]) -> None:
    """Makes artifacts known by name, for TORCH_LOGS and `torch._logging.set_logs(modules={name: True})`.

    Does nothing before torch's logging is loaded: `TORCH_LOGS=litz,litz_schedule` has torch import litz while it reads
    that setting, which is early enough for the names that follow.
    """
    internal = sys.modules.get("torch._logging._internal")
    add = getattr(internal, "register_artifact", None)
    if add is None:
        return
    for name, description in descriptions.items():
        add(name, description, visible=True, off_by_default=True)


def artifact_logger(name: str) -> logging.Logger | None:
    """Returns torch's logger for an artifact; None where torch has no such artifact, or none yet (`register`)."""
    try:
        return known_logger(name)
    except (ImportError, ValueError):
        return None


@cache
def known_logger(name: str) -> logging.Logger:
    """Returns torch's logger for an artifact, made once. Errors: ValueError where torch does not know the name, and
    ImportError where it has no artifacts; both are tried anew by the next call."""
    from torch._logging import getArtifactLogger

    return getArtifactLogger(BELOW, name)


def trace(name: str, text: Callable[[], str]) -> None:
    """Adds a text to the trace that TORCH_TRACE has written, beside dynamo's for the same compile."""
    try:
        from torch._logging import trace_structured
    except ImportError:
        return
    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=text)
