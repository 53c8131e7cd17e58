"""Where results of norms and their gradients lie on a CPU: inputs that are neither contiguous nor channels-last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from litz.capture import torch_api
from litz.capture.decompositions import decompositions, fake_rules

aten = torch.ops.aten
LAID: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "turned": lambda x: x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim()))),
    "expanded": lambda x: x[:1].expand(x.shape),
    "gaps": lambda x: torch.stack((x, x), -1)[..., 0],
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.mT.clone().mT,
    "one channel": lambda x: x[:, :1].transpose(0, -1).clone().transpose(0, -1),
}


def normed(x: torch.Tensor, training: bool) -> torch.Tensor:
    ones = torch.ones(x.shape[1])
    return F.batch_norm(x, ones * 0, ones, training=training)


def shared(tensors: list[torch.Tensor]) -> list[list[bool]]:
    """Of each tensor, with which ones it shares memory."""
    starts = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[start == other for other in starts] for start in starts]


@pytest.mark.each_value
@pytest.mark.parametrize("how", LAID)
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 5)])
def test_a_batch_norm_and_its_views_lie_as_in_eager(shape: tuple[int, ...], how: str) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        found = [normed(x, True), normed(x, False)]
        return [view for v in found for view in (v, v.flatten(0, 1), v.transpose(0, 1), v.reshape(-1))]

    torch._dynamo.reset()
    x = LAID[how](torch.randn(shape)).requires_grad_()
    wanted, found = fn(x), torch.compile(fn, backend="litz")(x)
    assert [v.stride() for v in found] == [v.stride() for v in wanted]
    assert shared(found) == shared(wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
    gradients = [torch.autograd.grad(made[1].square().sum() + made[4].sum(), x)[0] for made in (found, wanted)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


x = LAID["turned"](torch.randn(3, 4, 5))
mean, scale = torch.randn(3, 1, 1), torch.rand(3, 1, 1)
CALLS = (
    (aten.native_layer_norm_backward.default, (x, x, [4, 5], mean, scale, None, None, [True, False, False])),
    (aten._log_softmax_backward_data.default, (x, x.contiguous(), 1, torch.float32)),
    (aten._log_softmax_backward_data.default, (x, x, 0, torch.float32)),
    (aten.native_dropout_backward.default, (x, x.contiguous() > 0, 2.0)),
    (aten.native_dropout_backward.default, (x.contiguous(), x > 0, 2.0)),
)


@pytest.mark.parametrize("op, given", CALLS)
def test_a_gradient_lies_as_in_eager_in_the_trace_and_in_the_graph(op: OpOverload, given: tuple[Any, ...]) -> None:
    table = decompositions()
    (wanted, *_) = tree_leaves(op(*given))
    with FakeTensorMode() as mode, enable_python_dispatcher():
        fakes = tree_map_only(torch.Tensor, mode.from_tensor, given)
        with torch_api.faked_by(fake_rules(table)):
            (faked, *_) = tree_leaves(op(*fakes))
        (decomposed, *_) = tree_leaves(table[op](*fakes))
    assert faked.stride() == decomposed.stride() == wanted.stride()


def test_a_mask_of_dropout_that_is_no_bool_wraps_as_in_eager() -> None:
    torch._dynamo.reset()
    gradient = torch.tensor([[255, 0], [254, 2]], dtype=torch.uint8)
    fn = lambda gradient: aten.native_dropout_backward(gradient, gradient, 0.5)
    assert torch.equal(torch.compile(fn, backend="litz")(gradient), fn(gradient))
