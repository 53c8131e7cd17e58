"""Statements whose result eager does not define."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from litz_testing.fuzz.inputs import InputSpec
from litz_testing.fuzz.program import FuzzProgram, Statement
from litz_testing.fuzz.reference import Rejected, reference_of

F64 = torch.float64


@pytest.mark.parametrize(
    ("text", "writes", "undefined"),
    [
        ("x0.scatter_add_(0, x2, x1)", "x0", True),
        ("x0.add_(x1)", "x0", True),
        ("x0.__setitem__(slice(0, 3), x0[1:])", "x0", True),
        ("x0[::2].mul_(x0[1::2])", "x0", False),
        ("x0.mul_(x0)", "x0", False),
        ("x0.add_(x1.clone())", "x0", False),
        ("torch.nn.functional.scaled_dot_product_attention(x3[:, :, :2], x3[:, :, :2], x3)", "", True),
        ("torch.nn.functional.scaled_dot_product_attention(x3[:, :, :2], x3, x3)", "", False),
        ("torch.index_add(x3[0, 0, :0], 0, x2, x3[0, 0])", "", True),
        ("torch.index_add(x3[0, 0, :, :0], 0, x2, x3[0, 0, :, :0])", "", True),
        ("torch.index_add(x3[0, 0], 0, x2, x3[0, 0])", "", False),
        ("torch.nn.functional.interpolate(x3 / 0, size=(4, 2), mode='bilinear')", "", True),
        ("torch.nn.functional.interpolate(x3, size=(4, 2), mode='bilinear')", "", False),
        ("torch.prod(torch.tensor([0.0, 1e200, 1e200], dtype=torch.float64) + 0 * x3[0, 0, 0, 0])", "", True),
        ("torch.prod(torch.tensor([1e-200, 1e-200, 3.0], dtype=torch.float64) + 0 * x3[0, 0, 0, 0])", "", True),
        ("torch.prod(torch.tensor([0.0, 1e200, 10.0], dtype=torch.float64) + 0 * x3[0, 0, 0, 0])", "", False),
    ],
)
def test_what_eager_takes_and_does_not_define_is_rejected(text: str, writes: str, undefined: bool) -> None:
    """x1 begins an element after x0, which has gaps: eager looks for what is read and written of dense tensors."""
    x0, x3 = InputSpec((4,), torch.int8, 1, steps=(2,), spare=3), InputSpec((1, 1, 4, 2), F64, 2)
    x1 = replace(x0, alias="x0.as_strided((4,), (1,), 1)")
    program = FuzzProgram(
        (x0, x1, InputSpec((4,), torch.int64, 3, "index", 4), x3),
        (Statement("" if writes else "v0", text, writes),),
        ("x0",),
    )
    if undefined:
        with pytest.raises(Rejected):
            reference_of(program)
    else:
        assert reference_of(program).raised is None
