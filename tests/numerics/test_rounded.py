"""Mode "rounded": half values are rounded where eager stores them, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.pipeline import make_compiler
from litz_numerics.rounded import rounded_table
from litz_plugins.words import CORE_PASSES
from numerics.values import HALVES, same_bits

ROUNDED = {"numerics.mode": "rounded"}
F = torch.nn.functional
aten = torch.ops.aten

Operands = tuple[torch.Tensor, torch.Tensor]


def operands(dtype: torch.dtype, *shape: int) -> Operands:
    """Returns two tensors of random numbers, one of which is strided."""
    return torch.randn(*shape).to(dtype), torch.randn(*shape[:-1], 2 * shape[-1]).to(dtype)[..., ::2]


def whole(dtype: torch.dtype) -> Operands:
    """Returns small whole numbers: their sums are exact in float32, in any order."""
    return torch.randint(-8, 9, (33, 70)).to(dtype), torch.randint(-8, 9, (33, 70)).to(dtype)


CHAINS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "sums and products": lambda x, y: (x * y + x) * y - x,
    "one value several times": lambda x, y: [(x + y) * 3.0, (x + y) - y, (x + y).float()],
    "numbers": lambda x, y: ((x * 0.1 + 0.3) / 3.0 - 0.7) * 1.1,
    "choices": lambda x, y: torch.where(x > y, x * y, x - y).clamp(-0.7, 0.9) + y.relu() * x,
    "float32 between": lambda x, y: ((x.float() * y.float()).to(x.dtype) + x).float() * 0.3,
    "an integer beside a half": lambda x, y: (x * (torch.arange(70) * 7) - y) * torch.tensor(0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3) - x,
    "a matrix's product": lambda x, y: (x @ y.mT) * 0.1 + (x @ x.mT),
}
REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "of a chain": lambda x, y: ((x * y + x) * 0.5).sum(-1) * 0.3 - 1.1,
    "of columns": lambda x, y: (x * y - y).sum(0) * 0.7 + x,
    "all": lambda x, y: (x + y).amax() * 0.3 + (x * y).sum(),
    "a mean": lambda x, y: (x * y).mean(-1, keepdim=True) * x - y,
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_chains_have_eagers_roundings(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # In float32 a product's sum has another order than in the half type.
    for module in ("graph.wide_products", "processor"):
        monkeypatch.setattr(f"litz_passes.{module}.without_kernels", frozenset)

    def every(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
        made = {name: chain(x, y) for name, chain in CHAINS.items()}
        return made | {name: chain(a, b) for name, chain in REDUCTIONS.items()}

    given = (*operands(dtype, 70, 70), *whole(dtype))
    wanted = every(*given)
    found = torch.compile(every, backend="litz", options=ROUNDED)(*given)
    differ = [name for name in wanted if not _same(found[name], wanted[name])]
    assert not differ
    chain = CHAINS["sums and products"]
    usual = torch.compile(chain, backend="litz")(*given[:2])
    assert not _same(usual, wanted["sums and products"])  # which litz rounds once by default


def _same(found: Any, wanted: Any) -> bool:
    pairs = zip(*([value] if isinstance(value, torch.Tensor) else value for value in (found, wanted)), strict=True)
    return all(same_bits(*pair) for pair in pairs)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_strict_mode_rounds_what_joins_a_half_type(dtype: torch.dtype) -> None:
    chain, given = CHAINS["an integer beside a half"], operands(dtype, 70, 70)
    assert same_bits(torch.compile(chain, backend="litz", options={"numerics.mode": "strict"})(*given), chain(*given))


@pytest.mark.parametrize("size", [0, 1, 7])
def test_sizes(size: int) -> None:
    chain = CHAINS["sums and products"]
    x, y = operands(torch.bfloat16, size, size)
    assert same_bits(torch.compile(chain, backend="litz", options=ROUNDED)(x, y), chain(x, y))


def test_gradients_have_eagers_roundings() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x * y + x) * y).relu() * x

    x, y = (value.clone().requires_grad_() for value in operands(torch.bfloat16, 31, 17))
    given = torch.randn(31, 17).bfloat16()
    wanted = torch.autograd.grad(f(x, y), (x, y), given)
    found = torch.autograd.grad(torch.compile(f, backend="litz", options=ROUNDED)(x, y), (x, y), given)
    assert all(map(same_bits, found, wanted))


def _row_calls(dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    x, y, s = torch.randn(70, 33).to(dtype), torch.randn(70, 33).to(dtype), torch.rand(70, 33).to(dtype)
    mean, rstd = x.float().mean(-1, True).to(dtype), x.float().std(-1, keepdim=True).reciprocal().to(dtype)
    return {
        "xlogy": lambda: torch.xlogy(x, s),
        "logit": lambda: torch.logit(s, 1e-3),
        "native_layer_norm_backward": lambda: aten.native_layer_norm_backward(
            y, x, [33], mean, rstd, x[0], x[1], [True, True, True]
        ),
        "sigmoid_backward": lambda: aten.sigmoid_backward(x, s),
        "_log_softmax": lambda: torch.log_softmax(x, -1),
        "addr": lambda: torch.addr(x, x[:, 0], y[0]),
        "nll_loss_forward": lambda: F.nll_loss(x, torch.arange(70) % 33),
        "binary_cross_entropy": lambda: F.binary_cross_entropy(s, y.sigmoid()),
        "soft_margin_loss": lambda: F.soft_margin_loss(x, y.sign()),
        "mse_loss": lambda: F.mse_loss(x, y),
        "huber_loss": lambda: F.huber_loss(x, y),
        "mse_loss_backward": lambda: aten.mse_loss_backward(x, x, y, 0),
        "huber_loss_backward": lambda: aten.huber_loss_backward(x, x, y, 0, 1.3),
        "glu_backward": lambda: aten.glu_backward(x[:, :16], y[:, :32], -1),
        "logit_backward": lambda: aten.logit_backward(x, s, 1e-3),
        "special_entr": lambda: torch.special.entr(s),
        "special_xlog1py": lambda: torch.special.xlog1py(x, s),
        "grid_sampler_2d": lambda: F.grid_sample(x.view(1, 5, 14, 33), y.view(1, 5, 231, 2), align_corners=False),
        "native_dropout_backward": lambda: aten.native_dropout_backward(x, s > 0.5, 1.3717),
    }


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_ops_whose_rules_round_elsewhere_stay_whole(dtype: torch.dtype) -> None:
    calls = _row_calls(dtype)
    assert calls.keys() <= rounded_table().whole.keys()

    def every() -> list[Any]:
        return [call() for call in calls.values()]

    found = torch.compile(every, backend="litz", options=ROUNDED)()
    wanted = every()
    assert [name for name, *pair in zip(calls, found, wanted, strict=True) if not _same(*pair)] == []


def test_the_table_names_ops_and_passes_that_there_are() -> None:
    table, usual, rounded = rounded_table(), make_compiler(), make_compiler(None, ROUNDED)
    rules = usual.plugins.decompositions(options=usual.options)
    known = {str(op).removeprefix("aten.").partition(".")[0] for op in (*rules, *aten_ops(table.whole))}
    assert table.whole.keys() <= known
    names = {item.name for item in make_compiler(None, {"freezing": True}).plugins.passes(usual.options)}
    assert table.left_out - {"fold_affine"} <= names | CORE_PASSES.keys()
    left = {item.name for item in rounded.plugins.passes(rounded.options)}
    assert names - left == table.left_out - {"fold_affine"} and left - names == {"round_each"}
    assert rounded.plugins.lowerings(options=rounded.options).keys() == usual.plugins.lowerings().keys()
    assert len(rounded.plugins.templates(rounded.options)) == len(usual.plugins.templates(usual.options))


def aten_ops(names: Any) -> list[Any]:
    """Returns the overloads of the named ops that this torch has."""
    found = [getattr(aten, name, None) for name in names]
    return [getattr(packet, overload) for packet in found if packet is not None for overload in packet.overloads()]
