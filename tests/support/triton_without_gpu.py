"""Triton as if there were an H100: dynamo looks for a user's kernels, and Triton compiles them, with no GPU.

Launched on tensors of the CPU, a kernel runs in Triton's interpreter; one with several configurations in the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

_run = JITFunction.run


class Driver:
    """Of Triton: what compiling asks."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def _interpreted(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    """In place of JITFunction.run."""
    if warmup:
        return _run(function, *args, grid=grid, warmup=warmup, **kwargs)
    from triton.runtime.interpreter import InterpretedFunction

    known = {name: value for name, value in kwargs.items() if name in function.arg_names}
    return InterpretedFunction(function.fn)[grid](*args, **known)


def _first(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of Autotuner.run."""
    return tuner.fn.run(*args, **{**kwargs, **tuner.configs[0].all_kwargs()})


@contextmanager
def triton_for_h100() -> Iterator[None]:
    """Until the end, Triton's active driver is of an H100 that is not there."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils._triton, "has_triton", lambda: True)  # else dynamo does not look for kernels
        kept = triton.runtime.driver._active
        triton.runtime.driver.set_active(Driver())
        patch.setattr(JITFunction, "run", _interpreted)
        patch.setattr(Autotuner, "run", _first)
        torch._dynamo.reset()
        try:
            yield
        finally:
            triton.runtime.driver._active = kept
            torch._dynamo.reset()
