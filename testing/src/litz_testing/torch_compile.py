"""torch.compile as the tools here call it, and which torch it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def torch_compiled(
    function: Callable[..., Any],
    backend: Any,
    dynamic: bool,
    data: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Returns the function through torch.compile. backend, options: as torch.compile takes them. data: sizes and
    numbers that come from data are in the graph too, where it otherwise ends."""
    config = torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=data,
        capture_scalar_outputs=data,
        suppress_errors=False,
        fail_on_recompile_limit_hit=True,  # else eager runs the function, and is compared with itself
    )
    fast = torch.compile(function, backend=backend, dynamic=dynamic, options=dict(options or {}) or None)

    def call(*tensors: Any) -> Any:
        with config:
            return fast(*tensors)

    return call
