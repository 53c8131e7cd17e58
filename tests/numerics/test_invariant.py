"""`numerics.batch_invariant`: a row's results do not depend on the other rows, the batch or padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from litz import report
from litz.ir import Loop
from litz.pipeline import make_compiler
from litz_numerics.invariant import invariant_table
from litz_numerics.reduced import REASON, reduce_in_order
from litz_plugins import Decision, PassContext
from litz_plugins.errors import PluginHookError
from litz_plugins.words import CORE_PASSES
from litz_testing.parse.programs import parse_program
from litz_testing.tensors import other_bits
from numerics.values import same_bits
from support.retarget import cuda_schedules

INVARIANT = {"numerics.batch_invariant": True}
BATCHES, FEW = (1, 3, 8, 32, 257), (1, 257)
"""FEW: those of CI's models. Of single ops CI compares 1 row, and 32 that lie as columns, with 257, and
`make test-nightly` 3 and 32 of both; one row that is a column lies as a row does."""
F = nn.functional


class Block(nn.Module):
    """A layer of Llama's shape: rotated, grouped queries and keys, a gated MLP, root-mean-square norms."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.size, self.shared = width // heads, shared
        self.first, self.second = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, width // shared, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, past: Tensor | None, start: int) -> tuple[Tensor, Tensor]:
        """Returns the values after the layer, and the keys and values of all positions. past: those before `start`."""
        batch, length, width = x.shape
        inner = F.rms_norm(x, (width,), self.first)
        q, k, v = (part(inner).view(batch, length, -1, self.size).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = self._turned(q, start), self._turned(k, start)
        kept = torch.stack([k, v])
        kept = kept if past is None else torch.cat([past, kept], 3)
        k, v = kept.repeat_interleave(self.shared, 2).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        inner = F.rms_norm(x, (width,), self.second)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner)), kept

    def _turned(self, x: Tensor, start: int) -> Tensor:
        half = self.size // 2
        angles = torch.outer(
            torch.arange(x.shape[2], device=x.device) + start, 100 ** -(torch.arange(half, device=x.device) / half)
        )
        (cos, sin), (left, right) = (angles.cos().to(x.dtype), angles.sin().to(x.dtype)), x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Llama(nn.Module):
    """A small language model."""

    def __init__(self, words: int = 50, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, 4, 2) for _ in range(layers))
        self.norm, self.head = nn.Parameter(torch.rand(width)), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, past: list[Tensor] | None = None, start: int = 0) -> tuple[Tensor, list[Tensor]]:
        """Returns the scores of words, and each layer's keys and values."""
        x, kept = self.words(tokens), []
        for number, layer in enumerate(self.layers):
            x, own = layer(x, None if past is None else past[number], start)
            kept.append(own)
        return self.head(F.rms_norm(x, x.shape[-1:], self.norm)), kept


def compiled(function: Callable[..., Any], dynamic: bool = False) -> Callable[..., Any]:
    """Returns the function compiled anew, with nothing left of other sizes."""
    torch._dynamo.reset()
    return torch.compile(function, backend="litz", dynamic=dynamic, options=INVARIANT)


@cache
def prefill(dtype: torch.dtype, layers: int, batch: int) -> tuple[Llama, Tensor, Tensor, list[Tensor]]:
    """A model, tokens, and what it makes compiled for all of them: scores, keys and values."""
    torch.manual_seed(0)
    model, tokens = Llama(layers=layers).to(dtype).eval(), torch.randint(0, 50, (batch, 40))
    with torch.no_grad():
        scores, made = compiled(model)(tokens)
        wanted = model(tokens)[0]
    torch.testing.assert_close(scores, wanted, atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=0.02)
    return model, tokens, scores, made


@pytest.mark.parametrize(
    "dtype, layers, batches",
    [
        (torch.float32, 1, FEW),
        pytest.param(torch.float32, 2, BATCHES, marks=pytest.mark.nightly),
        pytest.param(torch.bfloat16, 2, BATCHES, marks=pytest.mark.nightly),
    ],
    ids=str,
)
@pytest.mark.xdist_group("prefill")
def test_a_row_of_llama_has_the_same_bits_in_each_batch(
    dtype: torch.dtype, layers: int, batches: Sequence[int]
) -> None:
    model, tokens, whole, _ = prefill(dtype, layers, max(batches))
    with torch.no_grad():
        for batch in batches[:-1]:
            found = compiled(model)(tokens[-batch:].clone())[0]
            assert same_bits(found, whole[-batch:]), batch


@pytest.mark.xdist_group("prefill")
@pytest.mark.parametrize("steps", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_decoding_has_the_bits_of_prefill(steps: int) -> None:
    """Of three rows, whose keys the prefill of all of them made."""
    model, tokens, whole, made = prefill(torch.float32, 1, max(FEW))
    tokens, whole = tokens[:3], whole[:3]
    with torch.no_grad():
        kept = [each[:, :3, :, :38].contiguous() for each in made]
        if steps > 1:
            begun, kept = compiled(model)(tokens[:, :38].clone())
            assert same_bits(begun, whole[:, :38].contiguous())
        for at in range(38, 38 + steps):
            step, kept = compiled(model)(tokens[:, at : at + 1].clone(), kept, at)
            assert same_bits(step[:, 0].contiguous(), whole[:, at].contiguous()), at


OPS: dict[str, Callable[[Tensor], Any]] = {
    "sums": lambda x: [x.sum(-1), x.mean(-1, keepdim=True), x.std(-1), x.var(-1, unbiased=False)],
    "softmax": lambda x: [x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1)],
    "norms": lambda x: [F.layer_norm(x, x.shape[-1:]), F.rms_norm(x, x.shape[-1:]), F.normalize(x, dim=-1)],
    "sums of middle dimensions": lambda x: [x.view(len(x), -1, 9).sum(1), x.view(len(x), 9, -1).mean((1, 2))],
    "products": lambda x: [(1 + x / 64).prod(-1), (1 + x / 64).view(len(x), -1, 9).prod(1)],
    "scans": lambda x: [x.cumsum(-1), (1 + x / 64).cumprod(-1), x.logcumsumexp(-1)],
    "pools": lambda x: [F.adaptive_avg_pool1d(x[:, None], 5), F.avg_pool1d(x[:, None], 3, 2)],
    "group norms": lambda x: F.group_norm(x.view(len(x), 9, -1), 3),
    "few columns": lambda x: x @ x[:, :1].new_ones(x.shape[1], 3),
    "functions": lambda x: [x.exp(), x.sin(), x.rsqrt(), x.log1p()],
    "more functions": lambda x: [F.gelu(x), x.tanh(), torch.erf(x), x.sigmoid()],
}

LEFT_OUT = {
    ("rows", (1,)): ("more functions",),
    ("columns", (32,)): ("functions", "norms", "group norms", "pools", "sums of middle dimensions"),
}
"""Ops that CI compiles of one way to lie alone: those that are sums, as others are, and functions, whose loop is over
all elements as they lie."""


@pytest.mark.parametrize(
    "columns, dtype",
    [
        (99, torch.float32),
        *(pytest.param(n, torch.float32, marks=pytest.mark.nightly) for n in (9, 1026, 4095)),
        *(pytest.param(99, dtype, marks=pytest.mark.nightly) for dtype in (torch.float16, torch.float64)),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "lies, batches",
    [
        *(("rows", (1,)), ("columns", (32,))),
        *(pytest.param(lies, (3, 32), marks=pytest.mark.nightly) for lies in ("rows", "columns")),
    ],
    ids=str,
)
def test_ops_have_the_same_bits_in_each_batch(
    lies: str, batches: Sequence[int], columns: int, dtype: torch.dtype
) -> None:
    x = torch.randn(257, columns).to(dtype)
    ops = {name: op for name, op in OPS.items() if name not in LEFT_OUT.get((lies, tuple(batches)), ())}

    def every(x: Tensor) -> list[Any]:
        return [op(x if lies == "rows" else x + 0) for op in ops.values()]

    def given(batch: int) -> Tensor:
        return x[:batch].clone() if lies == "rows" else x[:batch].t().contiguous().t()

    whole = compiled(every)(given(257))
    for batch in batches:
        found = compiled(every)(given(batch))
        for name, got, want in zip(ops, found, whole, strict=True):
            pairs = zip(*([made] if isinstance(made, Tensor) else made for made in (got, want)), strict=True)
            assert not any(other_bits(a, b[:batch]) for a, b in pairs), (name, batch)


def test_padding_changes_nothing() -> None:
    """Keys behind a mask, more than a block of them, and rows behind the others."""

    def f(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    q, k = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 1500, 16)
    mask = torch.zeros(5, 1500).masked_fill(torch.arange(1500) >= 70, -torch.inf)
    short = compiled(f)(q, k[:, :, :70].clone(), mask[:, :70].clone())
    torch.testing.assert_close(short, f(q, k, mask))
    assert same_bits(compiled(f)(q, k, mask), short)


@pytest.mark.nightly
def test_one_code_for_all_batches_has_the_same_bits() -> None:
    linear = nn.Sequential(nn.Linear(70, 33), nn.LayerNorm(33), nn.Softmax(-1)).eval()
    x = torch.randn(257, 70)
    with torch.no_grad():
        whole, function = compiled(linear)(x), compiled(linear, dynamic=True)
        for batch in (257, 32, 8, 3, 2):
            assert same_bits(function(x[:batch].clone()), whole[:batch]), batch


def test_calls_that_may_depend_on_the_batch_are_on_record() -> None:
    layer = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(20, 4)).eval()
    with report.collect() as reports, torch.no_grad():
        compiled(lambda x: torch.linalg.inv_ex(layer(x).view(-1, 2, 2))[0])(torch.randn(2, 3, 7))
    said = [d.chosen for d in reports[0].decisions if "may depend on the batch" in d.reason]
    assert said == ["torch's linalg_inv_ex.default"]


def test_sums_are_in_order_and_other_rounded_reductions_on_record() -> None:
    text = """
    program g
      input x: f32 [4, 9] cpu
      input n: i64 [4, 9] cpu
      loop op0 [i0<4 | r0<9] cpu  # a
        v0: f32 = load x[i0, r0]
        v1: f32 = reduce sum v0
        v2: f32 = reduce welford_mean v0
        v3: f32 = reduce max v0
        v4: i64 = load n[i0, r0]
        v5: i64 = reduce sum v4
        store total[i0] = v1  # f32 [4]
        store mean[i0] = v2  # f32 [4]
        store top[i0] = v3  # f32 [4]
        store count[i0] = v5  # i64 [4]
      return total[4], mean[4], top[4], count[4]
    """
    notes: list[Decision] = []
    (loop,) = reduce_in_order(parse_program(text), PassContext({}, note=notes.append)).operations
    assert isinstance(loop, Loop)
    assert [store.value.attrs[0] for store in loop.stores] == ["sum_in_order", "welford_mean", "max", "sum"]
    assert [(d.chosen, d.reason) for d in notes] == [("welford_mean of a", REASON)]


CONVOLUTIONS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), (4, 9, 11), (6, 4, 3, 3)),
    "groups": (
        lambda x, w, b: F.conv2d(x, w, b, stride=(1, 2), padding=(2, 0), dilation=(2, 1), groups=2),
        (4, 9, 11),
        (6, 2, 3, 2),
    ),
    "1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), (4, 9), (6, 4, 3)),
    "3d": (lambda x, w, b: F.conv3d(x, w, b, stride=2, padding=1), (2, 5, 6, 7), (6, 2, 3, 3, 3)),
    "one position": (lambda x, w, b: F.conv2d(x, w, b), (4, 1, 1), (6, 4, 1, 1)),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        (4, 5, 6),
        (4, 6, 3, 3),
    ),
    "transposed, groups": (
        lambda x, w, b: F.conv_transpose1d(x, w, b, stride=3, dilation=2, groups=2),
        (4, 7),
        (4, 3, 3),
    ),
}
"""A convolution, the size of a sample and of the weights."""


def _step(
    functions: Sequence[Callable[..., Tensor]], given: Sequence[Sequence[Tensor]], run: bool
) -> list[list[Tensor]]:
    """Of each function its result and the gradient of each of its inputs. run: whether litz compiles them, in one
    graph, of which each function has inputs of its own."""
    inputs = [[each.clone().requires_grad_() for each in those] for those in given]

    def every(inputs: list[list[Tensor]]) -> list[Tensor]:
        return [function(*those) for function, those in zip(functions, inputs, strict=True)]

    results = (compiled(every) if run else every)(inputs)
    flat = [each for those in inputs for each in those]
    gradients = iter(torch.autograd.grad([result.square().sum() for result in results], flat))
    return [[result.detach(), *(next(gradients) for _ in own)] for result, own in zip(results, inputs, strict=True)]


@pytest.mark.ci_cases("some")
@pytest.mark.parametrize(
    "batches",
    [
        {"2d": 8, "transposed, groups": 1, "one position": 1},
        dict.fromkeys(CONVOLUTIONS, 1),
        dict.fromkeys(CONVOLUTIONS, 8),
    ],
    ids=["some", "each of 1", "each of 8"],
)
def test_convolutions_and_their_gradients(batches: dict[str, int]) -> None:
    """batches: the rows of each convolution that are compared with those of 33."""
    functions, given = [CONVOLUTIONS[name][0] for name in batches], list[list[Tensor]]()
    for _, sample, kernel in (CONVOLUTIONS[name] for name in batches):
        given.append([torch.randn(33, *sample), torch.randn(kernel), torch.randn(6)])
    exact = _step(functions, [[each.double() for each in those] for those in given], run=False)
    whole, eager = (_step(functions, given, run=run) for run in (True, False))
    for found, wanted, usual in zip(*map(chain.from_iterable, (whole, exact, eager)), strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=2e-6 * wanted.abs().max().item(), rtol=0)
        assert found.stride() == usual.stride()
    few = [[x[:batch], *rest] for (x, *rest), batch in zip(given, batches.values(), strict=True)]
    for (name, batch), found, all_rows in zip(batches.items(), _step(functions, few, run=True), whole, strict=True):
        assert all(same_bits(got, want[:batch]) for got, want in zip(found[:2], all_rows[:2], strict=True)), name


@pytest.mark.ci_cases("causal 1, full 3")
@pytest.mark.parametrize("batches", [(1, 3), (3, 1)], ids=["causal 1, full 3", "causal 3, full 1"])
def test_gradients_of_attention(batches: tuple[int, int]) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    functions = [partial(f, causal=causal) for causal in (True, False)]
    given = [[torch.randn(33, 2, 17, 8) for _ in range(3)] for _ in functions]
    whole = _step(functions, given, run=True)
    exact = _step(functions, [[each.double() for each in those] for those in given], run=False)
    for found, wanted in zip(*map(chain.from_iterable, (whole, exact)), strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
    few = [[each[:batch] for each in those] for those, batch in zip(given, batches, strict=True)]
    for batch, found, all_rows in zip(batches, _step(functions, few, run=True), whole, strict=True):
        assert all(same_bits(got, want[:batch]) for got, want in zip(found, all_rows, strict=True)), batch


def test_strict_mode_contradicts() -> None:
    both = make_compiler(None, INVARIANT | {"numerics.mode": "strict"})
    with pytest.raises(PluginHookError, match=r"eager's rows depend on the batch(.|\n)*to do: give one of the two"):
        both.plugins.passes(both.options)


def test_another_device_is_refused() -> None:
    layer, x = nn.Softmax(-1), torch.randn(4, 8)
    with pytest.raises(BackendCompilerFailed, match=r"cannot be kept on cuda(.|\n)*to do: leave the option out"):
        cuda_schedules(lambda backend: torch.compile(layer, backend=backend)(x), make_compiler(None, INVARIANT))


def test_sine_and_cosine_of_one_value_have_the_bits_of_one_alone() -> None:
    """Which g++ otherwise makes one call, of other bits than those of either in vectors."""
    x = torch.randn(999) * 3
    both = torch.compile(lambda x: (x.cos() * 1.0, x.sin() * 1.0), backend="litz")(x)
    alone = [torch.compile(function, backend="litz")(x) for function in (lambda x: x.cos(), lambda x: x.sin())]
    assert all(map(same_bits, both, alone))


def test_the_table_names_passes_that_there_are() -> None:
    every = {"collectives.verify_plan": True, "freezing": True}
    usual, own = make_compiler(None, every), make_compiler(None, every | INVARIANT)
    known = {item.name for item in usual.plugins.passes(usual.options)} | CORE_PASSES.keys()
    kept = {item.name for item in own.plugins.passes(own.options)}
    assert kept == invariant_table().passes
    assert invariant_table().passes - known == {"round_each", "fix_orders", "reduce_in_order", "name_dependent_kernels"}
    assert not own.plugins.templates(own.options)
