"""A product of float16 as a function's call. In: a contraction and where it stands. Out: at most one choice."""

from __future__ import annotations

import torch

from litz.ir import Extern
from litz_plugins import Choice

NAME = "float16 by float32"


def offer_halves(operation, context):
    """Offers float32's product for an mm of float16 on a CPU that has no instructions for float16."""
    made = context.program.buffers[operation.outputs[0]]
    if made.device.type != "cpu" or made.dtype != torch.float16:
        return []
    if torch.ops.mkldnn._is_mkldnn_fp16_supported():
        context.verdict(NAME, "the processor multiplies float16")
        return []
    call = Extern(
        operation.name,
        operation.device,
        product_by_float32,
        operation.args,
        outputs=operation.outputs,
        origins=operation.origins,
    )
    return [Choice(NAME, "template", call)]


def product_by_float32(a, b):
    """Returns a @ b, computed in float32. The wrapper calls this with tensors."""
    return (a.float() @ b.float()).to(a.dtype)
