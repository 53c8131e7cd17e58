"""flex_attention's backward on a GPU by core's kernels: against eager, with float64 autograd as the judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from litz import report as reports
from litz.ir import KernelCall
from support import attention_backward_matrix as cases
from support.attention_backward_matrix import BASE, CASES, Case, alibi, causal, document, soft_cap
from support.compare import NO_GPU, close, litz

pytestmark = [
    pytest.mark.gpu,
    NO_GPU,
    pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*"),
]


@pytest.fixture(autouse=True, scope="module")
def on_the_gpu() -> Iterator[None]:
    cases.place("cuda")
    yield
    cases.place("cpu")


def kernels(found: Any) -> int:
    """How many kernels of the backward there are."""
    calls = (op for report in found for op in report.program.operations if isinstance(op, KernelCall))
    return sum(op.source.symbol.startswith(("litz_attention_dq", "litz_attention_dkdv")) for op in calls)


def run(case: Case) -> int:
    """Compare the gradients; how many kernels made them."""
    torch._dynamo.reset()
    tensors = case.tensors()
    with reports.collect() as found:
        got = case.step(case.compiled("litz"), tensors)
    close(got, case.step(case.compiled(None), tensors), case.expected(), rounding=case.tolerance)
    return kernels(list(found))


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, kernels_win: None) -> None:
    assert run(CASES[name]) == (0 if CASES[name].unfit else 1 if CASES[name].wanted == (0,) else 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 40, 64, 96, 128, 192, 256])
def test_widths(width: int, dtype: torch.dtype, kernels_win: None) -> None:
    tolerance = 1e-4 if dtype == torch.float32 else 8e-3
    for queries, keys in ((300, 300), (384, 256), (65, 130)):
        case = replace(BASE, query=(2, 4, queries, width), key=(2, 2, keys, width), dtype=dtype, tolerance=tolerance)
        assert run(replace(case, score=alibi)) == 2
        assert run(replace(case, score=soft_cap, mask=causal, blocks=128, lse="both")) == 2


def test_sizes_that_change() -> None:
    size = (2, 4, 256, 64)
    case = replace(BASE, query=size, key=size, dtype=torch.bfloat16, dynamic=True, mask=causal, score=alibi)
    inner = litz(flex_attention, dynamic=True)
    for length, block in ((256, 128), (300, 128), (1000, 128), (1000, 64), (520, 40)):
        size = (2, 4, length, 64)
        now = replace(case, query=size, key=size, blocks=block, tolerance=8e-3)
        mask, tensors = now.block_mask(), now.tensors()

        def attention(*given: torch.Tensor, mask: Any = mask) -> Any:
            return inner(*given, score_mod=alibi, block_mask=mask, return_lse=True)

        close(
            now.step(attention, tensors),
            now.step(now.compiled(None), tensors),
            now.expected(),
            rounding=now.tolerance,
        )


def test_results_repeat_bit_for_bit() -> None:
    case = replace(BASE, query=(2, 8, 2048, 64), key=(2, 2, 2048, 64), dtype=torch.bfloat16, mask=causal, blocks=128)
    torch._dynamo.reset()
    compiled, tensors = case.compiled("litz"), case.tensors()
    first = case.step(compiled, tensors)
    for _ in range(5):
        assert all(map(torch.equal, first, case.step(compiled, tensors)))


@pytest.mark.parametrize("score", [None, soft_cap])
def test_memory_is_linear_in_length(score: Any) -> None:
    length = 16384
    size = (1, 4, length, 64)
    case = replace(BASE, query=size, key=size, dtype=torch.bfloat16, mask=causal, score=score, blocks=128)
    torch._dynamo.reset()
    compiled, tensors = case.compiled("litz"), case.tensors()
    case.step(compiled, tensors)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    case.step(compiled, tensors)
    taken = torch.cuda.max_memory_allocated() - before
    # Copies of the inputs, the result, gradients: each 8 MiB. The scores alone would be 4 GiB.
    assert taken < 20 * tensors[0].nbytes


def test_a_long_document_mask() -> None:
    length = 4096
    cases.DOCUMENTS = torch.arange(length, device="cuda") // 700
    try:
        size = (1, 4, length, 64)
        assert run(replace(BASE, query=size, key=size, dtype=torch.bfloat16, mask=document, blocks=128, tolerance=8e-3))
    finally:
        cases.place("cpu")
        cases.DOCUMENTS = torch.arange(100) // 29
        cases.place("cuda")
