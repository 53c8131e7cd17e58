"""Attention whose heads share keys, or whose mask is expanded: changed where that makes it one call of torch's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from litz.capture.joint import TracedGraph
from litz.target import target_of
from litz_contractions.traced.fused_attention import fuse_attention, has_fused_attention, keep_strides
from litz_contractions.traced.torch_kernels import is_in_pieces, is_unfused
from litz_plugins import PassContext, Target, TargetOf
from support.compare import NO_GPU

Q, K, V = torch.randn(2, 8, 3, 16), torch.randn(2, 2, 10, 16), torch.randn(2, 2, 10, 16)
MASK = torch.rand(2, 1, 3, 10) < 0.7


def captured(fn: Any, *args: Any) -> torch.fx.GraphModule:
    """Dynamo's graph."""
    found: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        found.append(gm)
        return gm

    torch._dynamo.reset()
    torch.compile(fn, backend=backend)(*args)
    (gm,) = found
    return gm


def on_any(device: torch.device) -> Target:
    return Target(device.type, abilities=frozenset({"fused_attention"}))


def fused_attention(
    gm: torch.fx.GraphModule, *args: Any, target_of: TargetOf = on_any, **kwargs: Any
) -> torch.fx.GraphModule:
    return fuse_attention(
        TracedGraph("graph0_traced", gm), PassContext({}, target_of=target_of), *args, **kwargs
    ).module


def only_repeated(*args: Any, **kwargs: Any) -> bool:
    """As torch has it for a mask: there is a fused kernel for keys that were repeated."""
    return bool(kwargs.get("enable_gqa"))


def calls(gm: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op.startswith("call")]


@pytest.mark.parametrize(
    "fn",
    [
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True, scale=0.3),
        lambda q, k, v, m: F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=m, enable_gqa=True),
    ],
)
def test_keys_and_values_are_repeated(fn: Any) -> None:
    gm = captured(fn, Q, K, V, MASK)
    gm = fused_attention(gm, only_repeated)
    assert calls(gm)[:2] == ["repeat_interleave"] * 2 and len(calls(gm)) == 3
    (attention,) = gm.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    assert attention.kwargs["enable_gqa"] is False
    torch.testing.assert_close(gm(Q, K, V, MASK)[0], fn(Q, K, V, MASK))


@pytest.mark.parametrize(
    ("fn", "key", "unfused"),
    [
        # There is a fused kernel as it is; there is none either way; heads share nothing.
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), K, lambda *a, **k: False),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), K, lambda *a, **k: True),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), Q, only_repeated),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), Q, only_repeated),
    ],
)
def test_what_it_would_not_help_stays(fn: Any, key: torch.Tensor, unfused: Any) -> None:
    gm = captured(fn, Q, key, key)
    before = str(gm.graph)
    gm = fused_attention(gm, unfused)
    assert str(gm.graph) == before


@pytest.mark.parametrize("fused", [False, True])
def test_an_expanded_mask_is_copied(fused: bool) -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, m.expand(2, 1, 3, 10), enable_gqa=True)

    mask = torch.tensor([True, False, True])[:, None]
    gm = captured(fn, Q, K, V, mask)
    gm = fused_attention(gm, only_repeated if fused else lambda *a, **k: False)
    repeats = ["repeat_interleave"] * (2 if fused else 0)
    assert sorted(calls(gm)[:-1]) == ["contiguous", "expand", *repeats]
    torch.testing.assert_close(gm(mask, Q, K, V)[0], fn(Q, K, V, mask))


def test_a_dense_mask_is_not_copied_and_on_a_cpu_none() -> None:
    gm = captured(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), Q, Q, Q, torch.ones(3, 3).bool())
    before = str(gm.graph)
    gm = fused_attention(gm)
    assert str(gm.graph) == before
    expanded = torch.ones(3, 1).bool().expand(3, 3)
    gm = captured(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), Q, Q, Q, expanded)
    before = str(gm.graph)
    gm = fused_attention(gm, target_of=target_of)
    assert str(gm.graph) == before


def test_nobody_knows_what_torch_would_pick_elsewhere() -> None:
    assert not has_fused_attention(target_of, Q)
    with torch._subclasses.FakeTensorMode():
        fakes = [torch.empty(each.shape, device="cuda") for each in (Q, K, V)]
        if not torch.cuda.is_available():
            assert not is_unfused(*fakes, enable_gqa=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])])
@pytest.mark.parametrize("train", [False, True])
def test_torch_is_asked_by_the_call_itself(device: str, train: bool) -> None:
    with torch._subclasses.FakeTensorMode():
        half = [torch.empty(2, 4, 256, 64, device=device, dtype=torch.bfloat16, requires_grad=train) for _ in range(3)]
        odd = [torch.empty(2, 4, 256, 36, device=device, dtype=torch.bfloat16, requires_grad=train) for _ in range(3)]
        assert not is_in_pieces(*half, scale=0.5)
        assert not is_in_pieces(*odd)
        assert is_in_pieces(*[each[..., ::2] for each in half], dropout_p=0.5)
        if device == "cuda":
            assert not is_unfused(*half) and is_unfused(*[each.double() for each in half])


def test_gradients_of_what_was_repeated_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litz_contractions.traced.fused_attention.has_fused_attention", lambda target_of, query: True)
    monkeypatch.setattr(
        "litz_contractions.traced.fused_attention.fuse_attention", partial(fuse_attention, unfused=only_repeated)
    )

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=MASK, enable_gqa=True).square().sum()

    found = []
    for function in (fn, torch.compile(fn, backend="litz")):
        torch._dynamo.reset()
        leaves = [each.clone().requires_grad_() for each in (Q, K, V)]
        function(*leaves).backward()
        found.append([leaf.grad for leaf in leaves])
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)


USERS: dict[str, tuple[Any, bool]] = {
    "returned": (lambda out: out, True),
    "view of it returned": (lambda out: out.transpose(1, 2), True),
    "view that needs eager's strides": (lambda out: out.view(16, 48) * 2, True),
    "read by another op": (lambda out: out.sin(), True),
    "as transformers do": (lambda out: out.transpose(1, 2).contiguous().view(2, 3, -1), False),
    "reshaped": (lambda out: out.permute(0, 2, 1, 3).reshape(2, 3, 128), False),
    "both": (lambda out: (out.transpose(1, 2).reshape(2, 3, 128), out), True),
}


def fused(*args: torch.Tensor) -> torch.Tensor:
    """As a fused kernel: results lie as queries do, where attention in pieces gives contiguous ones."""
    return F.scaled_dot_product_attention(*args).transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("name", USERS)
def test_a_result_whose_strides_can_be_seen_keeps_eagers(name: str) -> None:
    use, copied = USERS[name]
    fn = lambda *args: use(F.scaled_dot_product_attention(*args))
    args = (torch.randn(2, 8, 3, 16), torch.randn(2, 8, 10, 16), torch.randn(2, 8, 10, 16), MASK)
    with sdpa_kernel(SDPBackend.MATH):
        gm, expected = captured(fn, *args), fn(*args)
        (node,) = gm.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        before = len(calls(gm))
        made = node.meta["example_value"].transpose(1, 2).contiguous().transpose(1, 2)
        keep_strides(node, made)
        node.target = fused
        gm.recompile()
        found = gm(*args)
    assert len(calls(gm)) == before + 3 * copied
    for ours, theirs in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()


def test_a_graph_computes_as_captured_after_the_change() -> None:
    """litz leaves some graphs to torch (inputs that overlap): torch then shares the heads by its own rules. With
    repeated heads torch may pick a kernel that takes fewer addresses, and raise an error."""
    gm = captured(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True), Q, K, V, MASK)
    changed = fused_attention(gm, only_repeated)
    assert len(calls(changed)) == 3 and len(calls(gm)) == 1
    for node in changed.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
        assert node.kwargs["enable_gqa"] is False
    torch.testing.assert_close(gm(Q, K, V, MASK)[0], changed(Q, K, V, MASK)[0])
    assert "repeat_interleave" not in gm.code and "repeat_interleave" in changed.code
