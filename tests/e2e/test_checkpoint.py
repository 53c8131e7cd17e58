"""torch.utils.checkpoint: what a forward saves by each policy, beside what torch's own partitioner saves; gradients
against eager's in float64; dropout in a region."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from support.compare import device_param, litz
from support.versions import OLD_TORCH

SIZE = 32
mm = torch.ops.aten.mm.default
SAVE, RECOMPUTE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE
POLICIES: Mapping[str, tuple[Mapping[Any, CheckpointPolicy], CheckpointPolicy] | None] = {
    "none": None,
    "products are saved": ({mm: SAVE}, CheckpointPolicy.PREFER_RECOMPUTE),
    "products alone are saved": ({mm: SAVE}, RECOMPUTE),
    "products are computed again": ({mm: RECOMPUTE}, CheckpointPolicy.PREFER_SAVE),
    "all is saved": ({}, SAVE),
    "rather saved": ({}, CheckpointPolicy.PREFER_SAVE),
    "rather computed again": ({}, CheckpointPolicy.PREFER_RECOMPUTE),
    "all is computed again": ({}, RECOMPUTE),
}
EXACT = {
    "none": (0, 0),
    "products alone are saved": (2, 0),
    "all is computed again": (0, 0),
    "rather computed again": (0, 0),
}
"""The products that a region of two saves, and what else it saves, in matrices."""


def _perceptron(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(x @ w) @ v * x


def _softmax(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.layer_norm((x @ w).softmax(-1), (SIZE,)).relu() @ v


def _parts(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    a, b = (x @ w).chunk(2, -1)
    return torch.cat([a.sigmoid() * b, b.sin() * a], -1) @ v


def _pooled(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.max_pool2d((x @ w)[None, None], 3, 1, 1)[0, 0].sin() @ v


def _nested(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return checkpoint(lambda x, w: torch.tanh(x @ w).cos(), x, w, use_reentrant=False) @ v


def _gathered(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    h = x @ w
    return h.gather(1, h.argsort(1)) @ v


REGIONS: Mapping[str, Callable[..., Tensor]] = {
    "perceptron": _perceptron,
    "softmax": _softmax,
    "parts": _parts,
    "pooled": _pooled,
    "nested": _nested,
    "gathered": _gathered,
}


def _model(region: Callable[..., Tensor], policy: str, x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    given: dict[str, Any] = {}
    chosen = POLICIES[policy]
    if chosen is not None:
        choose = lambda ctx, op, *args, **kwargs: chosen[0].get(op, chosen[1])
        given["context_fn"] = functools.partial(create_selective_checkpoint_contexts, choose)
    for _ in range(2):
        x = checkpoint(region, x, w, v, use_reentrant=False, **given).cos()
    return x


def _saved(result: Tensor, given: list[Tensor]) -> float:
    """What autograd holds for a compiled function's backward besides the inputs, in matrices."""
    own = {value.untyped_storage().data_ptr() for value in given}
    found = {value.untyped_storage() for value in result.grad_fn.saved_tensors}  # type: ignore[union-attr]
    sizes = {each.data_ptr(): each.nbytes() for each in found if each.data_ptr() not in own}
    return sum(sizes.values()) / (SIZE * SIZE * given[0].itemsize)


@device_param
@pytest.mark.each_value
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", REGIONS)
def test_policies(name: str, policy: str, device: str) -> None:
    """Passes on the joint graph and on its halves change what is saved: never to more than the policy asks for."""
    region = functools.partial(_model, REGIONS[name], policy)
    given = [(torch.randn(SIZE, SIZE, device=device).double() / 4).requires_grad_() for _ in range(3)]
    results = {}
    for backend in ("aot_eager", "litz"):
        torch._dynamo.reset()
        result = torch.compile(region, backend=backend, fullgraph=True)(*given)
        results[backend] = _saved(result, given), result, torch.autograd.grad(result.square().sum(), given)
    expected = region(*given)
    gradients = torch.autograd.grad(expected.square().sum(), given)
    torch.testing.assert_close(results["litz"][1:], (expected, gradients), rtol=1e-9, atol=1e-11)
    saved = results["litz"][0]
    if name != "softmax" or policy not in ("all is saved", "rather saved"):  # an op in pieces has each piece saved
        assert saved <= results["aot_eager"][0]
    if policy in EXACT:
        products, more = EXACT[policy]
        between = 1  # what the second region takes
        inner = name == "nested" and products > 0 and not OLD_TORCH  # an older torch saves what an inner region has
        assert saved == between + 2 * (products - inner + more)
    if policy == "all is saved":
        assert saved >= 3  # a product of each region


@pytest.mark.each_value
@device_param
@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("fallback", [False, True])
def test_dropout_has_one_mask(fallback: bool, preserve: bool, device: str) -> None:
    """The backward computes the region again, with the numbers of the forward; eager does so where it preserves the
    generator's state."""

    def inner(x: Tensor) -> Tensor:
        return F.dropout(x.exp(), 0.5)

    def outer(x: Tensor) -> Tensor:
        x = checkpoint(inner, x, use_reentrant=False, preserve_rng_state=preserve)
        return F.dropout(x * 2, 0.25)

    def f(x: Tensor) -> Tensor:
        return checkpoint(outer, x, use_reentrant=False, preserve_rng_state=preserve)

    x = torch.rand(2000, device=device).requires_grad_()
    compiled = litz(f, options={"fallback_random": fallback}, fullgraph=True)
    for _ in range(2):
        result = compiled(x)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        # Each kept element is 2 * exp(x) / (0.5 * 0.75), and so is its derivative.
        torch.testing.assert_close(gradient, result.detach(), rtol=1e-5, atol=1e-6)
        assert 0.25 < float((result != 0).double().mean()) < 0.5
