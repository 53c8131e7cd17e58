"""Core's passes of the stage "traced": over what dynamo traced, before AOTAutograd breaks operators up.

They bring attention into a form that torch has a fused kernel for.
"""

from __future__ import annotations

from litz.capture.traced.fused_attention import fuse_attention
from litz.capture.traced.written_attention import fuse_written_attention
from litz_plugins.records import Pass


def default_traced_passes() -> tuple[Pass, ...]:
    """Core's passes of this stage."""
    return (
        Pass("fuse_attention", "traced", fuse_attention),
        Pass("fuse_written_attention", "traced", fuse_written_attention, after=("fuse_attention",)),
    )


__all__ = ["default_traced_passes"]
