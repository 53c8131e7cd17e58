"""flex_attention on the CPU: a kernel that calls BLAS on blocks, against float64 and eager, and in little memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from litz.ir import KernelCall
from litz.pipeline import schedule_only
from litz.target.processors import has_blas
from support.warm import run_warm

Tensor = torch.Tensor
pytestmark = [
    pytest.mark.skipif(not has_blas(), reason="torch's library has no BLAS to call"),
    pytest.mark.usefixtures("attention_untraced"),
]

BIAS = torch.randn(4, 260, 260, generator=torch.Generator().manual_seed(1))
DOCUMENTS = torch.arange(2000) // 123
SCORES: Mapping[str, Callable[..., Tensor]] = {
    "distance": lambda s, b, h, q, k: s - (h + 1) * 0.1 * (q - k).abs(),
    "soft cap": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
    "bias": lambda s, b, h, q, k: s + BIAS[h, q, k],
    "nothing": lambda s, b, h, q, k: s * 0,
    "infinite": lambda s, b, h, q, k: torch.where(k % 3 == 0, s, -float("inf")),
}
MASKS: Mapping[str, Callable[..., Tensor]] = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 70),
    "both sides": lambda b, h, q, k: (q - k).abs() <= 40,
    "no keys for some": lambda b, h, q, k: (q >= 150) & (k < q - 7),
    "documents": lambda b, h, q, k: DOCUMENTS[q] == DOCUMENTS[k],
    "of heads": lambda b, h, q, k: (q >= k) | (h == 1) & (b == 0),
    "nothing at all": lambda b, h, q, k: k < 0,
}


def tensors(dtype: torch.dtype, rows: int, keys: int, heads: int = 4, group: int = 1, width: int = 32) -> list[Tensor]:
    torch.manual_seed(rows + keys)
    size = (2, heads // group, keys, width)
    return [torch.randn(2, heads, rows, width).to(dtype), torch.randn(size).to(dtype), torch.randn(size).to(dtype)]


def check(args: list[Tensor], *, dynamic: bool = False, **how: Any) -> None:
    """No further off than eager, and the same logarithms of sums."""
    torch._dynamo.reset()
    how["enable_gqa"] = args[0].shape[1] != args[1].shape[1]

    def fn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return flex_attention(q, k, v, return_lse=True, **how)

    with torch.no_grad():
        out, sums = torch.compile(fn, backend="litz", dynamic=dynamic)(*args)
        eager, eager_sums = fn(*args)
        exact, exact_sums = fn(*(x.double() for x in args))
    assert (out.dtype, out.shape, out.stride()) == (eager.dtype, eager.shape, eager.stride())
    top = exact.abs().max().clamp_min(1e-9)
    errors = [float((found.double() - exact).abs().max() / top) for found in (out, eager)]
    assert errors[0] <= max(1.2 * errors[1], 3e-6 if eager.dtype == torch.float32 else 4e-3), errors
    assert sums.dtype == eager_sums.dtype or eager.dtype == torch.float64  # torch's fake tensor says float32
    torch.testing.assert_close(sums.double(), exact_sums.double(), atol=1e-4, rtol=1e-4)


def block_mask(mask: str, rows: int, keys: int, **how: Any) -> Any:
    return create_block_mask(MASKS[mask], how.pop("B", None), how.pop("H", None), rows, keys, device="cpu", **how)


def kernels(fn: Callable[..., Any], *args: Tensor, dynamic: bool = False) -> list[str]:
    """The text of the kernels that came with their source."""
    torch._dynamo.reset()
    with torch.no_grad():
        (schedule,) = schedule_only(fn, args, dynamic=dynamic)
    return [step.source.text for step in schedule.steps if isinstance(step, KernelCall)]


SIZES = [(1, 1), (1, 77), (64, 256), (65, 257), (100, 600), (300, 3)]


def sizes() -> list[Any]:
    """(type, rows, keys): float32 with all, half types with a row and with blocks that are not whole, else with
    `make test-all`."""

    def marks(dtype: torch.dtype, size: tuple[int, int]) -> list[pytest.MarkDecorator]:
        usual = dtype == torch.float32 or (dtype == torch.bfloat16 and size in ((1, 77), (65, 257)))
        return [] if usual else [pytest.mark.thorough]

    return [
        pytest.param(dtype, *size, id=f"{dtype}-{size[0]}-{size[1]}", marks=marks(dtype, size))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for size in SIZES
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eager_is_the_same_untraced(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests compare with: the fixture `attention_untraced`."""
    how: dict[str, Any] = {"score_mod": SCORES["bias"], "block_mask": block_mask("window", 260, 260)}
    with torch.no_grad():
        found = flex_attention(*tensors(dtype, 260, 260), return_lse=True, **how)
        monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False, raising=False)
        traced = flex_attention(*tensors(dtype, 260, 260), return_lse=True, **how)
    for one, other in zip(found, traced, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.ci_cases("torch.float32-1-1", "torch.bfloat16-1-77", "torch.float32-100-600")
@pytest.mark.parametrize("dtype, rows, keys", sizes())
def test_sizes(dtype: torch.dtype, rows: int, keys: int) -> None:
    check(tensors(dtype, rows, keys))
    if rows > 1:
        check(tensors(dtype, rows, keys), block_mask=block_mask("causal", rows, keys))


@pytest.mark.ci_cases("soft cap-dtype1-True", "bias-dtype0-False")  # other tests here have the distance
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("score", SCORES)
def test_scores(score: str, dtype: torch.dtype, masked: bool) -> None:
    how = {"block_mask": block_mask("causal", 260, 260)} if masked else {}
    check(tensors(dtype, 260, 260), score_mod=SCORES[score], **how)


FOR_HEADS = "lists for each head"
BLOCKS: list[Any] = [128, 64, (192, 48), (48, 300), FOR_HEADS]


@pytest.mark.ci_cases("window-64", "no keys for some-blocks18", "of heads-lists for each head", "nothing at all-128")
@pytest.mark.parametrize(
    ("mask", "blocks"),
    # Lists that are made for one head are no hint for another.
    [(mask, blocks) for mask in MASKS for blocks in BLOCKS if mask != "of heads" or blocks == FOR_HEADS],
)
def test_masks(mask: str, blocks: Any) -> None:
    how = {"B": 2, "H": 4} if blocks == FOR_HEADS else {"BLOCK_SIZE": blocks}
    check(tensors(torch.float32, 410, 410), block_mask=block_mask(mask, 410, 410, **how))


@pytest.mark.ci_cases("4-dtype1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [2, 4])
def test_heads_that_share(group: int, dtype: torch.dtype) -> None:
    check(tensors(dtype, 130, 260, group=group), score_mod=SCORES["distance"])


def test_views_and_scale() -> None:
    q, k, v = tensors(torch.float32, 130, 260)
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    check(transposed, scale=0.3)
    check([q, k.transpose(2, 3).contiguous().transpose(2, 3), v[..., ::2]], scale=-0.1)
    check([q, k[:1].expand(2, -1, -1, -1), v[:, :, :1].expand(-1, -1, 260, -1)])
    check([q[..., 3:20], k[..., 3:20], torch.cat((v, v), -1)[..., 1:50]])


def test_wide_heads() -> None:
    for width in (1, 256):
        check(tensors(torch.bfloat16, 70, 90, width=width))
    check(tensors(torch.float32, 70, 90, width=264))  # as operations


@pytest.mark.ci_cases("65")
@pytest.mark.parametrize("rows", [2, 65, 130])
def test_sizes_that_are_not_known(rows: int) -> None:
    check(tensors(torch.float32, rows, rows + 3), dynamic=True, score_mod=SCORES["distance"])


def test_what_is_chosen() -> None:
    """One kernel for most; operations, and no call of eager's, for what has positions to check, or is float64."""
    args = tensors(torch.float32, 300, 300)
    mask = block_mask("window", 300, 300)
    (text,) = kernels(lambda *qkv: flex_attention(*qkv, block_mask=mask), *args)
    assert "sgemm_" in text and "all_most" in text
    table = torch.randn(7)

    def looked_up(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + table[(DOCUMENTS[q] + 1) % 7]

    check(args, score_mod=looked_up)
    assert kernels(lambda *qkv: flex_attention(*qkv), *(x.double() for x in args)) == []
    check([x.double() for x in args])


MEMORY = """
import resource, sys, torch
from torch.nn.attention.flex_attention import flex_attention
torch.set_num_threads(1)
fn = torch.compile(lambda q, k, v: flex_attention(q, k, v), backend="litz", dynamic=False)
length = int(sys.argv[1])
x = [torch.randn(1, 4, length, 32) for _ in range(3)]
with torch.no_grad():
    fn(*(each[:, :, :64] for each in x))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fn(*x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.nightly
def test_memory_is_linear_in_the_length() -> None:
    """Scores of 4096 x 4096 for 4 heads would be 256 MiB; all tensors together are 8."""
    found = run_warm(["-c", MEMORY, "4096"])
    assert int(found.stdout) < 64 * 1024, found.stderr
