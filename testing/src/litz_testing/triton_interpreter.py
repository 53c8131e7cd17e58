"""Running a generated kernel on the CPU, in Triton's interpreter. For tests and for looking at a kernel's values.

Triton decides when it is imported whether `@triton.jit` makes kernels or interpreted functions, so the process must
have TRITON_INTERPRET=1 in its environment from the start. libdevice is NVIDIA bitcode and no use there: `libdevice`
below has the same functions in numpy, on the interpreter's tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton.language as tl

from litz_plugins import KernelSource

from .triton_interpreter_fast import quicker

Function = Callable[..., Any]


def _lift(function: Function, result: Any = None) -> Function:
    """A numpy function as a function of the interpreter's tensors. Scalars are arrays of one element there."""

    def call(*args: Any) -> Any:
        shapes = [tuple(arg.shape) for arg in args]
        shape = np.broadcast_shapes(*shapes)
        arrays = [arg.handle.data.reshape(s) if s else arg.handle.data.reshape(()) for arg, s in zip(args, shapes)]
        with np.errstate(all="ignore"):
            data = np.asarray(function(*arrays))
        scalar = args[0].dtype if result is None else result
        data = data.astype(arrays[0].dtype if result is None else np.int32).reshape(shape or (1,))
        handle = type(args[0].handle)(data, scalar)
        return tl.tensor(handle, tl.block_type(scalar, list(shape)) if shape else scalar)

    return call


def _by_torch(function: Function) -> Function:
    return lambda *arrays: function(*(torch.from_numpy(np.array(array)) for array in arrays)).numpy()


_AS_NUMPY = "copysign cos cosh exp exp2 expm1 fmod hypot log log10 log1p log2 nextafter sin sinh tan tanh trunc"
"""Functions that numpy has under the same name."""
_AS_ARC = "acos acosh asin asinh atan atan2 atanh"
"""The functions that the interpreter's library calls arccos, arccosh and so on."""

libdevice = SimpleNamespace(
    **{name: _lift(getattr(np, name)) for name in _AS_NUMPY.split()},
    **{name: _lift(getattr(np, f"arc{name[1:]}")) for name in _AS_ARC.split()},
    erfc=_lift(np.vectorize(math.erfc)),
    erfinv=_lift(_by_torch(torch.erfinv)),
    lgamma=_lift(_by_torch(torch.lgamma)),
    nearbyint=_lift(np.rint),
    pow=_lift(np.power),
    rsqrt=_lift(lambda x: 1 / np.sqrt(x)),
    signbit=_lift(np.signbit, tl.int32),
)


def interpret_source(source: KernelSource, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
    """Runs a kernel on CPU tensors, one for each buffer of `source.arguments`, and `sizes` for the size expressions.

    Tensors are written in place. RuntimeError without TRITON_INTERPRET=1. An index out of range raises Triton's
    InterpreterError.
    """
    import triton

    from litz.targets.triton import helpers
    from litz.targets.triton.build import evaluate_host_text
    from litz.targets.triton.compile import load_module

    if not triton.knobs.runtime.interpret:
        raise RuntimeError("set TRITON_INTERPRET=1 in the environment before Triton is imported")
    settings = source.settings
    grid = evaluate_host_text(settings["grid"], sizes)
    if grid == 0:
        return
    extra = []
    if settings["limits"]:
        wide = any(evaluate_host_text(text, sizes) > settings["limit"] for text in settings["limits"])
        extra = [tl.int64 if wide else tl.int32]
    with (
        mock.patch.object(helpers, "libdevice", libdevice),
        np.errstate(all="ignore"),
        _assertions(),
        quicker(),
    ):
        kernel = getattr(load_module(source.text), source.symbol)
        # Kernels take float8 as bytes, save for tensor cores.
        taken = zip(tensors, settings["pointers"], strict=False)
        passed = [t.view(torch.uint8) if kind == "*u8" else t for t, kind in taken]
        kernel[(grid,)](*passed, *sizes, *extra)


@contextmanager
def _assertions() -> Iterator[None]:
    """Assertions hold in debug mode only; the checks of integer overflow that come with it are not wanted."""
    from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

    kept = interpreter_builder.options
    interpreter_builder.options = InterpreterOptions(debug=True, sanitize_overflow=False)
    try:
        yield
    finally:
        interpreter_builder.options = kept
