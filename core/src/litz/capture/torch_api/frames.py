"""What dynamo knows of the code behind a graph: which compile it is, what broke it off, which guard failed before."""

from __future__ import annotations

import os
from typing import Any

from torch._dynamo import utils
from torch._guards import CompileContext

from litz.origins.operations import Frame

_OF_DYNAMO = os.path.join("torch", "_dynamo", "external_utils.py")
"""Dynamo's wrapper of a module that is not the user's own, such as nn.Sequential."""


def frame_of(gm: Any) -> Frame:
    """The frame of a graph that dynamo hands to its backend, while the backend runs. What this version of torch does
    not say, and what is not dynamo's, is left empty."""
    compile_id = CompileContext.current_compile_id()
    ended = getattr(gm, "compile_subgraph_reason", None)
    stack = [one for one in getattr(ended, "user_stack", None) or () if not one.filename.endswith(_OF_DYNAMO)]
    last = stack[-1] if stack else None
    return Frame(
        compile_id="" if compile_id is None else str(compile_id),
        function=str(stack[0].name) if stack else "",
        place=f"{os.path.basename(last.filename)}:{last.lineno}" if last is not None else "",
        broke=str(ended.reason).strip() if ended is not None and getattr(ended, "graph_break", False) else "",
        recompiled=_failed_guard(),
    )


def _failed_guard() -> str:
    """Of the frame that is compiled now: dynamo notes it down with the metrics of the compile."""
    context = getattr(utils, "get_metrics_context", lambda: None)()
    return str(getattr(context, "_metrics", {}).get("recompile_reason") or "").strip()
