"""What mode "rounded" leaves of what is registered: in, decompositions or passes; out, those that round as eager does.

The file `rounded.toml` has the exceptions. All else is litz's as ever, and `rounding` rounds what goes from one
operation to the next within a kernel.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from .exact import HALF, Row, exact_table


@dataclass(frozen=True)
class RoundedTable:
    """The file's contents. whole: names of ops that stay whole where a tensor is of a half type, by how their rules
    differ. left_out: names of passes."""

    whole: Mapping[str, str]
    left_out: frozenset[str]


@cache
def rounded_table() -> RoundedTable:
    """Returns the table."""
    content = tomllib.loads(Path(__file__).with_name("rounded.toml").read_text(encoding="utf-8"))
    whole = {name: row["how"] for row in content["row"] for name in row["ops"]}
    return RoundedTable(whole, frozenset(content["passes"]["left_out"]))


def _decompositions(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    whole = rounded_table().whole
    return {op: _of_others(rule) if rule and _packet(op) in whole else rule for op, rule in registered.items()}


def _packet(op: Any) -> str:
    return str(op).removeprefix("aten.").partition(".")[0]


def _of_others(rule: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(rule)
    def unless_half(*args: Any, **kwargs: Any) -> Any:
        half = any(isinstance(leaf, torch.Tensor) and leaf.dtype in HALF for leaf in tree_leaves((args, kwargs)))
        return NotImplemented if half else rule(*args, **kwargs)

    return unless_half


def _lowerings(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return {op: _lowering(op, rule) for op, rule in registered.items()}


def _lowering(op: Any, lowering: Callable[..., Any]) -> Callable[..., Any]:
    if _packet(op) in rounded_table().whole:
        return _unless_half(lowering)
    row = exact_table().row("lowering", op) if isinstance(op, OpOverload) else None
    return _of_rounded_numbers(lowering, row) if row is not None and row.numbers else lowering


def _of_rounded_numbers(lowering: Callable[..., Any], row: Row) -> Callable[..., Any]:
    @functools.wraps(lowering)
    def rounded(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        made = ctx.node.meta.get("val")
        return lowering(ctx, *row.taken(args, made.dtype if isinstance(made, torch.Tensor) else None), **kwargs)

    return rounded


def _unless_half(lowering: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(lowering)
    def unless_half(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        values = [node.meta.get("val") for node in ctx.node.all_input_nodes]
        if any(isinstance(value, torch.Tensor) and value.dtype in HALF for value in values):
            raise NotImplementedError("rounded otherwise than in eager")
        return lowering(ctx, *args, **kwargs)

    return unless_half


def _passes(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    left_out = rounded_table().left_out
    return {name: item for name, item in registered.items() if name not in left_out}


NARROWED: Mapping[str, Callable[[Mapping[Any, Any]], Mapping[Any, Any]]] = {
    "decomposition": _decompositions,
    "lowering": _lowerings,
    "pass": _passes,
}
"""What mode "rounded" uses of what is registered, by the kind that the hook `litz_narrow` names."""
