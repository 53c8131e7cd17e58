"""Why the second part of a head's width has at least LEAST_SECOND elements: what ptxas makes of smaller ones.

ptxas 12.8.93, which Triton 3.6 and 3.7 bring, reads two uniform registers that nothing wrote. They are the descriptor
of the second 16 elements of the second part, so these elements are read from anywhere.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

pytest.importorskip("triton")

from litz.targets.triton.compile import compile_kernel, make_target
from litz_contractions.attention import tiles
from litz_contractions.attention.tiles import Tiles, parts
from support.attention_matrix import Case, alibi, operands
from support.compare import NO_GPU, litz
from support.sass import unset_registers

SM_90 = make_target((9, 0))
NO_LONGER = (
    "the workaround is no longer needed: this ptxas has right kernels of heads of 96 as 64 and 32. Try smaller values"
    " of LEAST_SECOND (litz_contractions/attention/tiles.py) with tests/e2e/test_attention.py on a GPU"
)


def kernel_of(width: int, keys: int = 1) -> bytes:
    made_of = operands(1, 2, 130, keys, width, dtype=torch.float16)
    case = Case(made_of, score_mod=alibi, lse=True, tiles=Tiles(64, 64, 4, 3))
    made: Any = compile_kernel(case.kernel().source, SM_90)
    return bytes(made.asm["cubin"])


@pytest.fixture
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tile below the limit."""
    monkeypatch.setattr(tiles, "LEAST_SECOND", tiles.LEAST_SECOND // 2)
    assert parts(96) == (64, 32)


def test_a_smaller_second_part_is_still_made_wrong(smaller: None) -> None:
    assert unset_registers(kernel_of(96)), NO_LONGER


@pytest.mark.ci_cases("1-96", "257-192")
@pytest.mark.parametrize("width", [96, 192])
@pytest.mark.parametrize("keys", [1, 257])
def test_no_kernel_reads_a_register_that_nothing_wrote(width: int, keys: int) -> None:
    assert unset_registers(kernel_of(width, keys)) == []


@pytest.mark.gpu
@NO_GPU
def test_a_smaller_second_part_is_still_wrong_on_a_gpu(smaller: None, kernels_win: None) -> None:
    """It is right by chance where the registers hold what they should: then the kernel is looked at."""
    torch.manual_seed(0)
    given = [torch.randn(2, 4, n, 96, device="cuda", dtype=torch.float16) for n in (130, 1, 1)]

    def sums(*tensors: torch.Tensor) -> torch.Tensor:
        found: Any = flex_attention(*tensors, return_lse=True)
        return found[1]  # of one key: its score

    exact = sums(*(each.double() for each in given))
    error = (litz(sums)(*given).double() - exact).abs().max()
    assert error > 0.1 or unset_registers(kernel_of(96)), NO_LONGER
