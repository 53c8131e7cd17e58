"""Python's numbers that a graph computes with, which AOTAutograd turns into tensors where torch can."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def numbers_kept_where_torch_has_no_tensor_op() -> Iterator[None]:
    """While this is entered, a Python float whose expression torch's pass cannot write as tensor ops stays a float.

    The pass (`torch.fx.passes._tensorify_python_scalars`) keeps the float where a handler raises NotImplementedError.
    For some functions of expressions, `%` among them, torch 2.13 has no handler at all, and the compile ends in an
    AttributeError. These functions get a handler that says so.
    """
    from torch.utils._sympy.interp import handlers
    from torch.utils._sympy.reference import TensorReferenceAnalysis as known

    with contextlib.ExitStack() as stack:
        for name in {name for name in handlers().values() if not hasattr(known, name)}:
            stack.enter_context(mock.patch.object(known, name, staticmethod(_no_tensor_op), create=True))
        yield


def _no_tensor_op(*args: Any) -> Any:
    raise NotImplementedError("torch has no tensor op for this function")
