"""Ops that are called by a function of torch's own instead of by `torch.ops`.

A call by way of `torch.ops` converts each argument as the op's schema says, which for a convolution takes 9 us of the
16 us that the host needs on a CPU machine with torch 2.13 (tests/core/codegen/test_bindings.py has the call). The
functions below take the same arguments in the same order and lead to the same op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten

BINDINGS: Mapping[Callable[..., Any], str] = {
    aten.convolution.default: "torch.convolution",
    aten.mm.default: "torch.mm",
    aten.mm.out: "torch.mm",
    aten.bmm.default: "torch.bmm",
    aten.bmm.out: "torch.bmm",
    aten.addmm.default: "torch.addmm",
    aten.addmm.out: "torch.addmm",
    aten.baddbmm.default: "torch.baddbmm",
    aten.baddbmm.out: "torch.baddbmm",
}
"""Op -> the path of the function."""

FRESH = frozenset({*BINDINGS, aten.convolution_backward.default})
"""Ops whose results are tensors with memory of their own. Not all without an alias in their schema are: some give zeros
that have no memory."""
