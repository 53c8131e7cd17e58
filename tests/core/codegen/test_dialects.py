"""Dialects: each says every op of the IR and nothing else, and what is missing is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from litz.codegen.dialect import Dialect
from litz.ir.dtypes import STORED
from litz.ir.ops import OPS, Op
from litz.targets.cpp.dialect import CPP
from litz.targets.triton.dialect import TRITON

DIALECTS = pytest.mark.parametrize("dialect", [CPP, TRITON], ids=lambda dialect: dialect.name)
NEVER_MADE = {("isnan", torch.int64), ("isnan", torch.bool), ("isinf", torch.int64), ("isinf", torch.bool)}
"""Constants, which no lowering computes."""


def allowed(row: Op) -> list[torch.dtype]:
    """A dtype for each category that an op takes and torch computes."""
    found = []
    for dtype in (torch.float32, torch.int64, torch.bool):
        dtypes = (torch.bool, dtype, dtype) if row.name == "where" else (dtype,) * row.arity
        try:
            row.rule(dtypes)
            row.torch(*(torch.ones(1, dtype=each) for each in dtypes))
        except (TypeError, RuntimeError):
            continue
        found.append(dtype)
    return found


@DIALECTS
def test_a_dialect_has_exactly_the_ops_of_the_ir(dialect: Dialect) -> None:
    assert set(dialect.ops) == set(OPS)
    for name, row in OPS.items():
        for dtype in allowed(row):
            if (name, dtype) not in NEVER_MADE and (name, dtype) != ("signbit", torch.bool):
                assert dialect.op(name, dtype)


@DIALECTS
def test_a_dialect_has_every_type_and_every_cast(dialect: Dialect) -> None:
    assert set(dialect.elements) == set(dialect.values) == STORED
    for source in STORED:
        for target in STORED:
            assert "x" in dialect.cast("x", source, target)
            if source.itemsize == target.itemsize:
                assert "x" in dialect.bitcast("x", source, target)


def test_what_a_dialect_lacks_is_named_with_its_target() -> None:
    ops = {name: text for name, text in CPP.ops.items() if name != "exp"}
    toy = replace(CPP, name="toy", ops=ops, casts=())
    with pytest.raises(NotImplementedError, match="the dialect of toy has no text for 'exp' of float"):
        toy.op("exp", torch.float32)
    with pytest.raises(NotImplementedError, match="the dialect of toy has no text for 'neg' of bool"):
        toy.op("neg", torch.bool)
    with pytest.raises(NotImplementedError, match=r"toy has no text for a cast from torch.float32 to torch.int8"):
        toy.cast("x", torch.float32, torch.int8)
