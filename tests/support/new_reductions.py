"""Reductions that litz does not have, each no more than a row: for tests that a row is all that a reduction needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from litz.ir.build import call, const
from litz.ir.dtypes import least
from litz.ir.node import Node
from litz.ir.reductions import REDUCTIONS, SCANS, Reduction, Result, State, by_kind


def _parity(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(np.bitwise_xor.reduce(x.numpy(), axis=-1), dtype=x.numpy().dtype))


def _parities(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.bitwise_xor.accumulate(x.numpy(), axis=-1))


PARITY = Reduction(
    "parity",
    {"parity": Result(lambda state: state[0], _parity, scan=_parities)},
    identity=lambda dtype: (const(0, dtype),),
    merge=lambda a, b: (call("bitwise_xor", a[0], b[0]),),
    neutral=lambda dtype: 0,
)
"""Exclusive or of the bits: of integers alone."""

SQUARES = Reduction(
    "squares",
    {"squares": Result(lambda state: state[0], lambda x: (x * x).sum(-1, dtype=x.dtype))},
    identity=lambda dtype: (const(0, dtype),),
    merge=lambda a, b: (call("add", a[0], b[0]),),
    lift=lambda values, position: (call("mul", values[0], values[0]),),
)
"""The sum of squares: a state of one part, which is not the value."""


def _lift(values: State, position: Node) -> State:
    return values[0], const(1, values[0].dtype)


def _merge(a: State, b: State) -> State:
    top = call("maximum", a[0], b[0])
    # Relative to themselves infinities are 0 away.
    parts = [
        call(
            "mul", total, call("where", call("eq", each, top), const(1, top.dtype), call("exp", call("sub", each, top)))
        )
        for each, total in (a, b)
    ]
    return top, call("add", *parts)


LOG_SUM_EXP = Reduction(
    "log_sum_exp",
    {
        "log_sum_exp": Result(lambda state: call("add", state[0], call("log", state[1])), lambda x: x.logsumexp(-1)),
        "largest": Result(lambda state: state[0], lambda x: x.amax(-1)),
    },
    identity=lambda dtype: (const(least(dtype), dtype), const(0, dtype)),
    merge=_merge,
    lift=_lift,
    parts=("top", "total"),
)
"""A state of two parts and two results."""

NEW = (PARITY, SQUARES, LOG_SUM_EXP)


@contextmanager
def registered() -> Iterator[None]:
    """The rows among the others, for a while."""
    rows = dict(by_kind(*NEW))
    REDUCTIONS.update(rows)
    SCANS["parity"] = _parities
    try:
        yield
    finally:
        del SCANS["parity"]
        for kind in rows:
            del REDUCTIONS[kind]
