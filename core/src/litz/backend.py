"""The callable that torch.compile finds under the name "litz". Nothing but glue."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def litz(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one graph that dynamo captured; dynamo calls this, users write `torch.compile(model, backend="litz")`.

    gm, example_inputs: the graph and the fake inputs to compile it for. mode: as in `torch.compile(mode=...)`; dynamo
    does not pass "default" on, so None is the default mode. options: as in `torch.compile(options={...})`.
    `torch.compile` itself refuses mode and options together (RuntimeError), so at most one of them arrives; to combine
    them, write `options={"mode": "reduce-overhead", ...}`. Two keys never arrive: torch.compile takes
    "guard_filter_fn" and "use_aoti" out of options for itself.

    Returns what dynamo runs in place of the graph. A plain function, since dynamo compares backends by identity (and
    mode and options by value) when it looks for code that it compiled before.
    """
    from litz import pipeline  # here, so that listing the backends does not load the compiler
    from litz.capture import torch_api
    from litz.errors import NOT_OURS

    torch_api.reset_with_dynamo(litz)

    try:
        return pipeline.compile_backend(gm, example_inputs, mode, options)
    except NOT_OURS as error:
        # Where in litz a misspelt option or a missing compiler was found is of no use; fifty lines would hide what is.
        raise error.with_traceback(None) from error.__cause__


def _reset() -> None:
    """What `torch._dynamo.reset()` calls of a backend: CUDA graphs end, as NCCL's communicators cannot before them."""
    cuda_graphs = sys.modules.get("litz.runtime.cuda_graphs")  # not loaded: nothing was recorded
    if cuda_graphs is not None:
        cuda_graphs.release()


litz.reset = _reset  # type: ignore[attr-defined]
