"""The device functions that read float8, for every byte, on a real device: tiles of several shapes and numbers of
warps, in memory's order and turned, and bytes two at a time."""

from __future__ import annotations

from types import ModuleType

import pytest

pytest.importorskip("triton")

import torch

from litz.ir.dtypes import FLOAT8, STORAGE, survives
from litz.targets.triton.compile import load_module
from support.compare import NO_GPU
from support.float8 import every_byte

TEXT = """
import triton
import triton.language as tl
from litz.targets.triton.helpers import _from_float8, _half_float8, _word_float8


@triton.jit
def read(p, f, b, h, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    at = row + ROWS * column if TURNED else COLUMNS * row + column
    byte = tl.load(p + at)
    tl.store(f + at, _from_float8(byte, "{name}"))
    tl.store(b + at, _half_float8(byte, tl.bfloat16, "{name}"))
    tl.store(h + at, _half_float8(byte, tl.float16, "{name}"))
"""
WORDS = """

@triton.jit
def read_words(p, b, h, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    at = row + ROWS * column if TURNED else COLUMNS * row + column
    word = tl.load(p.to(tl.pointer_type(tl.uint16), bitcast=True) + at)
    low, high = _word_float8(word, tl.bfloat16, "{name}")
    tl.store(b + 2 * at, low)
    tl.store(b + 2 * at + 1, high)
    low, high = _word_float8(word, tl.float16, "{name}")
    tl.store(h + 2 * at, low)
    tl.store(h + 2 * at + 1, high)
"""
TILES = [(1, 1, False, 1), (16, 16, True, 1), (8, 64, False, 4), (64, 32, False, 8), (256, 2, True, 2)]
"""Rows, columns, are they turned, warps."""


def module(dtype: torch.dtype) -> ModuleType:
    """Kernels that read a type."""
    row = STORAGE[dtype]
    return load_module((TEXT + (WORDS if row.bits else "")).format(name=row.name))


def same(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    got, wanted = got.cpu().float(), wanted.cpu().float()
    assert torch.equal(got.isnan(), wanted.isnan()), what
    bits, others = (each.masked_fill(each.isnan(), 0).view(torch.int32) for each in (got, wanted))
    assert torch.equal(bits, others), (what, got[bits != others], wanted[bits != others])


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("dtype", sorted(FLOAT8, key=str), ids=str)
def test_every_byte_in_tiles(dtype: torch.dtype) -> None:
    check(dtype, "cuda")


def check(dtype: torch.dtype, device: str) -> None:
    """Tiles of less than 256 bytes begin at several."""
    kernels = module(dtype)
    halves = [half for half in (torch.bfloat16, torch.float16) if survives(dtype, half)]
    for rows, columns, turned, warps in TILES:
        for first in range(0, 256, 255 if rows * columns >= 256 else 8 * rows * columns):
            for words in (False, True) if STORAGE[dtype].bits and rows * columns > 1 else (False,):
                count = rows * columns * (1 + words)
                given = every_byte(dtype).roll(-first).repeat(-(-count // 256))[:count].to(device)
                found = {
                    kind: torch.empty(count, dtype=kind, device=device) for kind in (torch.bfloat16, torch.float16)
                }
                place = (rows, columns, turned)
                if words:
                    kernels.read_words[(1,)](given.view(torch.uint8), *found.values(), *place, num_warps=warps)
                else:
                    found[torch.float32] = torch.empty(count, device=device)
                    outputs = [found[kind] for kind in (torch.float32, torch.bfloat16, torch.float16)]
                    kernels.read[(1,)](given.view(torch.uint8), *outputs, *place, num_warps=warps)
                for kind in (*halves, *([] if words else [torch.float32])):
                    same(found[kind], given.cpu().to(kind), f"{dtype} as {kind}: {place}, {warps} warps, words {words}")
