"""Calls on fake tensors ask for nothing that the trace around them does not ask for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from litz.capture.torch_api import fake_mode_around


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.pad(x, (0, 3)),  # what torch's fused attention does to masks
        lambda x: F.scaled_dot_product_attention(x, x, x, F.pad(x @ x.mT, (0, 3))[..., :-3] > 0),
        lambda x: torch.cat([x, x.flip(1)], 1).softmax(-1),
    ],
)
def test_symbolic_sizes_stay_symbols(call: object) -> None:
    assert callable(call)
    env = ShapeEnv()
    sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 3])
    x = FakeTensorMode(shape_env=env).from_tensor(torch.ones(3, 2, 5, 5), symbolic_context=sizes)
    with fake_mode_around([x]):
        made = call(x)
    assert isinstance(made.shape[0], torch.SymInt) and not env.guards and not env.replacements
